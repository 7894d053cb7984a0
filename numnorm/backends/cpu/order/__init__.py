"""Kernels of order statistics: medians and quantiles of rows, by selection."""
