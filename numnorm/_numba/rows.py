"""The norms of rows and of groups in nopython code, made from their declarations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm._numba.arguments import (
    check_flag,
    check_integer,
    check_number,
    checked_ddof,
    checked_eps,
    choice_of,
    inverse,
)
from numnorm._numba.arrays import array_kind, empty, packed, types, viewed
from numnorm._numba.backward import make_backward
from numnorm._numba.forward import make_forward
from numnorm._numba.helpers import helper
from numnorm._numba.layouts import Rows, make_groups, make_rows, make_vectors
from numnorm._numba.outputs import fill, results_of
from numnorm._numba.signatures import compiled_call
from numnorm.backends.contract.norms import Norm
from numnorm.norms.layer import DETACHABLE, DETACHED
from numnorm.norms.spec import NormSpec

Function = Callable[..., Any]
Kinds = dict[str, Any]


def make(spec: NormSpec, function: Function, kinds: Kinds) -> Function:
    """Return what compiles a call of a function of a norm with arguments of these types."""
    norm: Any = spec.norm
    gain, bias = (*spec.parameters, "", "")[:2] if norm.parameters else ("scale", "k")

    def text(name: str, default: str = "None") -> str:
        return name if name in kinds else default

    _check_options(kinds)
    weights = [text(gain), text(bias)]
    options = [spec.axis, text("groups"), text("eps", "0"), text("ddof", "0")]
    parameters = kinds.get(gain), kinds.get(bias)
    if spec.is_backward(function):
        run = _make_gradients(spec, norm, kinds, parameters)
        arrays = ["dy", "x", text("mean"), spec.saved[-1], *weights]
        options.append(text("detach_factor", "True"))
    else:
        run = _make_normalized(spec, norm, kinds, parameters, save=function is spec.forward)
        arrays = ["x", *weights]
    call = f"_results(_run({', '.join([*arrays, *options])}, out))"
    return compiled_call(function, call, _run=run, _results=results_of(function))


def _check_options(kinds: Kinds) -> None:
    """Check the types of options."""
    for name in ("scale", "k", "eps"):
        if name in kinds:
            check_number(name, kinds[name])
    for name in ("ddof", "groups"):
        if name in kinds:
            check_integer(name, kinds[name])
    if "detach_factor" in kinds:
        check_flag("detach_factor", kinds["detach_factor"])
    if "convention" in kinds:
        choice_of("convention", kinds["convention"], ("torch", "keras"))
        choice_of("unbiased", kinds["unbiased"], (None, True, False))


def _make_rows(spec: NormSpec, kinds: Kinds) -> Rows:
    """Return how the rows of x are found."""
    x, axis = kinds["x"], kinds[spec.axis]
    if spec.family == "groups":
        return make_groups(x, axis)
    return make_vectors(x, axis) if "others" in spec.parameters.values() else make_rows(x, axis)


# The numbers in the scale of a row


@helper
def _as_it_is(value):
    return value


@helper
def _no_eps(eps):
    return 0.0


@helper
def _no_ddof(ddof, width):
    return 0


@helper
def _ddof_of_length(ddof, width):
    return width - 1


def _make_scaling(norm: Norm, kinds: Kinds) -> Function:
    """Return a compiled ``scaling(eps, ddof, width)``: eps, eps_on_deviation and ddof."""
    in_variance = choice_of("eps_in", kinds.get("eps_in", "variance"), ("variance", "std"))
    adds_to_variance = in_variance == "variance"
    eps_of = checked_eps if "eps" in kinds else _no_eps
    ddof_of = _ddof_of_length if norm.of_length else _no_ddof
    if "ddof" in kinds:
        ddof_of = checked_ddof

    @helper
    def scaling(eps, ddof, width):
        number = eps_of(eps)
        eps_of_variance, eps_of_deviation = (number, 0.0) if adds_to_variance else (0.0, number)
        return eps_of_variance, eps_of_deviation, ddof_of(ddof, width)

    return scaling


# What stands in the place of gain and bias


@helper
def _as_they_are(gain, bias, detach_factor):
    return gain, bias


@helper
def _checked_factors(scale, k, detach_factor):
    if not 0.0 < scale < math.inf:
        raise ValueError("scale must be finite and greater than 0")
    if not abs(k) < math.inf:
        raise ValueError("k must be finite")
    return np.float64(scale), np.float64(k) * (1.0 if detach_factor else 2.0)


def _make_parameters(norm: Norm, kinds: tuple[Any, Any]) -> tuple[Function, Any, Any]:
    """Return a compiled ``parameters(gain, bias, detach_factor)``, and the types of its results.

    The gain of a single vector may be a number, of which it makes an array.
    """
    gain, bias = kinds
    if norm.parameters == 0:
        return _checked_factors, *kinds
    if not isinstance(gain, types.Integer | types.Float):
        return _as_they_are, *kinds
    real = np.float32 if gain == types.float32 else np.float64

    @helper
    def parameters(gain, bias, detach_factor):
        array = empty((), real)
        fill(array, gain)
        return array, bias

    return parameters, array_kind(real, 0), bias


# The passes


def _make_normalized(
    spec: NormSpec, norm: Norm, kinds: Kinds, parameters: tuple[Any, Any], *, save: bool
) -> Function:
    """Return a compiled forward pass, which returns y, mean and rstd."""
    scaling = _make_scaling(norm, kinds)
    rows, (parameters_of, gamma, beta) = _make_rows(spec, kinds), _make_parameters(norm, parameters)
    layout = rows.layout
    forward = make_forward(norm, rows, kinds["x"], gamma, beta, kinds["out"], save=save)

    @helper
    def normalized(x, gain, bias, axis, groups, eps, ddof, out):
        of_x, weights = layout(x, axis, groups), parameters_of(gain, bias, True)
        return forward(x, weights[0], weights[1], of_x, scaling(eps, ddof, of_x[1][1]), out)

    return normalized


def _make_gradients(
    spec: NormSpec, norm: Norm, kinds: Kinds, parameters: tuple[Any, Any]
) -> Function:
    """Return a compiled backward pass, which returns dx, dgamma and dbeta."""
    detached = DETACHED[choice_of("detach", kinds.get("detach"), DETACHABLE)]
    through_mean, through_scale = norm.formula.centred and not detached.mean, not detached.scale
    scaling = _make_scaling(norm, kinds)
    rows, (parameters_of, gamma, _) = _make_rows(spec, kinds), _make_parameters(norm, parameters)
    layout, saved = rows.layout, _reciprocals if norm.of_length else _as_it_is
    statistics = kinds.get("mean"), kinds[spec.saved[-1]]
    backward = make_backward(norm, rows, kinds["dy"], kinds["x"], *statistics, gamma, kinds["out"])

    @helper
    def gradients(dy, x, mean, rstd, gain, bias, axis, groups, eps, ddof, detach_factor, out):
        of_x, weights = layout(x, axis, groups), parameters_of(gain, bias, detach_factor)
        width = of_x[1][1]
        _, eps_on_deviation, used = scaling(eps, ddof, width)
        of_mean, of_scale = inverse(width, through_mean), inverse(width - used, through_scale)
        numbers = of_mean, of_scale, eps_on_deviation
        return backward(dy, x, mean, saved(rstd), weights[0], weights[1], of_x, numbers, out)

    return gradients


@helper
def _reciprocals(lengths):
    """Return the reciprocal of each length, 0 for 0, NaN for infinity."""
    own = packed(lengths, None, np.float64)
    result = empty(own.shape, np.float64)
    source, target = viewed(own, (own.size,)), viewed(result, (own.size,))
    for i in range(source.size):
        reciprocal = 1.0 / source[i] if source[i] != 0.0 else 0.0
        target[i] = reciprocal if source[i] != np.inf else np.nan
    return result
