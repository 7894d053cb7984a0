"""The row norms (layer, RMS, AdaNorm, group, instance, weight): kernels and their callers."""
