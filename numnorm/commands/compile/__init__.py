"""``numnorm compile``: kernels compiled ahead into the cache."""
