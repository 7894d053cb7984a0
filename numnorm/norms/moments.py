"""Mergeable statistics of channels, of all samples or of each label of samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from sys import modules
from typing import Any, NamedTuple, Self

import numpy as np

from numnorm.arguments import check_integer, check_number, check_shape
from numnorm.array_likes import any_lazy, as_plain_array, is_on_device, lazy_twin
from numnorm.array_types import Integer, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.moving import ExponentialState
from numnorm.backends.contract.norms import SMALLEST_VARIANCE


class Moments(NamedTuple):
    """The number of values in each channel, their mean, and the sum of their squared deviations.

    The moments of parts of the data can be merged into the moments of the whole (Chan, Golub and
    LeVeque 1979): stream the data in chunks, or distribute it over machines.

    Attributes
    ----------
    count : int or array of float64
        The number of values in each channel; ``(C,)``, the sums of their weights, where some are
        missing or have weights.
    mean : array of float64
        ``(C,)``, an array of the library of x (float32 for JAX without float64).
    m2 : array of float64
        The sum of the squared deviations from the mean, ``(C,)``.
    mean_lo : array of float64, optional
        What `mean` lost when it was rounded to float64, ``(C,)``; None means 0. Merging takes it,
        so that `m2` loses no digits at any offset of the data.

    Notes
    -----
    The relative error of `m2` is a few units in the last place of the type in which the squares
    are taken: float64 for float64, integers and bool, otherwise float32.

    Examples
    --------
    >>> import numnorm
    >>> left = numnorm.batch_moments([[1.0], [2.0]])
    >>> left.merge(numnorm.batch_moments([[6.0]]))
    Moments(count=3, mean=array([3.]), m2=array([14.]), mean_lo=array([0.]))
    """

    count: Any
    mean: Any
    m2: Any
    mean_lo: Any = None

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together.

        Parameters
        ----------
        other : Moments
            The moments of the same channels.

        Returns
        -------
        Moments

        Raises
        ------
        TypeError, ValueError
            If a field of either has an unsupported type or dtype, or a wrong shape or value.
        """
        channels = tuple(np.shape(self.mean)) or (1,)
        count = check_moments("moments", self, channels, "the channels")
        others = check_moments("other", other, channels, "the channels")
        if "dask" in modules and any_lazy(*self, *other):
            return lazy_twin("merge")(self, other)
        backend: Any
        backend, mean = backend_for(self.mean, "mean")
        if not (has_counts(self) or has_counts(other)) and (count == 0 or others == 0):
            backend_for(other.mean, "other.mean")
            if is_on_device(other.mean) is not is_on_device(self.mean):
                raise TypeError("other.mean must be where mean is, got one on a device and one not")
            return other if count == 0 else self
        if (has_counts(self) or has_counts(other)) and is_on_device(self.mean):
            return Moments(*backend.merged_counted(mean, self, other))
        return Moments(count + others, *backend.merged_moments(mean, self, other))

    def var(self, ddof: Integer = 0) -> Any:
        """Return the variance of each channel.

        Parameters
        ----------
        ddof : int, default 0
            The divisor is ``count - ddof``: 1 is Bessel's correction.

        Returns
        -------
        array of float64
            ``(C,)``.

        Raises
        ------
        ValueError
            If the count is not greater than `ddof`. Where each channel has a count, such a channel
            gets NaN.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.batch_moments([[1.0], [3.0]]).var(ddof=1)
        array([2.])
        """
        return self._divided("var", ddof)

    def std(self, ddof: Integer = 0) -> Any:
        """Return the standard deviation of each channel: the root of its variance.

        Parameters
        ----------
        ddof : int, default 0
            As for `var`.

        Returns
        -------
        array of float64
            ``(C,)``.

        Raises
        ------
        ValueError
            If the count is not greater than `ddof`. Where each channel has a count, such a channel
            gets NaN.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.batch_moments([[1.0], [5.0]]).std()
        array([2.])
        """
        return self._divided("std", ddof)

    def prior(self, steps: Number) -> ExponentialState:
        """Return the state of a stream in which these statistics stand for its first steps.

        `exponential_norm_step` then begins with them, and they fade as steps do.

        Parameters
        ----------
        steps : float
            How many steps the statistics count for, all of them as old as the last step before the
            stream; above 0. Kaldi's ``--global-frames``. The weights of an exponential norm have at
            most the sum ``1 / alpha``: that of statistics that have lasted forever.

        Returns
        -------
        ExponentialState
            Its arrays have the shape of the moments, which must be that of a step of the stream. A
            channel without values has no prior.

        Raises
        ------
        TypeError, ValueError
            If the moments are lazy or on a device, or are those of no values, or if `steps` is not
            above 0.

        Notes
        -----
        A step comes in as it does after `steps` steps of weight 1 with this mean, and this variance
        in the place of the squares around their means. Without `adjust` any number of steps counts
        as if it had lasted forever. For a stream on a device move the fields of the state there,
        the weight as an array with one for each channel.

        Examples
        --------
        >>> import numnorm
        >>> known = numnorm.batch_moments([[1.0], [3.0]])
        >>> y, state = numnorm.exponential_norm_step([[5.0]], 0.5, known.prior(2), axis=0)
        >>> y.round(3), state.mean
        (array([[1.177]]), array([3.5]))
        """
        weight: Any = check_number("steps", steps, above=0.0)
        if any_lazy(*self) or is_on_device(self.mean):
            raise TypeError("moments must be in the memory of the host for a prior")
        if not has_counts(self) and self.count == 0:
            raise ValueError("moments must be those of at least 1 value for a prior, got 0")
        mean = as_plain_array("mean", self.mean).astype(np.float64)
        count, variance = self.count, as_plain_array("var", self.var())
        if has_counts(self):
            seen = as_plain_array("count", count) > 0.0
            if not seen.all():
                weight = np.where(seen, weight, 0.0)
                mean, variance = np.where(seen, mean, np.nan), np.where(seen, variance, 0.0)
        lost = self.mean_lo
        lost = np.zeros_like(mean) if lost is None else as_plain_array("mean_lo", lost)
        return ExponentialState(weight, mean, lost.astype(np.float64), variance)

    def _divided(self, method: str, ddof: Any) -> Any:
        """Return the variance of each channel, or its root."""
        backend: Any
        ddof = check_integer("ddof", ddof, 0)
        count: Any = self.count
        if "dask" in modules and any_lazy(count):
            return lazy_twin("of_divisor")(method, self.m2, count, ddof)
        if has_counts(self) and is_on_device(self.m2):
            backend, m2 = backend_for(self.m2, "m2")
            function = backend.counted_variance if method == "var" else backend.counted_deviation
            return function(m2, count, ddof)
        if has_counts(self):
            count = as_plain_array("count", count)
            count = np.where(count > ddof, count, np.nan)
        elif (count := check_integer("count", count, 0)) <= ddof:
            raise ValueError(f"ddof must be less than the count, {count}, got {ddof}")
        if "dask" in modules and any_lazy(self.m2):
            return lazy_twin("of_divisor")(method, self.m2, count, ddof)
        backend, m2 = backend_for(self.m2, "m2")
        function = backend.variance if method == "var" else backend.deviation
        return function(m2, count - ddof)


