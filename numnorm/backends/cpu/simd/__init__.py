"""SIMD vectors: types, loads, stores, masked access, arithmetic, activations."""
