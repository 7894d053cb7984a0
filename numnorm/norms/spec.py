"""The declaration of a norm, from which every place in which numnorm offers it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.layouts import RowLayout
from numnorm.norms.weighted import Shared

Family = Literal["rows", "groups", "channels", "windows", "decay"]
"""How elements share statistics.

rows
    Along the axes `axis`.
groups
    Along all axes but the first one, and that of the channels, `channel_axis`, in groups.
channels
    Along all axes but those of the channels, `channel_axis`.
windows
    Along `axis`, each step with the steps of a window.
decay
    Along `axis`, each step with all steps before it. `NormSpec.step` takes chunks in order.
"""

Along = Literal["normalized", "others", "channels", "elements", "number"]
"""The axes of a parameter: of a row, of all rows, or of the channels.

elements
    A number, or an array that broadcasts against x.
number
    A number, or an array of one number.
"""

COUNTING = ("where", "weights", "nan_policy", "fill", "labels", "statistics")
"""The keywords that say which elements count in which statistics, and how much."""

RUNNING_OPTIONS = ("training", "momentum", "batches", "convention", "unbiased")
"""The options of norms with running statistics that are about these."""


class RowCall(NamedTuple):
    """What the backend of a norm of rows is handed, made of the options of a call.

    Attributes
    ----------
    layout : RowLayout
    scaling : Scaling
    detached : Detached
    factors : tuple of float or None
        The numbers in the place of gain and bias, and the second one for the backward pass.
    """

    layout: RowLayout
    scaling: Scaling
    detached: Detached = Detached()
    factors: tuple[float, float, float] | None = None


class Example(NamedTuple):
    """An example for the docstrings of a norm, with results that print the same in every dtype.

    Attributes
    ----------
    x : str
        A list of numbers.
    options : str
        The arguments after x, without axes.
    y, dx : str
        What `print` shows of y, and of the gradient of its last element, rounded to 4 digits.
    """

    x: str
    options: str
    y: str
    dx: str


class NormSpec(NamedTuple):
    """All that a place needs to know about a norm beyond the signatures of its functions.

    Attributes
    ----------
    function, forward, backward : callable
        The public functions.
    family : Family
    counts : callable
        How weights lie along the axes of x: one of the functions in `weighted.py`.
    example : Example
    parameters : mapping
        The arrays beside x that the norm learns, and the axes of each.
    norm : Norm, optional
        What the kernels of a norm of rows compute.
    row_call : callable, optional
        ``row_call(shape, **options)`` gives the `RowCall` of a norm of rows.
    step : callable, optional
        The public function for one chunk of a stream.
    updates : tuple of str
        The arrays that a call in training updates in place.
    """

    function: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    family: Family
    counts: Callable[[Any, int], Shared]
    example: Example
    parameters: Mapping[str, Along] = {}
    norm: Norm | None = None
    row_call: Callable[..., RowCall] | None = None
    step: Callable[..., Any] | None = None
    updates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the public function."""
        return self.function.__name__

    @property
    def axis(self) -> str:
        """The name of the argument with the axes."""
        return "channel_axis" if self.family in ("groups", "channels") else "axis"

    @property
    def saved(self) -> tuple[str, ...]:
        """The statistics that the forward pass saves for the backward pass."""
        names = list(inspect.signature(self.backward).parameters)
        return tuple(n for n in names[2:] if n in ("mean", "rstd", "norm"))

    def broadcasts(self, name: str) -> bool:
        """Return whether a parameter is a number, or broadcasts against x as `where` does."""
        return self.parameters.get(name) in ("elements", "number")

    def is_backward(self, function: Callable[..., Any]) -> bool:
        """Return whether a function is the backward pass."""
        return function is self.backward

    def arrays_of(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Return the names of the arrays that a public function takes, without those it updates."""
        if not self.is_backward(function):
            return "x", *self.parameters
        taken = inspect.signature(function).parameters
        return "dy", "x", *self.saved, *(name for name in self.parameters if name in taken)
