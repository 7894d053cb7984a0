"""Means and variances on a device: of rows and columns, saved and stored."""
