"""The norms with statistics that move along an axis."""
