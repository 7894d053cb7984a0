"""The contestants of the comparison, a file each.

Each file has a function ``call_of(case, arrays)``, which returns the call of a case, or None if the
library does not support it. Arrays are PyTorch tensors in the device's memory, which the other
libraries share. A call returns the output, or dx and the gradients of the parameters. Libraries
that are not installed are left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

OWN, FLOOR, YARDSTICK = "numnorm", "copy", "torch.nn.LSTM"
# Their results are not checked: a copy is not a norm, and cuDNN's LSTM has no norms.
UNCHECKED = (FLOOR, YARDSTICK, f"{YARDSTICK}, TF32")
# The file of each, in the order of the tables.
_FILES = {
    "norms": {
        OWN: "numnorm",
        FLOOR: "copy",
        "torch": "torch",
        "torch.compile": "torch_compile",
        "triton": "triton",
        "cupy": "cupy",
        "jax": "jax",
        "liger": "liger",
        "quack": "quack",
    },
    "cells": {
        OWN: "numnorm",
        YARDSTICK: "torch_nn",
        f"{YARDSTICK}, TF32": "torch_nn_tf32",
        "torch": "torch",
        "torch.compile": "torch_compile",
        "jax": "jax",
    },
}


class Call(NamedTuple):
    """A call without arguments.

    Attributes
    ----------
    run : callable
        Launches the work, and returns the result.
    wait : callable or None
        Waits for a result on the library's own stream. None for PyTorch's current stream.
    """

    run: Callable[[], Any]
    wait: Callable[[Any], Any] | None = None


Maker = Callable[[Any, Any], Call | None]


def load(family: str) -> tuple[dict[str, Maker], dict[str, str]]:
    """Return the installed contestants of "norms" or "cells", and why others are left out."""
    makers, missing = {}, {}
    for name, file in _FILES[family].items():
        try:
            makers[name] = importlib.import_module(f"{__name__}.{family}.{file}").call_of
        except Exception as error:  # some look for a device during the import
            missing[name] = f"{family}: {name} is left out: {reason(error)}"
    return makers, missing


def reason(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
