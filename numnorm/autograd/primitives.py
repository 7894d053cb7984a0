"""Primitives of autograd, made of a forward and a backward function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive
from autograd.tracer import getval, isbox

_LIMIT = "numnorm.autograd: first derivatives in reverse mode only"


class Differentiable:
    """A function of arrays with a gradient, from two functions that share what is saved.

    Parameters
    ----------
    forward : callable
        Takes the arrays and the options, and returns the result and an object to be saved.
    backward : callable
        Takes the gradient of the result, the saved object, the arrays and the options, and returns
        a gradient for each array; None stands for 0.
    """

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        self._backward = backward

        # Autograd would have to differentiate saved arrays if they were a part of the result.
        def result(*arrays: Any, saved: list[Any], options: Mapping[str, Any]) -> Any:
            value, kept = forward(*arrays, **options)
            saved.append(kept)
            return value

        result.__name__ = forward.__name__
        self._result = primitive(result)
        self._gradients = primitive(self._chosen_gradients)
        defvjp_argnums(self._result, self._vjp)
        defjvp_argnums(self._result, _no_forward_mode)
        defvjp_argnums(self._gradients, lambda *_: _no_second_derivative)
        defjvp_argnums(self._gradients, _no_second_derivative)

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """Return the result; the options are constants."""
        for name, value in options.items():
            if isbox(value):
                raise TypeError(f"{name} must be a constant: autograd does not differentiate it")
        for array in arrays:
            if isbox(array) and isinstance(getval(array), list | tuple | dict):
                kind = type(getval(array)).__name__
                raise TypeError(f"arguments must be arrays to be differentiated, got a {kind}")
        return self._result(*arrays, saved=[], options=options)

    def _vjp(
        self, wanted: Sequence[int], value: Any, arrays: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Callable[[Any], tuple[Any, ...]]:
        saved, options = keywords["saved"][0], keywords["options"]

        def vjp(gradient: Any) -> tuple[Any, ...]:
            found = self._gradients(gradient, *arrays, wanted=wanted, saved=saved, options=options)
            return tuple(found[i] for i in range(len(wanted)))

        return vjp

    def _chosen_gradients(
        self,
        gradient: Any,
        *arrays: Any,
        wanted: Sequence[int],
        saved: Any,
        options: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        every = self._backward(gradient, saved, *arrays, **options)
        return tuple(_in_space_of(arrays[i], every[i]) for i in wanted)


def _in_space_of(array: Any, gradient: Any) -> Any:
    """Return a gradient in the float dtype of its array, as autograd adds gradients up."""
    if gradient is None:
        return np.zeros_like(array)
    dtype = np.result_type(array)  # a number has none
    with np.errstate(all="ignore"):  # it may leave the range of the dtype
        return gradient if dtype.kind in "biu" else gradient.astype(dtype, copy=False)


def _no_forward_mode(*_: Any) -> NoReturn:
    raise NotImplementedError(f"{_LIMIT}, got a derivative in forward mode")


def _no_second_derivative(*_: Any) -> NoReturn:
    raise NotImplementedError(f"{_LIMIT}, got a second derivative")
