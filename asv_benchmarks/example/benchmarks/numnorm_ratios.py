"""The time of numnorm's norms on the machine of this project."""

from asv_benchmarks.benchmarks.ratios import Images, Matrices

__all__ = ["Images", "Matrices"]
