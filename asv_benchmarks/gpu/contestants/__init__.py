"""Who is compared: a file each, which makes of a case a call that does all of the work.

Each file has a function ``call_of(case, arrays)``; it returns None for a case that the library
does not have. Arrays are tensors of PyTorch, in the device's memory; other libraries take the same
memory as theirs. What a call returns is the output, or the gradients in the order dx, dgamma,
dbeta. A library that is not installed is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ..arrays import Arrays
from ..cases import Case

OWN, FLOOR = "numnorm", "copy"
# The file of each, in the order of the tables.
_FILES = {
    OWN: "numnorm",
    FLOOR: "copy",
    "torch": "torch",
    "torch.compile": "torch_compile",
    "triton": "triton",
    "cupy": "cupy",
    "jax": "jax",
    "liger": "liger",
    "quack": "quack",
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


Maker = Callable[[Case, Arrays], Call | None]


def load() -> tuple[dict[str, Maker], dict[str, str]]:
    """Return those that are installed, and of the others why they are left out."""
    found, missing = {}, {}
    for name, file in _FILES.items():
        try:
            found[name] = importlib.import_module(f"{__name__}.{file}").call_of
        except Exception as error:  # some look for a device when they are imported
            missing[name] = f"{name} is left out: {reason(error)}"
    return found, missing


def reason(error: Exception) -> str:
    """Return an error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
