"""What Numba is told of the public functions.

The module that compiles a function is imported when a call of it is first compiled.
"""

import importlib
import operator
from collections.abc import Callable
from typing import Any

from numba import core
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing.templates import infer_getattr, make_overload_method_template
from numba.extending import overload

import numnorm
import numnorm._numba.calls  # Numba asks it which calls to refuse
from numnorm._numba.helpers import OPTIONS
from numnorm._numba.homes import HOMES, NORMS
from numnorm._numba.signatures import signature_of
from numnorm.norms.spec import NormSpec

types: Any = core.types


def register(module: str) -> None:
    """Register the functions of ``numnorm._public`` or of ``numnorm.rnn`` with Numba."""
    if module == "numnorm._public":
        for spec, function in NORMS.values():
            _register(function, _maker_of_norm(spec, function))
        for name in ("merge", "std", "var"):
            _register_method(name, _maker(getattr(numnorm.Moments, name), "moments"))
    for name, home in HOMES.items():
        if name.startswith("rnn.") is (module == "numnorm.rnn"):
            function = operator.attrgetter(name)(numnorm)
            _register(function, _maker(function, home))
    # Numba may be compiling the first function that names numnorm, whose import this then is.
    # Otherwise it refreshes its contexts later, or never: that takes long.
    if global_compiler_lock.is_locked():
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def _register(function: Callable[..., Any], maker: Callable[..., Any]) -> None:
    # Literal axes and options are compiled as such.
    overload(function, jit_options=OPTIONS, prefer_literal=True)(maker)


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
        make = getattr(importlib.import_module(f"{__package__}.{home}"), function.__name__)
        return make(*arguments, **others)

    maker.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    return maker


def _maker_of_norm(spec: NormSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a function of a norm."""
    signature = signature_of(function)

    def maker(*arguments: Any, **others: Any) -> Any:
        bound = signature.bind(*arguments, **others)
        bound.apply_defaults()
        make = importlib.import_module(f"{__package__}.norms").make
        return make(spec, function, bound.arguments)

    maker.__signature__ = signature  # type: ignore[attr-defined]
    return maker
