"""What is tracked over time.

A family of functions is one file, named for it: `norms`, `moments`, `weighted` and `moving` time
theirs. What is measured of all families in another way than by the time of a call is a file, too:
`ratios` to a copy, `memory`, and `start`, the import and the first call.
"""
