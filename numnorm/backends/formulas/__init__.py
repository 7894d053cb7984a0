"""Formulas as plain scalar functions, written once and compiled by every backend."""