def has_counts(moments: Moments) -> bool:
    """Return whether each channel has a count of its own."""
    count = moments.count
    if type(count) is int:
        return False
    if hasattr(count, "__dlpack__") and not is_on_device(count):
        count = as_plain_array("count", count)
    return len(np.shape(count)) > 0


def seen_statistics(total: Any, mean: Any, m2: Any) -> tuple[Any, Any]:
    """Return the mean and the variance of channels, NaN where the sum of the weights is 0."""
    seen = total > 0.0
    with np.errstate(all="ignore"):
        variance = np.where(seen, m2 / np.where(seen, total, 1.0), np.nan)
        # 0 would mean a constant channel.
        variance = np.where((m2 > 0.0) & (variance == 0.0), np.nextafter(0.0, 1.0), variance)
    return np.where(seen, mean, np.nan), variance


def deviations(squares: Any, divisor: Any, eps: float, eps_on_deviation: float) -> Any:
    """Return ``sqrt(squares / divisor + eps) + eps_on_deviation``.

    It is NaN where the root is that of a number that lost digits, or that left float64's range.
    """
    with np.errstate(all="ignore"):
        variance = squares / divisor + eps
        lost = (variance == np.inf) | ((squares > 0.0) & (variance < SMALLEST_VARIANCE))
        return np.where(lost, np.nan, np.sqrt(variance) + eps_on_deviation)


def reciprocals(deviation: Any) -> Any:
    """Return 1 / deviation, with 1 / 0 = 0, as `formulas.norms.inverse_deviation` does."""
    with np.errstate(all="ignore"):
        return np.where(deviation == 0.0, 0.0, 1.0 / deviation)


