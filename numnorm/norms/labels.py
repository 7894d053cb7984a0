"""Batch norm and moments for each label of samples, such as a speaker or a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, check_flag, check_shape
from numnorm.array_likes import (
    as_plain_array,
    changes_other_elements,
    check_out,
    is_on_device,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.backends import backend_for
from numnorm.layouts import normalized_axes
from numnorm.norms.moments import GroupMoments, Moments, merged_after, rows_of
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.weighted import checked_counting, of_channels

# Arguments that are as long as x along the axis of samples, or broadcast there. Gamma and beta do
# so with as many axes as x.
_BY_SAMPLE = ("x", "dy", "where", "weights", "gamma", "beta")

# So many bytes of x are taken at a time where the statistics do not depend on x.
_PIECE = 1 << 21


class _Parts(NamedTuple):
    """The samples of each label, along an axis of x."""

    result: Any
    x: Any
    axis: int
    labels: Any
    members: tuple[Any, ...]

    @property
    def array(self) -> Any:
        """The array x."""
        return self.x

    def pieces(self, samples: Any) -> list[Any]:
        """Return samples in pieces, of which copies are small."""
        most = max(1, _PIECE * self.x.shape[self.axis] // max(self.x.nbytes, 1))
        return [samples[first : first + most] for first in range(0, len(samples), most)]

    def taken(self, array: Any, samples: Any, axis: int) -> Any:
        """Return a copy of a part of an array."""
        return array.take(samples, axis)

    def own(self, name: str, value: Any) -> Any:
        """Return an argument as an array of NumPy."""
        return as_plain_array(name, value)

    def place(self, x: Any) -> Any:
        """Return where a function may write the result of a part x."""
        return x

    def output(self, out: Any, arguments: dict[str, Any]) -> Any:
        """Return where to write results: in `out`, unless that would change later arguments."""
        if out is None:
            return np.empty_like(self.x)
        view = writable_view("out", out)
        check_out(view, self.x, "x")
        inputs = [array for array in arguments.values() if isinstance(array, np.ndarray)]
        clash = any(changes_other_elements(view, array) for array in inputs)
        return np.empty_like(self.x) if clash else view

    def write(self, whole: Any, samples: Any, part: Any) -> None:
        """Write the result of a part."""
        whole[(slice(None),) * self.axis + (samples,)] = part

    def result_in(self, whole: Any, out: Any) -> Any:
        """Return what `output` returned, of which all is written, as the caller gets it."""
        if out is None:
            return self.like(whole)
        view = writable_view("out", out)
        if not np.may_share_memory(whole, view):
            view[...] = whole
        return out

    def joined(self, parts: list[Any]) -> Any:
        """Return the parts in one array, in the order of the samples."""
        order = np.argsort(np.concatenate(self.members))
        return self.like(np.concatenate(parts, self.axis).take(order, self.axis))

    def total(self, parts: list[Any]) -> Any:
        """Return the sum of a gradient over the labels."""
        with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
            total = np.sum(parts, axis=0, dtype=np.float64).astype(parts[0].dtype)
        return self.like(total)

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Return statistics of each label in one array."""
        array = np.stack(arrays)
        return array if self.result is None else statistics_like(self.result)(array)

    def reshaped(self, array: Any, shape: Shape) -> Any:
        """Return an array in another shape."""
        return array.reshape(shape)

    def on_device(self, array: Any) -> Any:
        """Return a statistic where x is."""
        return array

    def like(self, array: Any) -> Any:
        """Return an array in the library of x."""
        return array if self.result is None else self.result(array)


def _parts(arguments: dict[str, Any]) -> Any:
    """Return the samples of each label: `_Parts`, or on a device an object like it."""
    given = arguments["x"]
    backend: Any
    backend, x = backend_for(given, "x")
    labels = checked_labels(arguments.pop("labels"))
    axis = axis_of_samples(labels.shape, x.shape, arguments["channel_axis"])
    if type(given) is not np.ndarray and is_on_device(given):
        return backend.DeviceLabelParts(x, axis, *members_of(labels))
    return _Parts(results_like(given), x, axis, *members_of(labels))


