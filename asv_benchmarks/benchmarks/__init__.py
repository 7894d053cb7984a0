"""What is tracked over time.

A family of functions is one file, named for it: `norms`, `moments`, `weighted`, `moving` and
`recurrent` time theirs, and `dask_arrays`, `njit` and `jax_functions` some in other libraries. What
is measured of all families in another way than by the time of a call is a file, too: `ratios` to a
copy, `memory`, `compile`, and `start`, the import and the first call.
"""
