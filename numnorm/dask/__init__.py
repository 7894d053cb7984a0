"""The norms for arrays of Dask: lazy, for any chunks.

The functions of `numnorm` with the same names call these ones when one of their arrays is lazy.
"""
