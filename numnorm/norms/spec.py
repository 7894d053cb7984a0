"""The declaration of a norm, from which every place in which numnorm offers it is made."""

from __future__ import annotations

import ast
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
"""The axes of a parameter: those of `axis`, all but those, or those of the channels.

elements
    A number, or an array that broadcasts against x.
number
    A number, or an array of one number.
"""

COUNTING = ("where", "weights", "nan_policy", "fill", "labels", "statistics")
"""The keywords that say which elements count in which statistics, and how much."""

RUNNING_OPTIONS = ("training", "momentum", "batches", "convention", "unbiased")
"""The options of norms with running statistics that are about these."""


def taken_counting(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the keywords of `COUNTING` out of arguments; return those that are not their default."""
    taken = {name: arguments.pop(name) for name in COUNTING if name in arguments}
    policy = taken.get("nan_policy")
    if isinstance(policy, str) and policy == "propagate":
        del taken["nan_policy"]
    return {name: value for name, value in taken.items() if value is not None}


class RowCall(NamedTuple):
    """What the backend of a norm of rows is handed, made of the options of a call.

    Attributes
    ----------
    layout : RowLayout
    scaling : Scaling
    detached : Detached
    factors : tuple of float or None
        Of AdaNorm alone: its scale, its k, and the k of the backward pass, 2k if the gradient
        flows through the factor.
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
    constants : mapping
        The arrays beside x without a gradient.
    norm : Norm, optional
        What the kernels of a norm of rows compute.
    row_call : callable, optional
        ``row_call(shape, **options)`` checks the options and gives the `RowCall` of a norm of rows
        or groups; each of them has one, also without kernels.
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
    constants: Mapping[str, Along] = {}
    norm: Norm | None = None
    row_call: Callable[..., RowCall] | None = None
    step: Callable[..., Any] | None = None
    updates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the public function."""
        return self.function.__name__

    @property
    def example_arguments(self) -> dict[str, Any]:
        """The arguments of the example after x, by name."""
        call: Any = ast.parse(f"f({self.example.options})", mode="eval").body
        names = list(inspect.signature(self.function).parameters)[1:]
        arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
        return arguments | {each.arg: ast.literal_eval(each.value) for each in call.keywords}

    @property
    def axis(self) -> str:
        """The name of the argument with the axes."""
        return "channel_axis" if self.family in ("groups", "channels") else "axis"

    @property
    def saved(self) -> tuple[str, ...]:
        """The statistics that the forward pass saves for the backward pass.

        They are the positional arguments of the backward function after dy and x that the public
        function lacks.
        """
        parameters = inspect.signature(self.backward).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        own = inspect.signature(self.function).parameters
        return tuple(name for name in positional[2:] if name not in own)

    @property
    def only_backward(self) -> dict[str, inspect.Parameter]:
        """The options that the backward pass alone has, such as what it detaches."""
        known = {*inspect.signature(self.function).parameters, *self.arrays_of(self.backward)}
        parameters = inspect.signature(self.backward).parameters
        return {name: p for name, p in parameters.items() if name not in known}

    def broadcasts(self, name: str) -> bool:
        """Return whether a parameter is a number, or broadcasts against x as `where` does."""
        return self.parameters.get(name) in ("elements", "number")

    def is_backward(self, function: Callable[..., Any]) -> bool:
        """Return whether a function is the backward pass."""
        return function is self.backward

    def arrays_of(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Return the names of the arrays that a public function takes, without those it updates."""
        if not self.is_backward(function):
            return "x", *self.parameters, *self.constants
        taken = inspect.signature(function).parameters
        own = (name for name in (*self.parameters, *self.constants) if name in taken)
        return "dy", "x", *self.saved, *own
