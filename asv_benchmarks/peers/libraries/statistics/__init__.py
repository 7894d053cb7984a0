"""Libraries of statistics: moving, incomplete, of labels, in chunks, and of sparse matrices."""
