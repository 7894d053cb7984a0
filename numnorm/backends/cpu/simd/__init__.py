"""Vectors of elements: types, loads, stores, arithmetic, activations, masked access."""
