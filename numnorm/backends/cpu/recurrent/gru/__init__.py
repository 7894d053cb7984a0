"""The gated recurrent unit: its gates, kernels and whole passes."""
