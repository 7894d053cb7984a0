"""Numba's options, serial and parallel kernels, their helpers, compiled code on disk."""
