"""The norms of rows and of channels of which elements are missing or have weights."""
