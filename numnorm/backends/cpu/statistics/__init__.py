"""Means and variances: of a row, saved for the backward pass, stored between calls."""
