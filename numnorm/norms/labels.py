"""Batch norm and moments for each label of samples, such as a speaker or a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_shape
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.backends import backend_for
from numnorm.host_libraries import results_like, statistics_like
from numnorm.layouts import normalized_axes
from numnorm.norms.batch import batch_norm, batch_norm_backward, batch_norm_forward
from numnorm.norms.group_moments import GroupMoments, rows_of
from numnorm.norms.moments import Moments, batch_moments
from numnorm.norms.results import Gradients, Normalized


class _Groups(NamedTuple):
    """The samples of each label, along an axis of x."""

    result: Any
    x: Any
    axis: int
    labels: Any
    members: tuple[Any, ...]

    def parts(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[Any]:
        """Yield the result of a function for the samples of each label."""
        by_sample = {
            name: self._full(name, arguments.pop(name))
            for name in ("dy", "where", "weights")
            if arguments.get(name) is not None
        }
        for samples in self.members:
            own = {name: array.take(samples, self.axis) for name, array in by_sample.items()}
            yield function(**arguments, **own, x=self.x.take(samples, self.axis))

    def _full(self, name: str, value: Any) -> Any:
        """Return an argument in the shape of x."""
        array = as_plain_array(name, value)
        if name == "weights" and array.shape == (self.x.shape[self.axis],):
            array = array.reshape([-1 if a == self.axis else 1 for a in range(self.x.ndim)])
        if name == "dy":
            check_shape(name, array.shape, self.x.shape, "the shape of the input")
        return np.broadcast_to(array, self.x.shape)

    def together(self, parts: list[Any], out: Any) -> Any:
        """Return arrays of samples of each label as one array like x, in `out` if it is given."""
        whole = np.empty_like(self.x)
        for samples, part in zip(self.members, parts, strict=True):
            whole[(slice(None),) * self.axis + (samples,)] = part
        if out is None:
            return self.like(whole)
        out[...] = whole
        return out

    def total(self, parts: list[Any]) -> Any:
        """Return the sum of a gradient over the labels."""
        with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
            total = np.sum(parts, axis=0, dtype=np.float64).astype(parts[0].dtype)
        return self.like(total)

    def like(self, array: Any, *, statistic: bool = False) -> Any:
        """Return an array in the library of x."""
        if self.result is None:
            return array
        return statistics_like(self.result)(array) if statistic else self.result(array)


def _groups(arguments: dict[str, Any], groups: Any) -> _Groups:
    x = arguments.pop("x")
    if is_on_device(x):
        raise NotImplementedError("groups is not there on a device yet")
    result, (_, x) = results_like(x), backend_for(x, "x")
    channels = normalized_axes(arguments["channel_axis"], x.ndim, "channel_axis")
    others = [axis for axis in range(x.ndim) if axis not in channels]
    if not others:
        raise ValueError("x must have an axis of samples beside its channels with groups")
    given = _labels(groups)
    check_shape("groups", given.shape, (x.shape[others[0]],), "one label for each sample")
    if not given.size:
        raise ValueError("x must have at least 1 sample with groups, got 0")
    labels, inverse = np.unique(given, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(labels)))
    members = tuple(np.split(order, ends[:-1]))
    return _Groups(result, x, others[0], labels, members)


def _labels(groups: Any) -> Any:
    """Return labels as an array of one sortable type; raise if one is missing."""
    is_of_table = hasattr(groups, "to_numpy")  # a column of strings or categories
    given = np.asarray(groups) if is_of_table else as_plain_array("groups", groups)
    if given.dtype == object:  # None, NaN, and pandas' NA, which is not True even of itself
        missing = np.array(
            [bool(label is None or (label == label) is not True) for label in given.flat]
        )
    else:
        missing = (given != given).reshape(-1)
    if missing.any():
        label = given.flat[missing.argmax()]
        raise ValueError(f"groups must have a label for each sample, got {label}")
    kinds = sorted({type(label).__name__ for label in given.flat}) if given.dtype == object else []
    if len(kinds) > 1:
        raise TypeError(f"groups must have labels of one type, got {' and '.join(kinds)}")
    return given.astype(np.str_) if kinds == ["str"] else given


def by_group(function: Callable[..., Any], arguments: dict[str, Any], groups: Any) -> Any:
    """Return what a function of batch norm, or `batch_moments`, returns with groups."""
    if function is batch_moments:
        return _moments(arguments, groups)
    if function is batch_norm_backward:
        return _backward(arguments, groups)
    normalized = _forward(arguments, groups)
    return normalized.y if function is batch_norm else normalized


def _forward(arguments: dict[str, Any], groups: Any) -> Normalized[Any]:
    for name in ("running_mean", "running_var"):
        if arguments.get(name) is not None:
            raise ValueError(f"{name} must be None with groups, which have statistics of their own")
    stored = arguments.pop("statistics", None)
    split, out = _groups(arguments, groups), arguments.pop("out")
    statistics = repeat({}) if stored is None else _of_labels(stored, split, arguments)

    def of_label(**own: Any) -> Any:
        return batch_norm_forward(**{**own, **next(statistics)})

    parts = list(split.parts(of_label, arguments))
    y = split.together([part.y for part in parts], out)
    mean = split.like(np.stack([part.mean for part in parts]), statistic=True)
    return Normalized(y, mean, split.like(np.stack([part.rstd for part in parts]), statistic=True))


def _of_labels(stored: Any, split: _Groups, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the arguments of batch norm by the stored statistics of each label."""
    if not isinstance(stored, GroupMoments):
        got = type(stored).__name__
        raise TypeError(f"statistics must be GroupMoments, got an object of type {got}")
    moments = Moments(*(as_plain_array("statistics", field) for field in stored.moments))
    axes = normalized_axes(arguments["channel_axis"], split.x.ndim, "channel_axis")
    expected = (len(stored.labels), *(split.x.shape[axis] for axis in axes))
    check_shape("statistics", moments.mean.shape, expected, "one mean for each label and channel")
    rows, there = rows_of(stored, split.labels)
    if not there.all():
        label = split.labels[there.argmin()]
        raise ValueError(f"groups must have labels that statistics has, got {str(label)!r}")
    pairs = zip(moments.mean[rows], moments.variance()[rows], strict=True)
    return ({"running_mean": m, "running_var": v, "training": False} for m, v in pairs)


