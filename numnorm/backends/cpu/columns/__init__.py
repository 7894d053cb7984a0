"""The column norms (batch norm): moments of channels, their coefficients, results and gradients."""