def check_moments(name: str, value: Any, shape: tuple[int, ...], meaning: str) -> Any:
    """Return the count, an int unless it is an array; raise if it or a shape is wrong."""
    if not isinstance(value, Moments):
        raise TypeError(f"{name} must be Moments, got an object of type {type(value).__name__}")
    count = value.count
    if has_counts(value):
        check_shape(f"{name}.count", tuple(np.shape(count)), shape, meaning)
    else:
        count = check_integer(f"{name}.count", count, 0)
    for field in ("mean", "m2", "mean_lo"):
        array = getattr(value, field)
        if array is not None or field != "mean_lo":
            check_shape(f"{name}.{field}", tuple(np.shape(array)), shape, meaning)
    return count


class GroupMoments(NamedTuple):
    """The labels of samples, sorted, and the moments of each.

    A label in brackets gives its `Moments`, and ``in`` says whether it is there. Where labels are
    no integers, a position in brackets gives a field, as of any named tuple.

    Attributes
    ----------
    labels : numpy.ndarray
        The labels, ``(G,)``.
    moments : Moments
        Its arrays have a first axis of labels: ``(G, C)``.

    Examples
    --------
    >>> import numnorm
    >>> speakers = numnorm.batch_moments([[1.0], [5.0], [3.0]], labels=["b", "a", "b"])
    >>> speakers.labels, speakers.moments.mean
    (array(['a', 'b'], dtype='<U1'), array([[5.],
           [2.]]))
    >>> speakers["b"].mean, speakers["b"].std()
    (array([2.]), array([1.]))
    >>> "c" in speakers
    False
    """

    labels: Any
    moments: Moments

    @classmethod
    def from_moments(cls, moments: Mapping[Any, Moments]) -> Self:
        """Return the moments of labels that were gathered one by one.

        Parameters
        ----------
        moments : mapping
            The `Moments` of each label, of the same channels, in memory.

        Returns
        -------
        GroupMoments

        Raises
        ------
        TypeError, ValueError
            If there is no label, if labels are of several types, or if moments are lazy, on a
            device, or of other channels.

        Examples
        --------
        Sequences of any lengths, of which none is copied:

        >>> import numnorm
        >>> speakers = {}
        >>> for name, frames in (("b", [[1.0], [3.0]]), ("a", [[5.0]]), ("b", [[2.0]])):
        ...     speakers[name] = numnorm.batch_moments(frames, after=speakers.get(name))
        >>> numnorm.GroupMoments.from_moments(speakers).moments.mean.tolist()
        [[5.0], [2.0]]
        """
        if not isinstance(moments, Mapping):
            raise TypeError(f"moments must be a mapping of labels, got {type(moments).__name__}")
        if not moments:
            raise ValueError("moments must have at least 1 label, got 0")
        for label in moments:
            if label is None or label != label:
                raise ValueError(f"moments must have no missing label, got {label}")
            if isinstance(label, tuple):
                raise TypeError(f"moments must have labels that are no tuples, got {label}")
        kinds = sorted({type(label).__name__ for label in moments})
        if len(kinds) > 1:
            raise TypeError(f"moments must have labels of one type, got {' and '.join(kinds)}")
        labels = sorted(moments)
        first: Any = getattr(moments[labels[0]], "mean", ())
        channels = tuple(np.shape(first))
        fields = {field: np.zeros((len(labels), *channels)) for field in Moments._fields}
        for row, label in enumerate(labels):
            own = moments[label]
            check_moments("moments", own, channels, "the channels")
            if any_lazy(*own) or is_on_device(own.mean):
                raise TypeError("moments must be in the memory of the host")
            for field, value in own._asdict().items():
                if value is not None:
                    fields[field][row] = as_plain_array(field, value)
        return cls(np.array(labels), Moments(**fields))

    def total(self) -> Moments:
        """Return the moments of all samples, whatever their labels.

        Returns
        -------
        Moments
            With a count for each channel.

        Raises
        ------
        ValueError
            If there is no label.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.batch_moments([[1.0], [5.0], [3.0]], labels=["b", "a", "b"]).total().mean
        array([3.])
        """
        if not len(self.labels):
            raise ValueError("there must be at least 1 label for the moments of all, got 0")
        moments, odd = self.moments, []
        while (rows := np.shape(moments.mean)[0]) > 1:  # pairs of all labels at once
            half = rows // 2
            if rows % 2:
                odd.append(_part(moments, slice(rows - 1, rows)))
            moments = _part(moments, slice(half)).merge(_part(moments, slice(half, 2 * half)))
        return _part(functools.reduce(Moments.merge, odd, moments), 0)

    def __contains__(self, label: object) -> bool:
        return self._row(label) is not None

    def __getitem__(self, label: Any) -> Any:
        of_integers = np.asarray(self.labels).dtype.kind in "iu"
        if isinstance(label, slice) or (isinstance(label, int | np.integer) and not of_integers):
            return tuple.__getitem__(self, label)
        row = self._row(label)
        if row is None:
            raise KeyError(label)
        return self._moments_of(row)

    def _moments_of(self, row: Any) -> Moments:
        """Return the moments of a label by its row."""
        return _part(self.moments, row)

    def _row(self, label: Any) -> Any:
        """Return the row of a label; None if it is not there."""
        try:
            row, there = rows_of(self.labels, np.asarray(label))
        except TypeError:  # a label of another type
            return None
        return row if there.ndim == 0 and there else None

    def merge(self, other: GroupMoments) -> GroupMoments:
        """Return the moments of all labels of both.

        Parameters
        ----------
        other : GroupMoments
            The moments of the same channels, of any labels of the same type.

        Returns
        -------
        GroupMoments

        Raises
        ------
        TypeError, ValueError
            If the labels are of another type than these, or if `Moments.merge` raises.

        Examples
        --------
        >>> import numnorm
        >>> here = numnorm.batch_moments([[1.0], [5.0]], labels=["b", "a"])
        >>> there = numnorm.batch_moments([[3.0]], labels=["b"])
        >>> here.merge(there).moments.mean.tolist()
        [[5.0], [2.0]]
        """
        if not isinstance(other, GroupMoments):
            raise TypeError(f"other must be GroupMoments, got {type(other).__name__}")
        if not (len(self.labels) and len(other.labels)):
            shape = tuple(np.shape(self.moments.mean)[1:])
            check_shape(
                "other.mean", tuple(np.shape(other.moments.mean)[1:]), shape, "the channels"
            )
            return self if len(self.labels) else other
        _check_one_type(self.labels, other.labels)
        labels = np.unique(np.concatenate([self.labels, other.labels]))
        own, others = (_placed(part, labels) for part in (self, other))
        return GroupMoments(labels, own.merge(others))


