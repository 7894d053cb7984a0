"""Handlers of XLA's foreign function interface, with which JAX calls the kernels."""
