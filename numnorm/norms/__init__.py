"""The norms: one file each, with its public functions and the formulas of its elements."""
