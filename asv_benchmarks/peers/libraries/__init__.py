"""What is compared: one file a library.

Each has the names of its packages, `start`, which a new process calls once with its number of
threads, and `call_of`, which returns how the library does a case, or None if it does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ..arrays import Array

FLOOR = "copyto"
LIBRARIES = (
    *("numnorm", "torch", "torch_nn", "onnxruntime", "jax", "scipy", "sklearn", "numpy"),
    FLOOR,
)
# What numnorm's times are multiples of; for cells there is no floor but that of their products.
YARDSTICKS = {"norms": FLOOR, "cells": "torch_nn"}


class Call(NamedTuple):
    """A call without arguments, and how to read what it returns.

    `arrays` makes NumPy arrays of the result: the output, or the gradients in the order dx,
    dgamma, dbeta; of a cell dx, then those of numnorm's parameters in their order. None means that
    there is nothing to check.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], list[Array]] | None


def load(name: str) -> ModuleType:
    """Import one of `LIBRARIES`, or any module that has what they have."""
    return importlib.import_module(f"{__name__}.{name}" if name in LIBRARIES else name)
