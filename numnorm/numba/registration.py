"""What Numba is told of the public functions.

The module that compiles a function is imported when a call of it is first compiled.
"""

import importlib
import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba import core
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing.templates import infer_getattr, make_overload_method_template
from numba.extending import overload

import numnorm
import numnorm.numba.calls  # Numba asks it which calls to refuse
from numnorm.numba.helpers import OPTIONS, as_compiled
from numnorm.numba.homes import HOMES

types: Any = core.types


def register(module: str) -> None:
    """Register the functions of ``numnorm.public`` or of ``numnorm.rnn`` with Numba."""
    for name, home in HOMES.items():
        if name.startswith("rnn.") is not (module == "numnorm.rnn"):
            continue
        function = operator.attrgetter(name)(numnorm)
        # Literal axes and options are compiled as such.
        registered = overload(function, jit_options=OPTIONS, prefer_literal=True)
        registered(_maker(function, f"{__package__}.{home}"))
    for name in ("merge", "std", "variance") if module == "numnorm.public" else ():
        _register_method(name, _maker(getattr(numnorm.Moments, name), f"{__package__}.moments"))
    # Numba may be compiling the first function that names numnorm, whose import this then is.
    # Otherwise it refreshes its contexts later, or never: that takes long.
    if global_compiler_lock.is_locked():
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def _register_method(name: str, maker: Callable[..., Any]) -> None:
    """Register a method of `Moments`; other named tuples may have fields of this name."""
    template: Any = make_overload_method_template(types.NamedTuple, name, maker, "never")

    class OfMoments(template):
        def _resolve(self, kind: Any, attribute: str) -> Any:
            is_own = kind.instance_class is numnorm.Moments
            return super()._resolve(kind, attribute) if is_own else None

    infer_getattr(OfMoments)
    overload(maker, jit_options=OPTIONS)(maker)


def _maker(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """Return what Numba calls with the types of the arguments; it has the function's signature."""

    def maker(*arguments: Any, **others: Any) -> Any:
        make = getattr(importlib.import_module(home), function.__name__)
        return make(*arguments, **others)

    # Without keywords that it has in ``**others`` alone, as `where`.
    code = function.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    parameters = inspect.signature(function).parameters
    maker.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [as_compiled(parameters[name]) for name in own]
    )
    return maker
