"""``numnorm apply``: normalize an array file of any size."""
