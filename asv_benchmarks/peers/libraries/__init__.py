"""The libraries of the comparison, a file each.

Each file has `PACKAGES`, the names of its packages; `start`, which a new process calls once with
the number of threads; and `call_of`, which returns the call of a case, or None if there is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ..arrays import Array
from ..cases import FAMILIES

FLOOR = "copyto"
# In the folder `statistics`.
STATISTICS = ("pandas", "bottleneck", "numbagg", "torchaudio", "braindecode", "numpy_ma")
STATISTICS += ("xarray", "flox", "dask", "scanpy")
LIBRARIES = (
    *("numnorm", "torch", "torch_nn", "onnxruntime", "jax", "scipy", "sklearn", "numpy"),
    "chemotools",
    *STATISTICS,
    *("numnorm_jax", "njit", "njit_loop"),
    FLOOR,
)
# numnorm in code that XLA or Numba compiles, and what a user would write there instead.
COMPILED = {"numnorm_jax": "jax", "njit": "njit_loop"}
# They have tables of their own, and no line in the picture.
APART = ("numnorm_jax", "njit", "njit_loop")
# The unit of numnorm's times, for each family.
YARDSTICKS = {"norms": FLOOR, "cells": "torch_nn", **dict.fromkeys(FAMILIES, FLOOR)}


class Call(NamedTuple):
    """A call without arguments, and how to read what it returns.

    `arrays` converts the result to NumPy arrays: the output, or dx, dgamma and dbeta; for a cell dx
    and the gradients of numnorm's parameters. None means that the result is not checked.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], list[Array]] | None


def load(name: str) -> ModuleType:
    """Import one of `LIBRARIES`, or another module with the same functions."""
    if name not in LIBRARIES:
        return importlib.import_module(name)
    folder = "statistics." if name in STATISTICS else ""
    return importlib.import_module(f"{__name__}.{folder}{name}")
