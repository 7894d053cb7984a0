"""Device arrays, and kernels for CUDA."""
