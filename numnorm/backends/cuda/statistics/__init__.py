"""Means and variances on a device: of a row, saved for the backward pass, and stored."""
