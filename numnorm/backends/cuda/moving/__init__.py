"""The norms with statistics that move along an axis."""

OF_STREAMS = ("moving_step", "exponential_step", "rounded")
"""The functions of a backend that are the host's."""

STREAMS = "steps of streams are not supported on a device: copy x to the host first"
"""The message of their errors."""
