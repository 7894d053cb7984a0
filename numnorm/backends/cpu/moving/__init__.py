"""Norms with statistics that move along an axis: kernels, and the functions that call them."""
