"""The LSTM on a device: its gates, kernels and whole passes."""
