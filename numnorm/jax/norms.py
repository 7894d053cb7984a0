"""The norms for arrays of JAX, made from numnorm's public functions."""

from __future__ import annotations

import functools
import numbers
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import Norm
from numnorm.derived import (
    docstring_of,
    parameter_texts,
    parameters_of,
    plain_function,
    summary_of,
)
from numnorm.jax.arrays import as_float_array, as_parameter, counting_arrays
from numnorm.jax.batch import BatchNormalized
from numnorm.jax.passes import Pass, normalized_by_python
from numnorm.jax.rows import RowNorm, compute_dtype, normalize
from numnorm.jax.targets import varying_like
from numnorm.layouts import RowLayout, moving_layout
from numnorm.norms.spec import RUNNING_OPTIONS, NormSpec, RowCall, taken_counting
from numnorm.norms.times import checked_times, in_one_unit
from numnorm.norms.weighted import check_broadcasts

_NO_FACTORS = 0.0, 0.0, 0.0
# The defaults of gamma and beta.
_FILLS = jnp.ones_like, jnp.zeros_like

_X = """ : array_like
    Any shape; float16, bfloat16, float32 or float64. Integers and bool become JAX's default
    float."""
_OF_ELEMENTS = """ : array_like, optional
    As for `numnorm.{name}`; arrays of the trace, constants for the gradient."""
_RUNNING = """ : array_like, optional
    Of shape ``(C,)``, both or neither. They are required in inference. Nothing is updated in
    place: in training, the new ones are returned."""
_RETURNS = "jax.Array\n    Of the shape and dtype of x."
_RETURNS_RUNNING = """jax.Array or BatchNormalized
    y, of the shape and dtype of x; in training with running statistics
    ``(y, running_mean, running_var)``."""
_ENDING = """
Raises
------
TypeError, ValueError
    If an argument has an unsupported type or dtype, or a wrong shape or value; already when
    the caller is traced.

Examples
--------
>>> import jax
>>> import numnorm.jax
>>> print(numnorm.jax.{name}(jax.numpy.array({x}), {options}).round(4))
{y}
"""


def for_jax(spec: NormSpec, module: str) -> Callable[..., Any]:
    """Return a norm as a function of a module, for arrays of JAX, with gradients."""
    shown = list(_parameters(spec))
    texts = {**parameter_texts(spec.backward), **parameter_texts(spec.function), "x": _X}
    texts |= dict.fromkeys(("where", "weights"), _OF_ELEMENTS.format(name=spec.name))
    texts |= dict.fromkeys(spec.updates, _RUNNING)
    example = re.sub(r"\[.*?\]", r"jax.numpy.array(\g<0>)", spec.example.options)
    docstring = docstring_of(
        summary_of(spec.function),
        {p.name: texts[p.name] for p in shown},
        _RETURNS_RUNNING if spec.updates else _RETURNS,
        _ENDING.format(name=spec.name, x=spec.example.x, options=example, y=spec.example.y),
    )

    def call(arguments: dict[str, Any]) -> Any:
        return _norm(spec, arguments)

    returns = "jax.Array | BatchNormalized" if spec.updates else "jax.Array"
    return plain_function(spec.name, module, shown, returns, call, docstring)


def _parameters(spec: NormSpec) -> Iterator[Parameter]:
    arrays = "x", *spec.parameters, *spec.constants, *spec.updates, "where", "weights"
    public = parameters_of(spec.function)
    for name, parameter in public.items():
        if name == "where":
            yield from spec.only_backward.values()
        if name != "out":
            yield parameter.replace(annotation="Any") if name in arrays else parameter


def _norm(spec: NormSpec, arguments: dict[str, Any]) -> Any:
    x = as_float_array("x", arguments.pop("x"))
    parameters = {name: arguments.pop(name) for name in (*spec.parameters, *spec.constants)}
    counting = taken_counting(arguments)
    if arguments.get("times") is not None:
        arguments |= _plain_times(spec, x, arguments)
    running = _running(spec, x, arguments, counting)
    if spec.norm is None or counting or running:
        return _by_python(spec, x, parameters, arguments, counting, running)
    assert spec.row_call is not None
    return _rows(spec.norm, spec.row_call(x.shape, **arguments), x, parameters)