def _each(
    split: Any, arguments: dict[str, Any], members: Sequence[Any] | None = None
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the samples of each label, or of other members, and a function's arguments for them."""
    names = [name for name in _BY_SAMPLE if arguments.get(name) is not None]
    for samples in split.members if members is None else members:
        own = {name: _taken(split, arguments[name], samples) for name in names}
        yield samples, arguments | own
        del own  # before the next part is taken


def _taken(split: Any, array: Any, samples: Any) -> Any:
    """Return a copy of a part of an array, or the array itself if it broadcasts there."""
    axis = _samples_of(split, array)
    return array if axis is None else split.taken(array, samples, axis)


def _samples_of(split: Any, array: Any) -> int | None:
    """Return the axis of samples of an array; None if it broadcasts along the samples."""
    axis = len(array.shape) - len(split.x.shape) + split.axis
    varies = axis >= 0 and array.shape[axis] == split.x.shape[split.axis]
    return axis if varies else None


def members_of(labels: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the labels without repetition, sorted, and the positions of each."""
    kinds, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(kinds)))
    return kinds, tuple(np.split(order, ends[:-1]))


def axis_of_samples(labels: Shape, x: Shape, channel_axis: Any) -> int:
    """Return the axis of samples of an array; raise unless there is a label for each of them."""
    channels = normalized_axes(channel_axis, len(x), "channel_axis")
    others = [axis for axis in range(len(x)) if axis not in channels]
    if not others:
        raise ValueError("x must have an axis of samples beside its channels with labels")
    check_shape("labels", labels, (x[others[0]],), "one label for each sample")
    if not x[others[0]]:
        raise ValueError("x must have at least 1 sample with labels, got 0")
    return others[0]


def check_no_running(arguments: Mapping[str, Any]) -> None:
    """Raise if running statistics are given with labels."""
    for name in ("running_mean", "running_var"):
        if arguments.get(name) is not None:
            raise ValueError(f"{name} must be None with labels, which have statistics of their own")


def no_labels() -> ValueError:
    """Return the error for stored statistics without labels."""
    return ValueError("labels must be given with statistics, got None")


def checked_labels(labels: Any) -> Any:
    """Return labels as an array of one sortable type; raise if one is missing."""
    # A column of strings or categories.
    is_of_table = hasattr(labels, "to_numpy") and hasattr(labels, "__array__")
    array = np.asarray(labels) if is_of_table else as_plain_array("labels", labels)
    if array.dtype == object:  # None, NaN, and pandas' NA, which is not True even of itself
        missing = np.array(
            [bool(label is None or (label == label) is not True) for label in array.flat]
        )
    else:
        missing = (array != array).reshape(-1)
    if missing.any():
        label = array.flat[missing.argmax()]
        raise ValueError(f"labels must have a label for each sample, got {label}")
    is_text_of_list = isinstance(labels, list | tuple) and array.dtype.kind in "US"
    if array.dtype.kind == "T":  # as Zarr reads strings
        return np.array(array.tolist())
    if array.dtype != object and not is_text_of_list:
        return array
    # NumPy makes the list [1, "1"] an array of strings.
    each = labels if is_text_of_list else array.flat
    scalars = [label.item() if isinstance(label, np.generic) else label for label in each]
    kinds = sorted({type(label).__name__ for label in scalars})
    if len(kinds) > 1:
        raise TypeError(f"labels must have labels of one type, got {' and '.join(kinds)}")
    is_simple = kinds and kinds[0] in ("bool", "float", "int", "str")
    return np.array(array.tolist()) if is_simple else array


def _split(arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the parts of x, and the arguments of a function as checked arrays."""
    arguments = {name: value for name, value in arguments.items() if name != "others"}
    keywords = (arguments.get(name) for name in ("where", "weights", "nan_policy", "fill"))
    axis = arguments["channel_axis"]
    _, counting = checked_counting(of_channels, arguments["x"], axis, *keywords)
    arguments |= {"where": counting.where, "weights": counting.weights}
    parts = _parts(arguments)
    if counting.weights is not None:  # of fewer axes they may look like those of a part's samples
        given = tuple(counting.weights.shape)
        shape = (1,) * (len(parts.x.shape) - len(given)) + given
        arguments["weights"] = parts.reshaped(counting.weights, shape)
    arguments["x"] = parts.array
    for name in ("dy", "mean", "rstd", "gamma", "beta"):
        if arguments.get(name) is not None:
            arguments[name] = parts.own(name, arguments[name])
    return parts, arguments


def normalized_by_label(
    function: Callable[..., Normalized[Any]], arguments: dict[str, Any]
) -> Normalized[Any]:
    """Return what `batch_norm_forward` returns with labels.

    Parameters
    ----------
    function : callable
        `batch_norm_forward`, called for the samples of each label.
    arguments : dict
        All its arguments, `labels` among them.
    """
    if arguments["statistics"] is None and not check_flag("training", arguments["training"]):
        raise ValueError("statistics must be given with labels if training is False, got None")
    split, arguments = _split(arguments)
    check_no_running(arguments)
    stored, out = arguments.pop("statistics"), arguments.pop("out")
    of_labels = repeat({}) if stored is None else _of_labels(stored, split, arguments)
    whole, statistics = split.output(out, arguments), []
    for label in split.members:
        given, pieces = next(of_labels), [label]
        if stored is not None and isinstance(split, _Parts):
            pieces = split.pieces(label)
        for samples, own in _each(split, arguments, pieces):
            part = function(**own | given, out=split.place(own["x"]))
            split.write(whole, samples, part.y)
            saved = part[1:]
            del own, part  # before the next part is taken
        statistics.append(saved)
    y = split.result_in(whole, out)
    return Normalized(y, *map(split.stacked, zip(*statistics, strict=True)))


def _of_labels(stored: Any, split: Any, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the arguments of batch norm by the stored statistics of each label."""
    shape = split.x.shape
    axes = normalized_axes(arguments["channel_axis"], len(shape), "channel_axis")
    rows = stored_rows(stored, split.labels, tuple(shape[axis] for axis in axes))
    fields = _stored_fields(stored)
    for row in rows.tolist():
        own = Moments(**{name: field[row] for name, field in fields.items()})
        mean, variance = split.on_device(own.mean), split.on_device(own.var())
        yield {"running_mean": mean, "running_var": variance, "training": False}


def stored_statistics(stored: Any, labels: Any, x: Shape, channel_axis: Any) -> tuple[Any, Any]:
    """Return the means and the variances of labels for an array of some shape."""
    axes = normalized_axes(channel_axis, len(x), "channel_axis")
    rows = stored_rows(stored, labels, tuple(x[axis] for axis in axes))
    moments = Moments(**_stored_fields(stored))
    return moments.mean[rows], moments.var()[rows]


def _stored_fields(stored: GroupMoments) -> dict[str, Any]:
    """Return the fields of stored statistics as arrays."""
    given = {name: field for name, field in stored.moments._asdict().items() if field is not None}
    return {
        name: field if is_on_device(field) else as_plain_array("statistics", field)
        for name, field in given.items()
    }


def means_of(stored: Any) -> Any:
    """Return the means of stored statistics, which tell whether these are lazy; None for others."""
    return stored.moments.mean if isinstance(stored, GroupMoments) else None


def stored_rows(stored: Any, labels: Any, channels: Shape) -> Any:
    """Return the row of each label in stored statistics of channels; raise unless all are there."""
    if not isinstance(stored, GroupMoments):
        got = type(stored).__name__
        raise TypeError(f"statistics must be GroupMoments, got an object of type {got}")
    expected = (len(stored.labels), *channels)
    found = np.shape(stored.moments.mean)
    check_shape("statistics", found, expected, "one mean for each label and channel")
    rows, there = rows_of(stored.labels, labels)
    if not there.all():
        label = str(labels[there.argmin()])
        raise ValueError(f"labels must have labels that statistics has, got {label!r}")
    return rows


def gradients_by_label(
    function: Callable[..., Gradients[Any]], arguments: dict[str, Any]
) -> Gradients[Any]:
    """Return what `batch_norm_backward`, the function, returns with labels."""
    split, arguments = _split(arguments)
    check_shape("dy", tuple(arguments["dy"].shape), split.x.shape, "the shape of x")
    out, statistics = arguments.pop("out"), [arguments["mean"], arguments["rstd"]]
    for name, statistic in zip(("mean", "rstd"), statistics, strict=True):
        expected = (len(split.labels), *statistic.shape[1:])
        check_shape(name, tuple(statistic.shape), expected, "one for each label and channel")
    whole, sums = split.output(out, arguments), []
    for label, (samples, own) in enumerate(_each(split, arguments)):
        own["mean"], own["rstd"] = (statistic[label] for statistic in statistics)
        part = function(**own, out=split.place(own["x"]))
        split.write(whole, samples, part.dx)
        sums.append(part[1:])
        del own, part  # before the next part is taken
    dx = split.result_in(whole, out)
    gamma = arguments.get("gamma")
    of_samples = gamma is not None and _samples_of(split, gamma) is not None
    in_one = split.joined if of_samples else split.total
    return Gradients(dx, *(in_one(list(parts)) for parts in zip(*sums, strict=True)))


def _of_each_channel(field: Any, mean: Any) -> Any:
    """Return a field of moments with a number for each channel."""
    return field if np.shape(field) else np.full(np.shape(mean), field, np.float64)


def moments_by_label(function: Callable[..., Moments], arguments: dict[str, Any]) -> GroupMoments:
    """Return what `batch_moments`, the function, returns with labels."""
    split, arguments = _split(arguments)
    after = arguments.pop("after")
    parts = [function(**own) for _, own in _each(split, arguments)]
    fields = []
    for field in Moments._fields:
        values = (_of_each_channel(getattr(part, field), part.mean) for part in parts)
        fields.append(split.stacked(list(values)))
    return merged_after(after, GroupMoments(split.labels, Moments(*fields)))
