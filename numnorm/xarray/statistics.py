"""Moments of named channels: their fields are arrays of xarray."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self

import numpy as np
import xarray as xr

import numnorm
from numnorm.array_types import Integer
from numnorm.norms.labels import checked_labels
from numnorm.xarray.named_dims import Names, with_coordinates

LABEL = "label"
"""The dimension of labels that have no name."""


class Moments(numnorm.Moments):
    """`numnorm.Moments` of named channels: arrays of xarray with the coordinates of the channels.

    Attributes
    ----------
    count : int or DataArray
        The number of values in each channel; an array where some are missing or have weights.
    mean, m2, mean_lo : DataArray
        As in `numnorm.Moments`, with the dimensions of the channels.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 10.0], [3.0, 30.0]], {"band": ["r", "g"]}, ("sample", "band"))
    >>> moments = numnorm.xarray.batch_moments(x, channel_dim="band")
    >>> float(moments.std().sel(band="g"))
    10.0
    """

    __slots__ = ()

    def merge(self, other: numnorm.Moments) -> Moments:
        """Return the moments of both sets of values together, as `numnorm.Moments.merge`.

        Parameters
        ----------
        other : Moments
            Of the same channels, with the same coordinates.

        Returns
        -------
        Moments
        """
        merged = plain_moments("moments", self, self.mean).merge(
            plain_moments("other", other, self.mean)
        )
        return named_moments(merged, self.mean)

    def var(self, ddof: Integer = 0) -> Any:
        """Return the variance of each channel, as `numnorm.Moments.var`.

        Parameters
        ----------
        ddof : int, default 0
            The divisor is ``count - ddof``.

        Returns
        -------
        DataArray
        """
        variance = plain_moments("moments", self, self.mean).var(ddof)
        return self.mean.copy(data=variance).rename("var")

    def std(self, ddof: Integer = 0) -> Any:
        """Return the standard deviation of each channel, as `numnorm.Moments.std`.

        Parameters
        ----------
        ddof : int, default 0
            As for `var`.

        Returns
        -------
        DataArray
        """
        deviation = plain_moments("moments", self, self.mean).std(ddof)
        return self.mean.copy(data=deviation).rename("std")

    def to_dataset(self) -> xr.Dataset:
        """Return the fields as the variables of a Dataset, which xarray saves.

        Returns
        -------
        Dataset
        """
        return xr.Dataset(self._asdict())

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset) -> Self:
        """Return the moments that `to_dataset` made a Dataset, as xarray opens it.

        Parameters
        ----------
        dataset : Dataset
            With the variables ``count``, ``mean``, ``m2`` and ``mean_lo``.

        Returns
        -------
        Moments
        """
        if not isinstance(dataset, xr.Dataset):
            raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
        for name in cls._fields:
            if name not in dataset.data_vars:
                found = list(dataset.data_vars)
                raise ValueError(f"dataset must have the variable {name!r}, got {found}")
        count = dataset["count"]
        return cls(
            count if count.ndim else int(count), *(dataset[name] for name in cls._fields[1:])
        )


class GroupMoments(numnorm.GroupMoments):
    """`numnorm.GroupMoments` of named channels: a climatology, the statistics of each month.

    Attributes
    ----------
    labels : numpy.ndarray
        The labels, sorted, which are a coordinate of the moments, too.
    moments : Moments
        Its arrays have the dimension of the labels before those of the channels.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> month = xr.DataArray([1, 2, 1, 2], dims="time", name="month")
    >>> x = xr.DataArray([[1.0], [5.0], [3.0], [9.0]], dims=("time", "site"))
    >>> climate = numnorm.xarray.batch_moments(x, channel_dim="site", labels=month)
    >>> climate.moments.std().sel(month=2).values
    array([2.])
    >>> dict(climate.to_dataset().sizes)
    {'month': 2, 'site': 1}
    """

    __slots__ = ()

    moments: Moments

    @classmethod
    def from_moments(cls, moments: Mapping[Any, numnorm.Moments]) -> GroupMoments:
        """Return the moments of labels that were gathered one by one.

        Parameters
        ----------
        moments : mapping
            The `Moments` of each label, as for `numnorm.GroupMoments.from_moments`.

        Returns
        -------
        GroupMoments
            The labels are the dimension ``"label"``.
        """
        means = [own.mean for own in moments.values() if isinstance(own, Moments)]
        if len(means) < max(len(moments), 1):
            raise TypeError("moments must hold Moments of numnorm.xarray")
        plain = {label: plain_moments("moments", own, means[0]) for label, own in moments.items()}
        return named_groups(numnorm.GroupMoments.from_moments(plain), means[0], LABEL)

    def merge(self, other: numnorm.GroupMoments) -> GroupMoments:
        """Return the moments of all labels of both, as `numnorm.GroupMoments.merge`.

        Parameters
        ----------
        other : GroupMoments
            Of the same channels, with the same coordinates.

        Returns
        -------
        GroupMoments
        """
        mean = self.moments.mean
        channels = channels_of(mean, mean.dims[1:])
        own = plain_groups("moments", self, channels)
        merged = own.merge(plain_groups("other", other, channels))
        return named_groups(merged, channels, mean.dims[0])

    def total(self) -> Moments:
        """Return the moments of all samples, whatever their labels.

        Returns
        -------
        Moments
            With a count for each channel.
        """
        mean = self.moments.mean
        channels = channels_of(mean, mean.dims[1:])
        return named_moments(plain_groups("moments", self, channels).total(), channels)

    def to_dataset(self) -> xr.Dataset:
        """Return the moments as the variables of a Dataset, which xarray saves.

        Returns
        -------
        Dataset
        """
        return self.moments.to_dataset()

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset) -> Self:
        """Return the moments of labels that `to_dataset` made a Dataset, as xarray opens it.

        Parameters
        ----------
        dataset : Dataset
            With the variables ``count``, ``mean``, ``m2`` and ``mean_lo``; their first dimension
            is that of the labels.

        Returns
        -------
        GroupMoments
        """
        moments = Moments.from_dataset(dataset)
        if not moments.mean.ndim:
            raise ValueError("dataset must have the dimension of the labels, got no dimension")
        label = moments.mean.dims[0]
        if label not in dataset.coords:
            raise ValueError(f"dataset must have the labels as coordinate {label!r}, got none")
        return cls(checked_labels(dataset[label].values), moments)

    def _moments_of(self, row: Any) -> Moments:
        return Moments(*super()._moments_of(row))


# With names and without


def channels_of(x: xr.DataArray, channels: Names) -> xr.DataArray:
    """Return an array of channels with their coordinates, but of no data."""
    others = [dim for dim in x.dims if dim not in channels]
    coordinates = x.coords.to_dataset().drop_dims(others, errors="ignore").coords
    shape = tuple(x.sizes[dim] for dim in channels)
    return xr.DataArray(np.broadcast_to(0.0, shape), coordinates, channels)


def named_moments(moments: numnorm.Moments, channels: xr.DataArray) -> Moments:
    """Return moments, whose arrays have the axes of some channels, as arrays of xarray."""
    fields = moments._asdict().items()
    return Moments(
        **{
            name: channels.copy(data=field).rename(name) if np.ndim(field) else field
            for name, field in fields
        }
    )


def named_groups(
    groups: numnorm.GroupMoments, channels: xr.DataArray, label: Hashable
) -> GroupMoments:
    """Return moments of labels as `named_moments` does; they lie along the dimension `label`."""
    if label in channels.coords or label in channels.dims:
        label = LABEL
    each = channels.expand_dims({label: groups.labels})
    return GroupMoments(groups.labels, named_moments(groups.moments, each))


def plain_moments(name: str, moments: Any, channels: xr.DataArray) -> Any:
    """Return moments with the axes of some channels; other objects stay as they are.

    Raise if arrays of xarray have other dimensions or coordinates.
    """
    if not isinstance(moments, numnorm.Moments):
        return moments
    fields = (_plain(f"{name}.{f}", a, channels, ()) for f, a in moments._asdict().items())
    return numnorm.Moments(*fields)


def plain_groups(name: str, groups: Any, channels: xr.DataArray) -> Any:
    """Return moments of labels with the axes of some channels, as `plain_moments` does."""
    if not isinstance(groups, numnorm.GroupMoments):
        return groups
    mean = groups.moments.mean
    label = mean.dims[:1] if isinstance(mean, xr.DataArray) else ()
    fields = (
        _plain(f"{name}.{f}", a, channels, label) for f, a in groups.moments._asdict().items()
    )
    return numnorm.GroupMoments(groups.labels, numnorm.Moments(*fields))


def _plain(name: str, field: Any, channels: xr.DataArray, first: Names) -> Any:
    """Return a field without names, with the axes of channels behind the first one."""
    if not isinstance(field, xr.DataArray):
        return field
    with_coordinates(name, field.isel(dict.fromkeys(first, slice(0, 0))), channels, first)
    dims = [*first, *(dim for dim in channels.dims if dim in field.dims)]
    return field.variable.transpose(*dims).data
