"""The contestants for norms, a file each."""
