"""The norms of ``apply``: the options of each, and where its array may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numnorm
from numnorm.commands.apply.blocks import Box, lengths
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.errors import CommandError, one_line

STATISTICS = ("statistics", "save_statistics")
"""The options that name a file of statistics."""

OPTIONS = {
    "layer_norm": ("gamma", "beta", "axis", "eps"),
    "rms_norm": ("gamma", "axis", "eps"),
    "ada_norm": ("axis", "scale", "k", "eps", "eps_in", "ddof"),
    "batch_norm": ("gamma", "beta", "channel_axis", "eps", *STATISTICS),
    "group_norm": ("gamma", "beta", "groups", "channel_axis", "eps"),
    "instance_norm": ("gamma", "beta", "channel_axis", "eps"),
}
"""The options of each norm: the keywords that ``apply`` supports, and `STATISTICS`."""

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

    def cuttable(self) -> list[tuple[int, int]]:
        """Return the axes along which the array can be normalized in parts.

        Returns
        -------
        list of (int, int)
            Each axis with a number: parts that begin at its multiples have whole groups, and the
            same results as in the whole array; for batch norm, with given statistics.
        """
        if self.method == "batch_norm":
            return [(axis, 1) for axis in range(len(self.shape))]
        if self.method in ("group_norm", "instance_norm") and self.channel_axis:
            channels = self.shape[self.channel_axis]
            groups = self.options.get("groups", channels)
            return [(0, 1), (self.channel_axis, max(1, channels // max(1, groups)))]
        return [(axis, 1) for axis in self._free_axes()]

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
        free = self._free_axes()
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
            The elements of the whole array in `box`.
        box : Box
            A part of the whole array, cut as `cuttable` allows.
        out : ndarray
            Where the result goes.

        Raises
        ------
        CommandError
            With the message of the norm.
        """
        options = dict(self.options)
        channel = self.channel_axis
        if channel is not None and lengths(box)[channel] < self.shape[channel]:
            part = box[channel]
            options.update({key: options[key][part] for key in _VECTORS if key in options})
            if "groups" in options:
                group = self.shape[channel] // options["groups"]
                options["groups"] = (part.stop - part.start) // group
        self._call(x, options, out=out)

    def _free_axes(self) -> list[int]:
        """Return the axes that are neither normalized nor the axis of the channels."""
        axes = self.options.get("axis", -1) if self.channel_axis is None else self.channel_axis
        bound = {int(axis) % len(self.shape) for axis in np.atleast_1d(axes)}
        return [axis for axis in range(len(self.shape)) if axis not in bound]

    def _call(self, x: Array, options: dict[str, Any], **more: Array) -> None:
        try:
            getattr(numnorm, self.method)(x, **options, **more)
        except (ValueError, TypeError) as error:
            raise CommandError(one_line(error)) from error
