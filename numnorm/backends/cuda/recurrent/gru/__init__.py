"""The gated recurrent unit on a device: its gates, kernels and whole passes."""
