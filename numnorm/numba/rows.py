"""Norms with statistics of rows in nopython code."""
