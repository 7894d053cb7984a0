"""AdaNorm in nopython code."""

import math
from typing import Any

import numpy as np

from numnorm.norms.ada import ADA
from numnorm.norms.results import Normalized
from numnorm.numba.arguments import (
    check_flag,
    check_integer,
    check_number,
    checked_ddof,
    checked_eps,
    choice_of,
    inverse,
)
from numnorm.numba.arrays import make_named
from numnorm.numba.backward import make_backward
from numnorm.numba.forward import make_forward
from numnorm.numba.helpers import helper
from numnorm.numba.layouts import make_rows

_normalized = make_named(Normalized)


def _in_variance(scale: Any, k: Any, eps: Any, eps_in: Any, ddof: Any) -> bool:
    """Check the types of arguments; return whether epsilon is added to the variance."""
    for name, kind in (("scale", scale), ("k", k), ("eps", eps)):
        check_number(name, kind)
    check_integer("ddof", ddof)
    return bool(choice_of("eps_in", eps_in, ("variance", "std")) == "variance")


@helper
def _checked_scale(scale):
    if not 0.0 < scale < math.inf:
        raise ValueError("scale must be finite and greater than 0")
    return np.float64(scale)


@helper
def _checked_k(k):
    if not abs(k) < math.inf:
        raise ValueError("k must be finite")
    return np.float64(k)


def _make_call(
    x: Any, axis: Any, scale: Any, k: Any, eps: Any, eps_in: Any, ddof: Any, out: Any, *, save: bool
) -> Any:
    in_variance, rows = _in_variance(scale, k, eps, eps_in, ddof), make_rows(x, axis)
    layout, forward = rows.layout, make_forward(ADA, rows, x, scale, k, out, save=save)

    @helper
    def call(x, axis, scale, k, eps, ddof, out):
        of_x, number = layout(x, axis), checked_eps(eps)
        number_of_elements = of_x[1][1]
        eps_of_variance, eps_of_deviation = (number, 0.0) if in_variance else (0.0, number)
        scaling = eps_of_variance, eps_of_deviation, checked_ddof(ddof, number_of_elements)
        return forward(x, _checked_scale(scale), _checked_k(k), of_x, scaling, out)

    return call


def ada_norm(
    x: Any,
    axis: Any = -1,
    scale: Any = 1.0,
    k: Any = 0.1,
    eps: Any = 1e-5,
    eps_in: Any = "variance",
    ddof: Any = 0,
    out: Any = None,
) -> Any:
    """Compile `numnorm.ada_norm`."""
    forward = _make_call(x, axis, scale, k, eps, eps_in, ddof, out, save=False)

    def call(x, axis=-1, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0, out=None):
        return forward(x, axis, scale, k, eps, ddof, out)[0]

    return call


def ada_norm_forward(
    x: Any,
    axis: Any = -1,
    scale: Any = 1.0,
    k: Any = 0.1,
    eps: Any = 1e-5,
    eps_in: Any = "variance",
    ddof: Any = 0,
    out: Any = None,
) -> Any:
    """Compile `numnorm.ada_norm_forward`."""
    forward = _make_call(x, axis, scale, k, eps, eps_in, ddof, out, save=True)

    def call(x, axis=-1, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0, out=None):
        return _normalized(forward(x, axis, scale, k, eps, ddof, out))

    return call


def ada_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    axis: Any = -1,
    scale: Any = 1.0,
    k: Any = 0.1,
    eps: Any = 1e-5,
    eps_in: Any = "variance",
    ddof: Any = 0,
    detach_factor: Any = True,
    out: Any = None,
) -> Any:
    """Compile `numnorm.ada_norm_backward`."""
    in_variance, rows = _in_variance(scale, k, eps, eps_in, ddof), make_rows(x, axis)
    check_flag("detach_factor", detach_factor)
    layout, backward = rows.layout, make_backward(ADA, rows, dy, x, mean, rstd, scale, out)

    def call(
        dy, x, mean, rstd, axis=-1, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0,
        detach_factor=True, out=None,
    ):  # fmt: skip
        of_x, number = layout(x, axis), checked_eps(eps)
        width = of_x[1][1]
        divisor = width - checked_ddof(ddof, width)
        numbers = inverse(width, True), inverse(divisor, True), 0.0 if in_variance else number
        factor = _checked_k(k) * (1.0 if detach_factor else 2.0)
        factors = _checked_scale(scale), factor
        return backward(dy, x, mean, rstd, factors[0], factors[1], of_x, numbers, out)[0]

    return call