def _part(moments: Moments, rows: Any) -> Moments:
    """Return the moments of some labels, by their rows."""
    return Moments(*(None if field is None else field[rows] for field in moments))


def of_no_label(moments: Moments, labels: Any) -> GroupMoments:
    """Return moments of no label, for the channels of moments of no values."""
    nothing = moments.mean[None][:0]
    return GroupMoments(labels, Moments(nothing, nothing, nothing, nothing))


def merged_after(after: Any, now: GroupMoments) -> GroupMoments:
    """Return the moments of all chunks: those of the chunks before, or None, and of this one."""
    if after is None:
        return now
    if not isinstance(after, GroupMoments):
        got = type(after).__name__
        raise TypeError(f"after must be GroupMoments with labels, got an object of type {got}")
    return after.merge(now)


def of_numbered_labels(mean: Any, variance: Any) -> GroupMoments:
    """Return stored statistics of the labels 0, 1, ..., which lie along the first axis."""
    moments = Moments(np.ones_like(mean), mean, variance, np.zeros_like(mean))
    return GroupMoments(np.arange(len(mean)), moments)


def rows_of(own: Any, labels: Any) -> tuple[Any, Any]:
    """Return the row of each label among sorted ones, and whether it is there.

    Raise for labels of another type.
    """
    own = np.asarray(own)
    _check_one_type(own, labels)
    return np.searchsorted(own, labels), np.isin(labels, own)


def _check_one_type(own: Any, others: Any) -> None:
    """Raise unless two arrays of labels can be compared. No labels have no type."""
    sides = [side for side in (own, others) if side.size]
    kinds = {"i" if side.dtype.kind == "u" else side.dtype.kind for side in sides}
    # Integers beyond int64 beside negative ones would become floats, of which some are equal.
    if len(kinds) > 1 or (kinds == {"i"} and np.result_type(*sides).kind == "f"):
        types = " and ".join(str(side.dtype) for side in sides)
        raise TypeError(f"labels must be of one type on both sides, got {types}")


def _placed(part: GroupMoments, labels: Any) -> Moments:
    """Return moments for each of the labels, of no values where a label is not there."""
    if "dask" in modules and any_lazy(*part.moments):
        moments: Moments = lazy_twin("placed")(part.moments, *rows_of(part.labels, labels))
        return moments
    rows, there = rows_of(part.labels, labels)
    fields = {}
    for name, field in part.moments._asdict().items():
        if field is not None and is_on_device(field):
            backend: Any
            backend, array = backend_for(field, name)
            fields[name] = backend.placed_rows(array, np.where(there, rows, -1))
        elif field is not None:
            array = as_plain_array("moments", field)
            fields[name] = np.zeros((len(labels), *array.shape[1:]))
            fields[name][np.searchsorted(labels, part.labels)] = array
    return Moments(**fields)
