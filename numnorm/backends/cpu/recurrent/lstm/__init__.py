"""The LSTM: its gates, kernels and whole passes, recurrent batch norm included."""
