"""The column norms (batch norm) on a device: moments, coefficients, results and gradients."""
