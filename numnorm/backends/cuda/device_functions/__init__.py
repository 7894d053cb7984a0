"""Norms of a row as device functions, for kernels that users write."""
