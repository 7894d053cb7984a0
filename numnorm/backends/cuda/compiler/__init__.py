"""The compiler's interface: kernels, intrinsics, element types and limits of devices."""
