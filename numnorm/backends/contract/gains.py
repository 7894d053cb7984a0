"""Gamma and beta that broadcast against x, such as one gain for each sample: what they are.

A backend applies them outside its kernels, which take a parameter for each channel or each element
of a row. Such a parameter has as many axes as x: with fewer, a shape that is a mistake (the shape
of other axes, or a number meant for another argument) would often broadcast, too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.arguments import Shape, broadcasts, check_parameter_shape
from numnorm.backends.contract.norms import Norm
from numnorm.layouts import ColumnLayout, RowLayout


class Parameter(NamedTuple):
    """A parameter of a norm, the shape that kernels take, and what that shape is.

    `array` has a shape; it is None for a parameter that is not given.
    """

    name: str
    array: Any
    usual: Shape
    meaning: str

    def is_broadcast(self, shape: Shape) -> bool:
        """Return whether it broadcasts against x of a given shape, without the usual shape."""
        return self.array is not None and broadcasts(tuple(self.array.shape), self.usual, shape)

    def check_usual(self, shape: Shape) -> None:
        """Raise unless it has the usual shape, for x of a given shape."""
        check_parameter_shape(self.name, tuple(self.array.shape), self.usual, self.meaning, shape)


def is_gain(shape: Shape, of_x: Shape, channels: Shape) -> bool:
    """Return whether a gain of several channel axes broadcasts, without the usual shape."""
    fits = len(shape) == len(of_x) and all(
        n in (1, most) for n, most in zip(shape, of_x, strict=True)
    )
    return fits and shape != channels


AsArray = Callable[[str, Any], Any]
"""A function of a name and the caller's parameter, which returns an array with a shape."""


def parameters_of_rows(
    norm: Norm, gamma: Any, beta: Any, layout: RowLayout, as_array: AsArray
) -> list[Parameter]:
    """Return the parameters of a norm of rows; none for a norm without."""
    if not norm.parameters:
        return []
    given = (norm.names.gamma, gamma), ("beta", beta)
    return _parameters(given, layout.parameter_shape, layout.parameter_meaning, as_array)


def parameters_of_channels(
    gamma: Any, beta: Any, layout: ColumnLayout, as_array: AsArray
) -> list[Parameter]:
    """Return the parameters of batch norm."""
    given = ("gamma", gamma), ("beta", beta)
    return _parameters(given, (layout.channels,), "the channels of x", as_array)


def _parameters(
    given: tuple[tuple[str, Any], ...], usual: Shape, meaning: str, as_array: AsArray
) -> list[Parameter]:
    return [
        Parameter(name, None if value is None else as_array(name, value), usual, meaning)
        for name, value in given
    ]


def check_any(parameters: list[Parameter], shape: Shape, error: ValueError) -> None:
    """Raise the error of a kernel's caller unless a parameter broadcasts against x."""
    if not any(parameter.is_broadcast(shape) for parameter in parameters):
        for parameter in parameters:
            if parameter.array is not None:
                parameter.check_usual(shape)
        raise error


def check_all(parameters: list[Parameter], shape: Shape, error: ValueError) -> None:
    """Raise unless a parameter broadcasts against x, and all others have their usual shape."""
    check_any(parameters, shape, error)
    for parameter in parameters:
        if parameter.array is not None and not parameter.is_broadcast(shape):
            parameter.check_usual(shape)
