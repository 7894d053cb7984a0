"""Tests of every norm: its result against a float64 definition, its gradient numerically."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm.commands.terminal import one_line
from numnorm.derived import parameters_of

Array = np.ndarray[Any, np.dtype[Any]]

_EPS = 1e-5
_STEP = 2.0**-10
_GROUPS = 3
_WINDOW = 5
_ORDERED = 4  # within a numerical derivative's step no values of such a window change their order
_ALPHA = 0.3
_INITIAL = 6

TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
"""The largest errors that pass; the values are of the order of 1."""


@dataclass(frozen=True)
class Case:
    """A norm, its arguments, and its definition.

    Parameters
    ----------
    name : str
        The name of the norm.
    definition : callable
        Returns its result in float64, from x and the other differentiated arrays.
    shapes : tuple of tuple of int
        The shapes of these arrays.
    options : dict
        The keywords of the call.
    constant : callable, optional
        Computes the last argument of the definition from x, a constant for the gradient.
    """

    name: str
    definition: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)
    constant: Callable[[Array], Array] | None = None


class Outcome(NamedTuple):
    """The outcome of a test.

    Attributes
    ----------
    name : str
        The name of the test.
    passed : bool
        Whether it passed.
    details : str
        The errors that it measured, or the exception.
    """

    name: str
    passed: bool
    details: str


def run(dtype: str) -> Iterator[Outcome]:
    """Test every norm, forward and backward, and a parallel kernel.

    Parameters
    ----------
    dtype : str
        The dtype of the arrays, one of `TOLERANCES`.

    Yields
    ------
    Outcome
        For each test in turn.
    """
    for case in cases():
        yield _outcome(case.name, functools.partial(_accuracy, case, dtype))
    yield _outcome("threads", functools.partial(_same_bits, dtype))


def _outcome(name: str, test: Callable[[], tuple[bool, str]]) -> Outcome:
    try:
        return Outcome(name, *test())
    except Exception as error:
        # An exception is a result of the test and must not end the report.
        return Outcome(name, False, f"{type(error).__name__}: {one_line(error)}")


def _accuracy(case: Case, dtype: str) -> tuple[bool, str]:
    forward, backward = _errors(case, dtype)
    # `<=` rather than `not >`: a NaN must fail.
    passed = forward <= TOLERANCES[dtype] and backward <= TOLERANCES[dtype]
    return passed, f"largest error forward {forward:.0e}, backward {backward:.0e}"


def _same_bits(dtype: str) -> tuple[bool, str]:
    """Compare a call that runs in several threads with calls on single rows."""
    x = np.random.default_rng(1).normal(size=(64, 1024)).astype(dtype)
    together = numnorm.layer_norm(x)
    passed = all(
        np.array_equal(numnorm.layer_norm(row), y) for row, y in zip(x, together, strict=True)
    )
    return passed, "as one thread, to the bit" if passed else "not the bits of one thread"


def cases() -> list[Case]:
    """Return the norms, each with small arrays whose rows end within a vector."""
    row = (5, 19)
    vector = (19,)
    image = (4, 6, 7)
    channel = (6,)
    return [
        Case("layer_norm", _layer, (row, vector, vector), {"eps": _EPS}),
        Case("rms_norm", _rms, (row, vector), {"eps": _EPS}),
        Case("ada_norm", _ada, (row,), {"eps": _EPS}, constant=_ada_factor),
        Case("batch_norm", _batch, (image, channel, channel), {"eps": _EPS}),
        Case("group_norm", _group, (image, channel, channel), {"eps": _EPS, "groups": _GROUPS}),
        Case("instance_norm", _instance, (image, channel, channel), {"eps": _EPS}),
        Case("weight_norm", _weight, (row, (5,))),
        Case("robust_norm", _robust, (row,), {"eps": 1.0}),
        Case("moving_norm", _moving, (row,), {"eps": 1.0, "window": _WINDOW}),
        Case("moving_robust_norm", _moving_robust, (row,), {"eps": 1.0, "window": _ORDERED}),
        Case("exponential_norm", _exponential, (row,), {"alpha": _ALPHA, "initial": _INITIAL}),
    ]


def _errors(case: Case, dtype: str) -> tuple[float, float]:
    """Return the largest errors of the forward and of the backward pass."""
    rng = np.random.default_rng(1)
    inputs = [(1 + rng.normal(size=shape)).astype(dtype) for shape in case.shapes]
    dy = rng.normal(size=case.shapes[0]).astype(dtype)
    result, *saved = getattr(numnorm, f"{case.name}_forward")(*inputs, **case.options)
    plain = getattr(numnorm, case.name)(*inputs, **case.options)
    backward = getattr(numnorm, f"{case.name}_backward")
    # The backward pass does not need beta, nor an eps that is part of the saved statistics.
    taken = parameters_of(backward)
    options = {key: value for key, value in case.options.items() if key in taken}
    gradients = backward(dy, inputs[0], *saved, *inputs[1:2], **options)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    exact = [value.astype(np.float64) for value in inputs]
    constant = [case.constant(exact[0])] if case.constant else []
    expected = case.definition(*exact, *constant)
    expected_gradients = differentiate(case.definition, exact, constant, dy.astype(np.float64))
    return (
        _largest([result - expected, plain - expected]),
        _largest(map(np.subtract, gradients, expected_gradients)),
    )


def _largest(differences: Iterable[Array]) -> float:
    # NumPy's maximum is NaN if anything is, Python's need not be.
    return float(np.max([np.max(np.abs(difference)) for difference in differences]))


def differentiate(
    function: Callable[..., Array], inputs: list[Array], constant: list[Array], weights: Array
) -> list[Array]:
    """Return the gradients of the weighted sum of a function's result, by central differences.

    Parameters
    ----------
    function : callable
        The function of all inputs and constants.
    inputs : list of ndarray
        The point at which to differentiate; float64.
    constant : list of ndarray
        More arguments, which are constants.
    weights : ndarray
        The weights of the sum.

    Returns
    -------
    list of ndarray
        A gradient for each input. Its error is of fourth order in the step.
    """
    gradients = [np.empty_like(array) for array in inputs]
    for array, gradient in zip(inputs, gradients, strict=True):
        for index in np.ndindex(array.shape):
            centre = array[index]
            sums = {}
            for count in (-2, -1, 1, 2):
                array[index] = centre + count * _STEP
                sums[count] = np.sum(weights * function(*inputs, *constant))
            array[index] = centre
            difference = 8 * (sums[1] - sums[-1]) - (sums[2] - sums[-2])
            gradient[index] = difference / (12 * _STEP)
    return gradients


def _standardize(x: Array, axes: tuple[int, ...]) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    result: Array = centred / np.sqrt(np.mean(centred**2, axes, keepdims=True) + _EPS)
    return result


def _layer(x: Array, gamma: Array, beta: Array) -> Array:
    return gamma * _standardize(x, (1,)) + beta


def _rms(x: Array, gamma: Array) -> Array:
    result: Array = gamma * x / np.sqrt(np.mean(x**2, 1, keepdims=True) + _EPS)
    return result


def _ada_factor(x: Array) -> Array:
    return 1 - 0.1 * _standardize(x, (1,))


def _ada(x: Array, factor: Array) -> Array:
    return factor * _standardize(x, (1,))


def _batch(x: Array, gamma: Array, beta: Array) -> Array:
    return gamma[:, None] * _standardize(x, (0, 2)) + beta[:, None]


def _group(x: Array, gamma: Array, beta: Array) -> Array:
    normalized = _standardize(x.reshape(len(x), _GROUPS, -1), (2,)).reshape(x.shape)
    return gamma[:, None] * normalized + beta[:, None]


def _instance(x: Array, gamma: Array, beta: Array) -> Array:
    return gamma[:, None] * _standardize(x, (2,)) + beta[:, None]


def _weight(v: Array, g: Array) -> Array:
    result: Array = (g / np.sqrt(np.sum(v**2, 1)))[:, None] * v
    return result


def _moving(x: Array) -> Array:
    # An epsilon of 1, as numerical derivatives by the deviation of two values are not exact enough.
    windows = [x[:, max(0, end - _WINDOW) : end] for end in range(1, x.shape[1] + 1)]
    means = np.stack([values.mean(1) for values in windows], axis=1)
    variances = np.stack([values.var(1) for values in windows], axis=1)
    result: Array = (x - means) / np.sqrt(variances + 1.0)
    return result


def _robust(x: Array) -> Array:
    deviations = x - np.median(x, axis=1, keepdims=True)
    result: Array = deviations / (np.median(np.abs(deviations), axis=1, keepdims=True) + 1.0)
    return result


def _moving_robust(x: Array) -> Array:
    ends = range(1, x.shape[1] + 1)
    windows = [x[:, max(0, end - _ORDERED) : end] for end in ends]
    return np.stack([_robust(values)[:, -1] for values in windows], axis=1)


def _exponential(x: Array) -> Array:
    means = np.zeros_like(x)
    squares = np.zeros_like(x)
    for step in range(x.shape[1]):
        weights = (1 - _ALPHA) ** np.arange(step, -1, -1)
        weights /= weights.sum()
        means[:, step] = x[:, : step + 1] @ weights
        squares[:, step] = (x - means)[:, : step + 1] ** 2 @ weights
    first = x[:, :_INITIAL]
    means[:, :_INITIAL] = first.mean(1, keepdims=True)
    squares[:, :_INITIAL] = first.var(1, keepdims=True)
    result: Array = (x - means) / np.sqrt(squares)
    return result