def _backward(arguments: dict[str, Any], groups: Any) -> Gradients[Any]:
    mean, rstd = (as_plain_array(name, arguments.pop(name)) for name in ("mean", "rstd"))
    split, out = _groups(arguments, groups), arguments.pop("out")
    for name, statistic in (("mean", mean), ("rstd", rstd)):
        expected = (len(split.labels), *statistic.shape[1:])
        check_shape(name, statistic.shape, expected, "one for each label and channel")
    statistics = iter(zip(mean, rstd, strict=True))

    def of_label(**own: Any) -> Any:
        own["mean"], own["rstd"] = next(statistics)
        return batch_norm_backward(**own)

    parts = list(split.parts(of_label, arguments))
    dx = split.together([part.dx for part in parts], out)
    return Gradients(dx, *(split.total([p[i] for p in parts]) for i in (1, 2)))


def _moments(arguments: dict[str, Any], groups: Any) -> GroupMoments:
    after = arguments.pop("after")
    split = _groups(arguments, groups)
    parts = list(split.parts(batch_moments, arguments))
    fields = []
    for field in Moments._fields:
        values = [np.broadcast_to(getattr(p, field), np.shape(p.mean)) for p in parts]
        fields.append(split.like(np.stack(values).astype(np.float64), statistic=True))
    now = GroupMoments(split.labels, Moments(*fields))
    if after is None:
        return now
    if not isinstance(after, GroupMoments):
        got = type(after).__name__
        raise TypeError(f"after must be GroupMoments with groups, got an object of type {got}")
    return after.merge(now)
