"""Formulas as plain scalar functions, which every backend compiles for itself."""
