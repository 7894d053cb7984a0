"""All that is specific to one compiler and device: intrinsics, element types, limits."""
