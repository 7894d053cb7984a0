"""Norms of which XLA calls the public functions, through a handler that enters Python."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from numnorm.derived import parameters_of
from numnorm.jax.rows import once
from numnorm.jax.targets import call_python, varying_like
from numnorm.norms.declared import BY_NAME
from numnorm.norms.moments import of_numbered_labels
from numnorm.norms.weighted import weighted_input


class Pass:
    """A norm with its options, as the static argument of the functions below.

    Parameters
    ----------
    name : str
        The name of the norm.
    arrays : tuple of str
        The arguments that are arrays, x first.
    statistic_shape : tuple of int
        The shape of a saved statistic.
    options : dict
        The other arguments, of either pass.
    """

    def __init__(
        self,
        name: str,
        arrays: tuple[str, ...],
        statistic_shape: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        self.spec = BY_NAME[name]
        self.arrays = arrays
        self.statistic_shape = statistic_shape
        self.options = options
        self._key = name, arrays, statistic_shape, json.dumps(options, default=_plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pass) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def of(self, function: Any) -> dict[str, Any]:
        """Return the options that a function has, as JSON can hold them."""
        names = parameters_of(function)
        options: dict[str, Any] = json.loads(self._key[-1])
        return {name: value for name, value in options.items() if name in names}

    @property
    def updated(self) -> tuple[str, ...]:
        """The names of the arrays that are returned updated, after the normalized array."""
        given = tuple(name for name in self.spec.updates if name in self.arrays)
        return given if self.options.get("training") else ()

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Raise for wrong options and dtypes, as NumPy arrays without elements do."""
        empty = {name: np.zeros((0,) * array.ndim, array.dtype) for name, array in arrays.items()}
        if self.spec.family in ("windows", "decay"):
            names = parameters_of(self.spec.forward)
            options = {name: value for name, value in self.options.items() if name in names}
            if options.get("times") is not None:
                options["times"] = ()
            traced = {name: 1.0 for name in self.arrays if name in self.spec.parameters}
            self.spec.forward(**{**empty, **traced}, **options)
            return
        weighted_input(
            self.spec.counts,
            empty["x"],
            self.options[self.spec.axis],
            empty.get("where"),
            empty.get("weights"),
            self.options.get("nan_policy", "propagate"),
            self.options.get("fill"),
        )


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item()


@functools.partial(jax.jit, static_argnums=0)
def normalized_by_python(static: Pass, *arrays: Any) -> Any:
    """Return the normalized array, and what `Pass.updated` names."""
    return _norm(static, *varying_like(arrays, arrays))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(static: Pass, *arrays: Any) -> Any:
    return _split(static, _forward(static, *arrays))[0]


def _norm_forward(static: Pass, *arrays: Any) -> Any:
    normalized, saved = _split(static, once(functools.partial(_forward, static))(*arrays))
    return normalized, (saved, arrays)


def _norm_backward(static: Pass, kept: Any, gradients: Any) -> Any:
    saved, arrays = kept
    gradients = once(functools.partial(_backward, static))(gradients[0], *saved, *arrays)
    # For running statistics, and for what says which elements count.
    nothing = [None] * (len(arrays) - len(gradients))
    return *gradients, *nothing


def _split(static: Pass, results: Any) -> Any:
    """Return what `normalized_by_python` returns, and the saved statistics."""
    first = 1 + len(static.spec.saved)
    return (results[0], *results[first:]), results[1:first]


_norm.defvjp(_norm_forward, _norm_backward)


def _forward(static: Pass, *arrays: Any) -> Any:
    x = arrays[0]
    # JAX may have no float64: a number of it is two words.
    statistic = jax.ShapeDtypeStruct((*static.statistic_shape, 2), jnp.uint32)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype), *[statistic] * len(static.spec.saved)]
    moved = (a for n, a in zip(static.arrays, arrays, strict=True) if n in static.updated)
    results += [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in moved]

    @sequential_vmap
    def forward(*arrays: Any) -> Any:
        options = static.of(static.spec.forward)
        return tuple(
            call_python(
                forward_pass,
                results,
                *arrays,
                name=static.spec.name,
                names=static.arrays,
                keywords=options,
            )
        )

    return forward(*arrays)


def _backward(static: Pass, *arrays: Any) -> Any:
    saved = static.spec.saved
    own = arrays[1 + len(saved) :]
    learned = [a for n, a in zip(static.arrays, own, strict=True) if n in static.spec.parameters]
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (own[0], *learned)]

    @sequential_vmap
    def backward(*arrays: Any) -> Any:
        options = static.of(static.spec.backward)
        names = "dy", *saved, *static.arrays
        return tuple(
            call_python(
                backward_pass,
                results,
                *arrays,
                name=static.spec.name,
                names=names,
                keywords=options,
            )
        )

    return backward(*arrays)


def _keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return options as JSON gives them, with tuples in the place of lists."""
    return {n: tuple(v) if isinstance(v, list) else v for n, v in keywords.items()}


def forward_pass(
    arguments: list[Any], results: list[Any], name: str, names: list[str], keywords: dict[str, Any]
) -> None:
    """Store y, the saved statistics and the updated arrays."""
    spec, arrays = BY_NAME[name], dict(zip(names, arguments, strict=True))
    y, *others = results
    for updated, result in zip(spec.updates, others[len(spec.saved) :], strict=False):
        result[...] = arrays[updated]
        arrays[updated] = result
    if "statistics" in arrays:  # the mean and the variance of each label
        arrays["statistics"] = of_numbered_labels(*arrays["statistics"].view(np.float64)[..., 0])
    _, *saved = spec.forward(**arrays, **_keywords(keywords), out=y)
    for result, statistic in zip(others, saved, strict=False):
        # Of labels that are traced there may be fewer than samples.
        result.view(np.float64)[..., 0][tuple(map(slice, statistic.shape))] = statistic


def backward_pass(
    arguments: list[Any], results: list[Any], name: str, names: list[str], keywords: dict[str, Any]
) -> None:
    """Store dx and the gradients of the parameters."""
    spec = BY_NAME[name]
    arrays = dict(zip(names, arguments, strict=True))
    for statistic in spec.saved:
        arrays[statistic] = arrays[statistic].view(np.float64)[..., 0]
        if "labels" in arrays:
            arrays[statistic] = arrays[statistic][: len(np.unique(arrays["labels"]))]
    learned = [parameter for parameter in spec.parameters if parameter in arrays]
    taken = {n: a for n, a in arrays.items() if n in parameters_of(spec.backward)}
    gradients = spec.backward(**taken, **_keywords(keywords), out=results[0])
    if spec.parameters:
        by_name = dict(zip(spec.parameters, gradients[1:], strict=True))
        for result, parameter in zip(results[1:], learned, strict=True):
            result[...] = by_name[parameter]
