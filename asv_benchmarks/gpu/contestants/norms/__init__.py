"""Who normalizes, a file each."""
