"""The row norms on a device: kernels for rows in registers and rows read twice; callers."""
