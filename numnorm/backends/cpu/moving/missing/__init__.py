"""Moving norms in which steps are missing: kernels, and the functions that call them."""
