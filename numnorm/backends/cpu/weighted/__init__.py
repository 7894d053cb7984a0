"""Norms whose statistics count each element by a weight: rows, columns and their kernels."""
