"""The LSTM on a device: its gates, its step, its parameters; and the LSTM with batch norm."""
