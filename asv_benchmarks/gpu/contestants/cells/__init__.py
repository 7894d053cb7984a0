"""The contestants for LSTMs, a file each."""
