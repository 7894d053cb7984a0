"""The norms of ``apply``: the options of each, where arrays may be cut, and how a part is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numnorm
from numnorm import ExponentialState
from numnorm.commands.apply.boxes import Box, shape_of
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.apply.journal import Journal
from numnorm.commands.terminal import CommandError, one_line
from numnorm.derived import parameters_of
from numnorm.norms.declared import SPECS
from numnorm.norms.moving import steps_around
from numnorm.norms.spec import RUNNING_OPTIONS, NormSpec

STATISTICS = ("statistics", "save_statistics")
"""The options that name a file of statistics."""

_METHODS = {spec.name: spec for spec in SPECS if spec.name != "weight_norm"}


def _options_of(spec: NormSpec) -> tuple[str, ...]:
    """Return the keywords of a norm that ``apply`` supports."""
    of_elements = "x", "out", "where", "weights", "fill", "labels", "statistics", "times", "closed"
    left_out = (*of_elements, *spec.updates, *(RUNNING_OPTIONS if spec.updates else ()))
    names = tuple(name for name in parameters_of(spec.function) if name not in left_out)
    return (*names, *STATISTICS) if spec.family == "channels" else names


OPTIONS = {name: _options_of(spec) for name, spec in _METHODS.items()}
"""The options of each norm: the keywords that ``apply`` supports, and `STATISTICS`."""

NEEDED = {
    name: [
        option
        for option, parameter in parameters_of(spec.function).items()
        if parameter.default is parameter.empty and option != "x"
    ]
    for name, spec in _METHODS.items()
}
"""The options without a default."""

MOVING = tuple(n for n, spec in _METHODS.items() if spec.family in ("windows", "decay"))
"""The norms along one axis, in parts of which the results depend on the parts before."""

ARRAYS = {
    name
    for spec in SPECS
    for name in (*spec.parameters, *spec.constants)
    if not spec.broadcasts(name)
}
"""The options that are arrays in files."""

_VECTORS = ("gamma", "beta", "running_mean", "running_var")
"""The keywords with a number for each channel, for norms with channels."""


@dataclass(frozen=True)
class Job:
    """A norm with its options, for an array of a given shape.

    Parameters
    ----------
    method : str
        The name of the norm.
    options : dict
        The keywords of its call.
    shape : tuple of int
        The shape of the whole array, with at least one axis.
    """

    method: str
    options: dict[str, Any]
    shape: tuple[int, ...]

    @property
    def channel_axis(self) -> int | None:
        """The channel axis counted from the front, or None for a norm without channels."""
        if "channel_axis" not in OPTIONS[self.method]:
            return None
        return int(self.options.get("channel_axis", 1)) % len(self.shape)

    @property
    def time_axis(self) -> int | None:
        """The axis of the steps counted from the front, or None for a norm that does not move."""
        if self.method not in MOVING:
            return None
        return int(self.options.get("axis", -1)) % len(self.shape)

    @property
    def streams(self) -> bool:
        """Whether a part needs the state after the part before it."""
        return _METHODS[self.method].family == "decay"

    def cuttable_axes(self) -> list[tuple[int, int]]:
        """Return the axes along which the array can be normalized in parts.

        Returns
        -------
        list of (int, int)
            Each axis with a number: parts that begin at its multiples have whole groups, and the
            same results as in the whole array; for batch norm, with given statistics, and for
            moving norms, with what is before the part.
        """
        if _METHODS[self.method].family == "channels" or self.time_axis is not None:
            return [(axis, 1) for axis in range(len(self.shape))]
        if _METHODS[self.method].family == "groups" and self.channel_axis:
            channels = self.shape[self.channel_axis]
            groups = self.options.get("groups", channels)
            return [(0, 1), (self.channel_axis, max(1, channels // max(1, groups)))]
        return [(axis, 1) for axis in self._free_axes()]

    def needed(self, box: Box) -> Box:
        """Return the part of the array from which the result in a part of it follows.

        Parameters
        ----------
        box : Box
            The part of the result.

        Returns
        -------
        Box
            The part, and for moving windows the steps beside it.
        """
        axis = self.time_axis
        if axis is None:
            return box
        part = box[axis]
        steps = self.shape[axis]
        around = part.start, part.stop
        if _METHODS[self.method].family == "windows":
            center = self.options.get("center", False)
            around = steps_around(*around, steps, self.options["window"], center=center)
        elif part.start < self.options.get("initial", 0):
            around = 0, min(steps, max(part.stop, self.options["initial"]))
        return (*box[:axis], slice(*around), *box[axis + 1 :])

    def check(self, dtype: np.dtype[Any]) -> None:
        """Let the norm check its arguments, on an array without elements.

        Parameters
        ----------
        dtype : numpy.dtype
            The dtype of the array.

        Raises
        ------
        CommandError
            With the message of the norm.
        """
        free = self._free_axes() if self.time_axis is None else [0]
        if free:
            shape = list(self.shape)
            shape[free[0]] = 0
            self._call(np.empty(shape, dtype), self.options)
        # The norms take more axes, which parts of the channels do not cut.
        for name in _VECTORS if self.channel_axis is not None else ():
            if np.ndim(self.options.get(name, [1.0])) != 1:
                raise CommandError(f"{name} must have 1 axis, with a number for each channel")

    def normalize(self, x: Array, box: Box, out: Array) -> None:
        """Normalize one part.

        Parameters
        ----------
        x : ndarray
            The elements of the whole array in what `needed` returns for `box`.
        box : Box
            A part of the whole array, cut as `cuttable_axes` allows.
        out : ndarray
            Where the result goes.

        Raises
        ------
        CommandError
            With the message of the norm.
        """
        options = dict(self.options)
        channel = self.channel_axis
        if channel is not None and shape_of(box)[channel] < self.shape[channel]:
            part = box[channel]
            options.update({key: options[key][part] for key in _VECTORS if key in options})
            if "groups" in options:
                group = self.shape[channel] // options["groups"]
                options["groups"] = (part.stop - part.start) // group
        if x.shape == out.shape:
            self._call(x, options, out=out)
        else:
            out[...] = self._call(x, options)[self._own(box)]

    def step(self, x: Array, box: Box, state: Any, out: Array) -> Any:
        """Normalize the next part along time.

        Parameters
        ----------
        x, box
            As for `normalize`.
        state : ExponentialState or None
            What the call for the part before returned, None for the first one.
        out : ndarray
            Where the result goes.

        Returns
        -------
        ExponentialState
            For the next part.

        Raises
        ------
        CommandError
            With the message of the norm.
        """
        own = self._own(box)
        options = dict(self.options)
        initial = options.pop("initial", 0)
        after = self._call(x[own], options, "_step", state=state, out=out)[1]
        if box[self.time_axis or 0].start < initial:
            out[...] = self._call(x, self.options)[own]
        return after

    def _own(self, box: Box) -> tuple[slice, ...]:
        """Return where a part is in what `needed` returns for it."""
        return tuple(
            slice(part.start - around.start, part.stop - around.start)
            for part, around in zip(box, self.needed(box), strict=True)
        )

    def _free_axes(self) -> list[int]:
        """Return the axes that are neither normalized nor the axis of the channels."""
        axes = self.options.get("axis", -1) if self.channel_axis is None else self.channel_axis
        bound = {int(axis) % len(self.shape) for axis in np.atleast_1d(axes)}
        return [axis for axis in range(len(self.shape)) if axis not in bound]

    def _call(self, x: Array, options: dict[str, Any], kind: str = "", **more: Any) -> Any:
        try:
            return getattr(numnorm, self.method + kind)(x, **options, **more)
        except (ValueError, TypeError) as error:
            raise CommandError(one_line(error)) from error


class Stream:
    """A job whose boxes come in order, along time without others between them.

    Parameters
    ----------
    job : Job
        The norm with its options.
    journal : Journal
        It keeps the states for a later run.
    first : int
        The number of the first box that comes; a run before has written those before it.
    """

    def __init__(self, job: Job, journal: Journal, first: int) -> None:
        self.job = job
        self.journal = journal
        self.number = first
        self.state: ExponentialState | None = None

    def needed(self, box: Box) -> Box:
        """Return the part of the array from which the result in a part of it follows.

        Parameters
        ----------
        box : Box
            The part of the result.

        Returns
        -------
        Box
            As `Job.needed`.
        """
        return self.job.needed(box)

    def normalize(self, x: Array, box: Box, out: Array) -> None:
        """Normalize the next part, as `Job.normalize`.

        Parameters
        ----------
        x : ndarray
            The elements of the whole array in what `needed` returns for `box`.
        box : Box
            The part.
        out : ndarray
            Where the result goes.
        """
        if box[self.job.time_axis or 0].start == 0:
            self.state = None
        elif self.state is None:
            self.state = ExponentialState(**self.journal.load_state(self.number - 1))
        self.state = self.job.step(x, box, self.state, out)
        # Before the box is written: a run that goes on behind it finds the state.
        fields = {n: value for n, value in self.state._asdict().items() if value is not None}
        self.journal.save_state(self.number, fields)
        self.number += 1
