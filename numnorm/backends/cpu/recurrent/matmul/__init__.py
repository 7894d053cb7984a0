"""Matrix products with packed operands, and their register-tiled micro-kernels."""
