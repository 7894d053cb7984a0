"""The plain recurrent network on a device: its kernels and whole passes."""
