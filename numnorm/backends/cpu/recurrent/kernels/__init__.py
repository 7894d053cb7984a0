"""The forward and backward kernels of all recurrent cells, and their arguments."""
