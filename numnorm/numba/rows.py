"""Layer and RMS norm and the standard normal variate in nopython code.

Each function has the name and the arguments of the public one, gets their types, and returns what
Numba compiles for them.
"""

from typing import Any

from numnorm.norms.layer import DETACHABLE, DETACHED, LAYER
from numnorm.norms.results import Gradients, Normalized, RmsGradients, RmsNormalized
from numnorm.norms.rms import RMS
from numnorm.numba.arguments import (
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
from numnorm.numba.layouts import make_rows

_normalized, _gradients = make_named(Normalized), make_named(Gradients)
_rms_normalized, _rms_gradients = make_named(RmsNormalized), make_named(RmsGradients)


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Compile `numnorm.layer_norm`."""
    check_number("eps", eps)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(LAYER, rows, x, gamma, beta, out, save=False)

    def call(x, gamma=None, beta=None, axis=-1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        return forward(x, gamma, beta, layout(x, axis), scaling, out)[0]

    return call


def layer_norm_forward(
    x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Compile `numnorm.layer_norm_forward`."""
    check_number("eps", eps)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(LAYER, rows, x, gamma, beta, out, save=True)

    def call(x, gamma=None, beta=None, axis=-1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        return _normalized(forward(x, gamma, beta, layout(x, axis), scaling, out))

    return call


def layer_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    axis: Any = -1,
    detach: Any = None,
    out: Any = None,
) -> Any:
    """Compile `numnorm.layer_norm_backward`."""
    detached = DETACHED[choice_of("detach", detach, DETACHABLE)]
    through_mean, through_scale = not detached.mean, not detached.scale
    rows = make_rows(x, axis)
    layout, backward = rows.layout, make_backward(LAYER, rows, dy, x, mean, rstd, gamma, out)

    def call(dy, x, mean, rstd, gamma=None, axis=-1, detach=None, out=None):
        of_x = layout(x, axis)
        width = of_x[1][1]
        numbers = inverse(width, through_mean), inverse(width, through_scale), 0.0
        return _gradients(backward(dy, x, mean, rstd, gamma, None, of_x, numbers, out))

    return call


def rms_norm(x: Any, gamma: Any = None, axis: Any = -1, eps: Any = 1e-5, out: Any = None) -> Any:
    """Compile `numnorm.rms_norm`."""
    check_number("eps", eps)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(RMS, rows, x, gamma, None, out, save=False)

    def call(x, gamma=None, axis=-1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        return forward(x, gamma, None, layout(x, axis), scaling, out)[0]

    return call


def rms_norm_forward(
    x: Any, gamma: Any = None, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Compile `numnorm.rms_norm_forward`."""
    check_number("eps", eps)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(RMS, rows, x, gamma, None, out, save=True)

    def call(x, gamma=None, axis=-1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        y, _, rstd = forward(x, gamma, None, layout(x, axis), scaling, out)
        return _rms_normalized((y, rstd))

    return call


def rms_norm_backward(
    dy: Any, x: Any, rstd: Any, gamma: Any = None, axis: Any = -1, out: Any = None
) -> Any:
    """Compile `numnorm.rms_norm_backward`."""
    rows = make_rows(x, axis)
    layout, backward = rows.layout, make_backward(RMS, rows, dy, x, None, rstd, gamma, out)

    def call(dy, x, rstd, gamma=None, axis=-1, out=None):
        of_x = layout(x, axis)
        numbers = 0.0, inverse(of_x[1][1], True), 0.0
        dx, dgamma, _ = backward(dy, x, None, rstd, gamma, None, of_x, numbers, out)
        return _rms_gradients((dx, dgamma))

    return call


def standard_normal_variate(x: Any, axis: Any = -1, ddof: Any = 0, out: Any = None) -> Any:
    """Compile `numnorm.standard_normal_variate`."""
    check_integer("ddof", ddof)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(LAYER, rows, x, None, None, out, save=False)

    def call(x, axis=-1, ddof=0, out=None):
        of_x = layout(x, axis)
        scaling = 0.0, 0.0, checked_ddof(ddof, of_x[1][1])
        return forward(x, None, None, of_x, scaling, out)[0]

    return call
