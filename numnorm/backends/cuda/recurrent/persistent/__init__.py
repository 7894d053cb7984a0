"""All steps of a cell in one cooperative kernel whose weights stay in shared memory."""
