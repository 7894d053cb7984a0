"""Weight normalization in nopython code."""

from typing import Any

import numpy as np

from numnorm.norms.results import WeightGradients, WeightNormalized
from numnorm.norms.weight import WEIGHT
from numnorm.numba.arguments import check_array
from numnorm.numba.arrays import array_kind, empty, make_named, packed, types, viewed
from numnorm.numba.backward import make_backward
from numnorm.numba.forward import make_forward
from numnorm.numba.helpers import helper
from numnorm.numba.layouts import make_vectors
from numnorm.numba.outputs import fill

_normalized, _gradients = make_named(WeightNormalized), make_named(WeightGradients)


@helper
def _reciprocals(lengths):
    """Return the reciprocal of each length, 0 for 0, NaN for infinity."""
    given = packed(lengths, None, np.float64)
    result = empty(given.shape, np.float64)
    source, target = viewed(given, (given.size,)), viewed(result, (given.size,))
    for i in range(source.size):
        inverse = 1.0 / source[i] if source[i] != 0.0 else 0.0
        target[i] = inverse if source[i] != np.inf else np.nan
    return result


@helper
def _as_it_is(g):
    """Return the gains."""
    return g


def _gains(g: Any) -> tuple[Any, Any]:
    """Return the type of the gains as an array, and a compiled function that makes them one.

    The gain of a single vector may be a number.
    """
    if not isinstance(g, types.Integer | types.Float):
        return g, _as_it_is
    real = np.float32 if g == types.float32 else np.float64

    @helper
    def as_array(g):
        array = empty((), real)
        fill(array, g)
        return array

    return array_kind(real, 0), as_array


def weight_norm(v: Any, g: Any = None, axis: Any = -1, out: Any = None) -> Any:
    """Compile `numnorm.weight_norm`."""
    rows, (kind, gains) = make_vectors(v, axis), _gains(g)
    layout, forward = rows.layout, make_forward(WEIGHT, rows, v, kind, None, out, save=False)

    def call(v, g=None, axis=-1, out=None):
        of_v = layout(v, axis)
        return forward(v, gains(g), None, of_v, (0.0, 0.0, of_v[1][1] - 1), out)[0]

    return call


def weight_norm_forward(v: Any, g: Any = None, axis: Any = -1, out: Any = None) -> Any:
    """Compile `numnorm.weight_norm_forward`."""
    rows, (kind, gains) = make_vectors(v, axis), _gains(g)
    layout, forward = rows.layout, make_forward(WEIGHT, rows, v, kind, None, out, save=True)

    def call(v, g=None, axis=-1, out=None):
        of_v = layout(v, axis)
        w, norm, _ = forward(v, gains(g), None, of_v, (0.0, 0.0, of_v[1][1] - 1), out)
        return _normalized((w, norm))

    return call


def weight_norm_backward(
    dw: Any, v: Any, norm: Any, g: Any = None, axis: Any = -1, out: Any = None
) -> Any:
    """Compile `numnorm.weight_norm_backward`."""
    rows, (kind, gains) = make_vectors(v, axis), _gains(g)
    check_array("norm", norm, rows.statistic_ndim, "one value for each row", optional=False)
    layout, backward = rows.layout, make_backward(WEIGHT, rows, dw, v, None, norm, kind, out)

    def call(dw, v, norm, g=None, axis=-1, out=None):
        rnorm, numbers = _reciprocals(norm), (0.0, 1.0, 0.0)
        dv, dg, _ = backward(dw, v, None, rnorm, gains(g), None, layout(v, axis), numbers, out)
        return _gradients((dv, dg))

    return call
