"""The plain recurrent network on a device: its step, and its parameters for the passes."""
