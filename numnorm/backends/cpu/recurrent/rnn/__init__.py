"""The plain recurrent network: its kernels and whole passes."""
