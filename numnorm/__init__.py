"""Normalization layers as plain functions on arrays."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

# Modules that are imported when they are first used; all but `rnn` need another library.
_MODULES = ("autograd", "jax", "rnn", "sklearn", "xarray")

if TYPE_CHECKING:
    from numnorm import rnn as rnn
    from numnorm._public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Import the functions, or one of the modules, when they are first used.

        Numba imports this package in every process in which it is installed, so the import is to
        cost next to nothing.
        """
        if name in _MODULES:
            return importlib.import_module(f"numnorm.{name}")
        if name == "__all__" or not name.startswith("__"):
            public = importlib.import_module("numnorm._public")
            for own in ("__all__", *public.__all__):
                globals().setdefault(own, getattr(public, own))
            if "numnorm._numba" in sys.modules:  # Numba is in use
                sys.modules["numnorm._numba"].init()
            if name in globals():
                return globals()[name]
        # With these two, Python suggests names that are alike.
        error = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(error, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    names = sys.modules[__name__].__all__
    return sorted({*globals(), *names, "rnn"})
