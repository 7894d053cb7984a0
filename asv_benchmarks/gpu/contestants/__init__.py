"""Who is compared: a file each, which makes of a case a call that does all of the work.

Each file has a function ``call_of(case, arrays)``; it returns None for a case that the library
does not have. Arrays are tensors of PyTorch, in the device's memory; other libraries take the same
memory as theirs. What a call returns is the output, or the gradients in the order dx, then those
of the parameters. A library that is not installed is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

OWN, FLOOR, YARDSTICK = "numnorm", "copy", "torch.nn.LSTM"
# Whose results are not looked at: a copy is not a norm, and cuDNN's LSTM has none.
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
        Queues the work, and returns the result.
    wait : callable or None
        Waits for a result that is computed on a stream of the library's own. None where it is
        PyTorch's current one.
    """

    run: Callable[[], Any]
    wait: Callable[[Any], Any] | None = None


Maker = Callable[[Any, Any], Call | None]


def load(family: str) -> tuple[dict[str, Maker], dict[str, str]]:
    """Return those of "norms" or "cells" that are installed, and why others are left out."""
    found, missing = {}, {}
    for name, file in _FILES[family].items():
        try:
            found[name] = importlib.import_module(f"{__name__}.{family}.{file}").call_of
        except Exception as error:  # some look for a device when they are imported
            missing[name] = f"{family}: {name} is left out: {reason(error)}"
    return found, missing


def reason(error: Exception) -> str:
    """Return an error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