def _plain_times(spec: NormSpec, x: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return times, and the duration that they come with, as numbers of Python."""
    if _is_traced(arguments["times"]):
        raise TypeError("times must be known when the caller is traced, got an array of the trace")
    name = "window" if spec.family == "windows" else "halflife"
    layout = moving_layout(x.shape, arguments[spec.axis])
    times = checked_times(arguments["times"], layout.steps)
    if arguments[name] is not None:
        times, duration = in_one_unit(name, arguments[name], times)
        return {"times": tuple(times.tolist()), name: duration}
    return {"times": tuple(times.tolist())}  # the checks raise the right error


def _running(
    spec: NormSpec, x: Any, arguments: dict[str, Any], counting: dict[str, Any]
) -> dict[str, Any]:
    """Take running statistics and their options out of arguments; return them if there are any."""
    if not spec.updates:
        return {}
    public = parameters_of(spec.function)
    options = {name: arguments.pop(name) for name in RUNNING_OPTIONS}
    arrays = {name: arguments.pop(name) for name in spec.updates}
    arrays = {name: as_float_array(name, a) for name, a in arrays.items() if a is not None}
    if not arrays and all(options[name] == public[name].default for name in RUNNING_OPTIONS):
        return {}
    arrays = {name: a.astype(compute_dtype(a.dtype)) for name, a in arrays.items()}
    # NumPy's function raises for wrong arguments also where there are no samples.
    empty = {name: np.zeros(a.shape, a.dtype) for name, a in arrays.items()}
    empty["x"] = np.zeros((0, *x.shape[1:]), x.dtype)
    counted = {n: 1 if n in ("where", "weights") else v for n, v in counting.items()}
    spec.function(**empty, **arguments, **options, **counted)
    return {**options, **arrays} if arrays else {}


# Norms of rows: compiled handlers


def _rows(norm: Norm, row_call: RowCall, x: Any, parameters: dict[str, Any]) -> Any:
    layout = row_call.layout
    weights = [
        as_parameter(name, value, layout.parameter_shape, layout.parameter_meaning, x)
        for name, value in parameters.items()
    ]
    if len(weights) == 2 and (weights[0] is None) != (weights[1] is None):
        given = next(a for a in weights if a is not None)
        weights = [
            a if a is not None else fill(given) for a, fill in zip(weights, _FILLS, strict=True)
        ]
    static = RowNorm(
        norm,
        row_call.scaling,
        row_call.detached,
        layout.segment,
        layout.channels,
        layout.shared,
        row_call.factors or _NO_FACTORS,
    )
    return _normalized(static, layout, x, *[*weights, None, None][:2])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _normalized(static: RowNorm, layout: RowLayout, x: Any, gamma: Any, beta: Any) -> Any:
    order = layout.order
    moved = x if order is None else jnp.transpose(x, order)
    rows = moved.reshape(1, layout.rows, layout.width)
    arrays = rows, gamma, beta
    y = normalize(static, *varying_like(arrays, arrays)).reshape(moved.shape)
    return y if order is None else jnp.transpose(y, [order.index(k) for k in range(y.ndim)])


# Moving norms, and norms with missing values, weights or running statistics: handlers that call
# Python


def _by_python(
    spec: NormSpec,
    x: Any,
    parameters: dict[str, Any],
    options: dict[str, Any],
    counting: dict[str, Any],
    running: dict[str, Any],
) -> Any:
    statistic_shape = x.shape
    if spec.row_call is not None:
        layout = spec.row_call(x.shape, **options).layout
        frozen = running and not running["training"]
        statistic_shape = layout.parameter_shape if frozen else layout.statistic_shape
    arrays = {"x": x}
    along = {**spec.parameters, **spec.constants}
    for name, value in parameters.items():
        if value is None and name not in spec.constants:
            continue
        if spec.broadcasts(name) and isinstance(value, numbers.Real):
            options = {**options, name: value}  # with all its digits
            continue
        arrays[name] = as_float_array(name, value)
        if along[name] == "elements":
            check_broadcasts(name, arrays[name].shape, x.shape)
        elif along[name] == "number":
            check_shape(name, arrays[name].shape, (), "a number")
        else:
            check_shape(name, arrays[name].shape, layout.parameter_shape, layout.parameter_meaning)
        if name in spec.constants and not _is_traced(value):
            _check_constant(spec, name, np.asarray(value), arrays[name].dtype, layout, options)
    arrays |= {name: running.pop(name) for name in spec.updates if name in running}
    arrays |= counting_arrays(spec, x, options[spec.axis], counting)
    static = Pass(spec.name, tuple(arrays), statistic_shape, options | running | counting)
    static.check(arrays)
    y, *moved = normalized_by_python(static, *arrays.values())
    return BatchNormalized(y, *moved) if moved else y


def _is_traced(value: Any) -> bool:
    """Return whether a value, or a part of it, is known only when the function runs."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def _check_constant(
    spec: NormSpec, name: str, value: Any, dtype: Any, layout: RowLayout, options: dict[str, Any]
) -> None:
    """Raise for wrong numbers of a constant, as NumPy's function does without rows."""
    shape = layout.parameter_shape
    own = {**options, spec.axis: tuple(range(-len(shape), 0)), name: value.astype(dtype)}
    spec.function(np.zeros((0, *shape), dtype), **own)
