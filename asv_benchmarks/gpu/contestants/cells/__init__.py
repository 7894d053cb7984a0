"""Who runs an LSTM, a file each."""
