"""Sparse matrices: moments and scaling of their columns."""
