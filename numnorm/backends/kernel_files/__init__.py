"""Compiled kernels on disk, of all backends: the folders, their files, whose they are."""
