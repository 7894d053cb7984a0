"""Numba's options, helper compilation, serial or parallel kernels, compiled code on disk."""
