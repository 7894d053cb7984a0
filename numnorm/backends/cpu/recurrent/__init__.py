"""Recurrent cells with normalization: whole passes over all steps of packed sequences."""
