"""Normalized recurrent cells: forward and backward passes over packed sequences."""
