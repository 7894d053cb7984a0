"""The gated recurrent unit on a device: its gates, its step, and its parameters for the passes."""
