"""Compares the speed of numnorm on a GPU with a copy and with other libraries."""
