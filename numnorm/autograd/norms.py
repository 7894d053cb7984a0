"""The norms as functions that autograd differentiates, made from numnorm's public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.autograd.primitives import Differentiable
from numnorm.derived import (
    docstring_of,
    parameter_texts,
    parameters_of,
    plain_function,
)
from numnorm.layouts import normalized_axes
from numnorm.norms.spec import COUNTING, NormSpec

_EXAMPLE = """
Examples
--------
>>> import autograd
>>> import numpy as np
>>> import numnorm.autograd
>>> def last(x):
...     return numnorm.autograd.{name}(x{options}).ravel()[-1]
>>> print(autograd.grad(last)(np.array({x})).round(4) + 0)
{dx}
"""


def differentiable(spec: NormSpec, module: str) -> Callable[..., Any]:
    """Return a norm as a function of a module, with gradients with respect to its arrays."""
    parameters = [p for name, p in parameters_of(spec.function).items() if name != "out"]
    counting = next((i for i, p in enumerate(parameters) if p.name in COUNTING), len(parameters))
    parameters[counting:counting] = spec.only_backward.values()
    arrays = ("x", *spec.parameters)
    shown = [p.replace(annotation="Any") if p.name in arrays else p for p in parameters]
    primitive = _primitive(spec)

    def call(arguments: dict[str, Any]) -> Any:
        values = [arguments.pop(name) for name in arrays]
        return primitive(*values, **arguments)

    texts = {**parameter_texts(spec.backward), **parameter_texts(spec.function)}
    constant = f"\n    As for `numnorm.{spec.name}`; constants for the gradient."
    texts |= dict.fromkeys((*COUNTING, *spec.updates), constant)
    gradients = " and ".join([", ".join(arrays[:-1]), arrays[-1]]) if arrays[1:] else "x"
    options = f", {spec.example.options}" if spec.example.options else ""
    docstring = docstring_of(
        f"Return `numnorm.{spec.name}`, with gradients with respect to {gradients}.",
        {p.name: texts[p.name] for p in shown},
        "array\n    Of the shape and dtype of x.",
        _EXAMPLE.format(name=spec.name, options=options, x=spec.example.x, dx=spec.example.dx),
    )
    return plain_function(spec.name, module, shown, "Any", call, docstring)


def _options(spec: NormSpec) -> list[Any]:
    """Return the parameters of the backward pass that are no arrays."""
    arrays = (*spec.arrays_of(spec.backward), "out")
    parameters = parameters_of(spec.backward).items()
    return [p for name, p in parameters if name in spec.constants or name not in arrays]


def _primitive(spec: NormSpec) -> Differentiable:
    """Return a primitive of autograd that calls the public functions."""
    only_backward = spec.only_backward
    backward_options = {p.name for p in _options(spec)}
    backward_arrays = spec.arrays_of(spec.backward)

    def result(x: Any, *parameters: Any, **options: Any) -> tuple[Any, tuple[Any, ...]]:
        taken = {name: value for name, value in options.items() if name not in only_backward}
        y, *statistics = spec.forward(x, *parameters, **taken)
        if only_backward and spec.row_call is not None:  # which checks them
            own = {name: value for name, value in options.items() if name not in COUNTING}
            spec.row_call(y.shape, **own)
        return y, tuple(statistics)

    def gradients(dy: Any, saved: Any, x: Any, *parameters: Any, **options: Any) -> tuple[Any, ...]:
        taken = {name: value for name, value in options.items() if name in backward_options}
        if options.get("statistics") is not None:  # which are constants, as in inference
            taken["training"] = False
        named = dict(zip(spec.parameters, parameters, strict=True))
        taken |= {name: value for name, value in named.items() if name in backward_arrays}
        found = spec.backward(dy, x, *saved, **taken)
        if not parameters:
            return (found,)
        beta = named.get("beta")
        if beta is None:
            return tuple(found)
        dx, dgamma, dbeta = found
        if np.shape(dbeta) != np.shape(beta):  # it has the shape of gamma
            counted = _counted(dy, x, options["where"], options["nan_policy"])
            dbeta = _sum_to(np.shape(beta), counted, options[spec.axis])
        return dx, dgamma, dbeta

    result.__name__ = spec.name
    return Differentiable(result, gradients)


def _counted(dy: Any, x: Any, where: Any, nan_policy: str) -> Any:
    """Return dy with 0 for what does not count."""
    dy = dy if where is None else np.where(where, dy, 0.0)
    return np.where(np.isnan(x), 0.0, dy) if nan_policy == "omit" else dy


def _sum_to(shape: tuple[int, ...], dy: Any, axes: Any) -> Any:
    """Return the sums of dy over the axes in which a bias of a shape broadcasts."""
    full = shape
    if len(shape) != dy.ndim:
        own = normalized_axes(axes, dy.ndim)
        full = tuple(size if axis in own else 1 for axis, size in enumerate(dy.shape))
    summed = tuple(axis for axis, size in enumerate(full) if size == 1)
    return dy.sum(axis=summed, dtype=np.float64).reshape(shape)
