"""Order statistics of data larger than memory: exact, in few passes over chunks.

A floating point number has a key, an unsigned integer in the same order. A pass counts, for each
order statistic that is looked for, the elements in each bin of an interval of keys; the next pass
looks into one bin. As soon as the elements that are left fit into memory, a pass keeps them. With
bins of 16 bits, counting takes at most 2 passes of float32 and 4 of float64, and one more if the
first one looked in the wrong place; usually one pass counts, and one keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

_MOST_BITS, _LEAST_BITS = 16, 2  # of the number of bins
_AT_ONCE = 1 << 16
"""Elements whose keys are made at a time, so that they stay in the cache."""


class Search(NamedTuple):
    """What a pass looks for: intervals of keys, arrays ``(statistics, channels)``.

    Attributes
    ----------
    low, high : array of uint64
        The first and the last key of each interval.
    shift : array of uint64
        A bin holds ``2**shift`` keys.
    active : array of bool
        Whether there is something to look for: not where a statistic is known, nor where another
        one has the same interval.
    bins : int
        How many bins an interval has; 0 for a pass that keeps elements.
    """

    low: Any
    high: Any
    shift: Any
    active: Any
    bins: int


class Found(NamedTuple):
    """What a pass finds in a chunk.

    Attributes
    ----------
    channels : slice or array of int
        The channels of the chunk.
    count, missing : array of int
        ``(channels,)``: how many elements are numbers, and how many are NaN.
    below : array of int
        ``(channels,)``: how many numbers lie below the first interval.
    bins : array of int
        ``(statistics, channels, bins)``: how many lie in each bin.
    kept : list
        The keys in an interval, with the number of its statistic and its channel.
    """

    channels: Any
    count: Any
    missing: Any
    below: Any
    bins: Any
    kept: list[tuple[int, int, Any]]


def look(x: Any, search: Search, channels: Any = slice(None), centers: Any = None) -> Found:
    """Return what a pass finds in a chunk.

    Parameters
    ----------
    x : array
        ``(channels, elements)``.
    search : Search
        What the pass looks for.
    channels : slice or array of int, optional
        The channels of the chunk.
    centers : tuple of two arrays, optional
        For each channel a number and what is left of it: not elements are searched, but their
        distances from the sum, in float64.
    """
    low, high, shift, active = (array[:, channels] for array in search[:4])
    statistics = len(low)
    count, missing, below = np.zeros((3, len(x)), np.int64)
    bins = np.zeros((statistics, len(x), search.bins), np.int64)
    kept = []
    for channel, values in enumerate(x):
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            center = None if centers is None else [each[channel] for each in centers]
            keys = keys_of(searched(part, center))
            last = keys.dtype.type(_last_key(keys.dtype.itemsize))
            first = keys.dtype.type(low[0, channel])
            count[channel] += len(keys)
            missing[channel] += np.count_nonzero(keys > last)
            below[channel] += np.count_nonzero(keys < first) if first else 0
            for statistic in np.flatnonzero(active[:, channel]).tolist():
                span = high[statistic, channel] - low[statistic, channel]
                within = keys - keys.dtype.type(low[statistic, channel])  # what is below wraps
                if search.bins:
                    within = within[within <= keys.dtype.type(span)]
                    within >>= keys.dtype.type(shift[statistic, channel])
                    own = bins[statistic, channel]
                    own += np.bincount(within.astype(np.intp), minlength=search.bins)
                elif (inside := within <= keys.dtype.type(span)).any():
                    kept.append((statistic, channel, within[inside]))
    return Found(channels, count - missing, missing, below, bins, kept)


def searched(x: Any, center: Any = None) -> Any:
    """Return elements as they are searched, or their distances from a center and what is left."""
    if center is None:
        return x.astype(searched_dtype(x.dtype), copy=False)
    center, center_lo = center
    with np.errstate(all="ignore"):
        return np.abs((x.astype(np.float64) - center) - center_lo)


def searched_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements are searched, which holds all of them."""
    narrow = dtype.kind == "f" and dtype.itemsize <= 4
    return np.dtype(np.float32 if narrow else np.float64)


class SelectionPasses:
    """Finds elements by their rank among all elements of a channel, in passes over chunks.

    Parameters
    ----------
    channels : int
        How many channels there are.
    dtype : dtype
        That of the elements, float32 or float64.
    ranks_of : callable
        It takes how many elements of each channel are numbers, and returns the ranks to find,
        integers from 0 on, ``(statistics, channels)``.
    budget : int
        The bytes to keep in memory, about: there are at least 4 bins.

    Attributes
    ----------
    is_done : bool
        Whether `values` are found.
    search : Search
        What the next pass looks for.
    passes : int
        How many passes there were.
    count, missing : array of int
        ``(channels,)``, after the first pass: how many elements are numbers, and how many are NaN,
        which have no rank.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm.norms.selection_passes import SelectionPasses, look
    >>> chunks = np.float32([[5, 3]]), np.float32([[1, 9, 4]])
    >>> selection = SelectionPasses(1, np.float32, lambda count: count[None] // 2)
    >>> while not selection.is_done:
    ...     selection.end_pass([look(x, selection.search) for x in chunks])
    >>> selection.values, selection.passes
    (array([[4.]], dtype=float32), 2)
    """

    def __init__(
        self,
        channels: int,
        dtype: Any,
        ranks_of: Callable[[Any], Any],
        budget: int = 64 << 20,
    ) -> None:
        self.dtype, self.budget = np.dtype(dtype), budget
        self.is_done, self.passes = False, 0
        self.count: Any = np.zeros(channels, np.int64)
        self.missing: Any = self.count
        self._ranks_of = ranks_of
        self._last = np.uint64(_last_key(self.dtype.itemsize))
        low = np.zeros((1, channels), np.uint64)
        self._count_in(low, np.full_like(low, self._last), np.ones((1, channels), bool))
        # Of each rank, arrays (statistics, channels): the interval of keys in which its element
        # lies, how many elements are below it and in it, and the first statistic with the same
        # interval. Only that one is searched.
        self._ranks: Any = None
        self._low: Any = None
        self._high: Any = None
        self._before: Any = None
        self._inside: Any = None
        self._first: Any = None

    @property
    def values(self) -> Any:
        """The elements of the ranks, ``(statistics, channels)``; NaN where there are none."""
        return np.where(self.count > 0, of_keys(self._low, self.dtype), self.dtype.type(np.nan))

    def begin(self, sample: Any, channels: Any = slice(None)) -> None:
        """Let the first pass look where elements are likely to be.

        Parameters
        ----------
        sample : array
            ``(channels, elements)``: some elements.
        channels : slice or array of int, optional
            The channels of the sample.
        """
        low, high = self.search.low.copy(), self.search.high.copy()
        for channel, values in zip(np.arange(low.size)[channels], sample, strict=True):
            keys = keys_of(searched(values))
            keys = keys[keys <= keys.dtype.type(self._last)]
            if keys.size:
                least, most = int(keys.min()), int(keys.max())
                around = most - least + (1 << _MOST_BITS)
                low[0, channel] = max(0, least - around)
                high[0, channel] = min(int(self._last), most + around)
        self._count_in(low, high, self.search.active)

    def end_pass(self, chunks: Iterable[Found]) -> None:
        """Take what a pass has found.

        Parameters
        ----------
        chunks : iterable of Found
            Of chunks in any order that hold each element once.

        Raises
        ------
        RuntimeError
            If the elements are others than those of the pass before.
        """
        search, channels = self.search, len(self.count)
        count, missing, below = np.zeros((3, channels), np.int64)
        bins = np.zeros((len(search.low), channels, search.bins), np.int64)
        kept: dict[tuple[int, int], list[Any]] = {}
        for found in chunks:
            own = found.channels
            count[own] += found.count
            missing[own] += found.missing
            below[own] += found.below
            bins[:, own] += found.bins
            names = np.arange(channels)[own].tolist()
            for statistic, channel, keys in found.kept:
                kept.setdefault((statistic, names[channel]), []).append(keys)
        if not self.passes:
            self.count, self.missing = count, missing
        self.passes += 1
        if (count != self.count).any() or (missing != self.missing).any():
            raise _changed()
        if self._ranks is None:
            self._begin_ranks()
        if search.bins:
            for statistic in range(len(self._ranks)):
                self._narrow(statistic, below if self.passes == 1 else 0, bins)
        else:
            self._select(kept)
        self._next()

    def _begin_ranks(self) -> None:
        """Look for the ranks among all elements."""
        ranks = np.asarray(self._ranks_of(self.count))
        self._ranks = np.clip(ranks, 0, np.maximum(self.count - 1, 0))
        self._low = np.zeros(ranks.shape, np.uint64)
        self._high = np.full_like(self._low, self._last)
        self._before, self._first = np.zeros((2, *ranks.shape), np.int64)
        self._inside = np.broadcast_to(self.count, ranks.shape).copy()

    def _narrow(self, statistic: int, below: Any, bins: Any) -> None:
        """Take the bin of a rank in the place of its interval.

        Parameters
        ----------
        statistic : int
            The number of the rank.
        below : array of int
            How many elements of the interval lie below the first bin.
        bins : array of int
            As in `Found`.
        """
        channels = np.arange(len(self.count))
        own = self._first[statistic], channels
        low, high, shift = (array[own] for array in self.search[:3])
        first, last = self._low[statistic], self._high[statistic]
        counts = np.zeros((len(channels), bins.shape[2] + 2), np.int64)
        counts[:, 0], counts[:, 1:-1] = below, bins[own]
        counts[:, -1] = self._inside[statistic] - counts.sum(axis=1)  # above the last bin
        known = first == last
        if self.passes > 1 and counts[~known, -1].any():
            raise _changed()
        upto = np.cumsum(counts, axis=1)
        local = self._ranks[statistic] - self._before[statistic]
        chosen = np.minimum((upto <= local[:, None]).sum(axis=1), bins.shape[2] + 1)
        inside = counts[channels, chosen]
        number, one = np.maximum(chosen - 1, 0).astype(np.uint64), np.uint64(1)
        start = low + (number << shift)
        end = start + np.minimum((one << shift) - one, high - start)
        is_below, is_above = chosen == 0, chosen == bins.shape[2] + 1
        start = np.select([is_below, is_above], [first, high + one], start)
        end = np.select([is_below, is_above], [low - one, last], end)
        self._low[statistic] = np.where(known, first, start)
        self._high[statistic] = np.where(known, last, end)
        self._before[statistic] += np.where(known, 0, upto[channels, chosen] - inside)
        self._inside[statistic] = np.where(known, self._inside[statistic], inside)

    def _select(self, kept: dict[tuple[int, int], list[Any]]) -> None:
        """Take the elements of the ranks from those that were kept."""
        low, active = self._low.copy(), self.search.active
        found_in = {pair: np.concatenate(parts) for pair, parts in kept.items()}
        if {pair: len(keys) for pair, keys in found_in.items()} != {
            (first, channel): self._inside[first, channel]
            for first, channel in np.argwhere(active).tolist()
        }:
            raise _changed()
        for (first, channel), keys in found_in.items():
            local = self._ranks[:, channel] - self._before[:, channel]
            own = np.flatnonzero(self._first[:, channel] == first)
            own = own[self._high[own, channel] > low[own, channel]]
            found = np.partition(keys, local[own])[local[own]]
            self._low[own, channel] = low[own, channel] + found.astype(np.uint64)
        self._high = self._low.copy()

    def _next(self) -> None:
        """Choose what the next pass looks for."""
        self._high[:, self.count == 0] = self._low[:, self.count == 0]
        known = self._low == self._high
        statistics = len(self._ranks)
        self._first[...] = np.arange(statistics)[:, None]
        for other in range(statistics - 1, -1, -1):
            same = (self._low == self._low[other]) & (self._high == self._high[other])
            self._first[same] = other
        active = ~known & (self._first == np.arange(statistics)[:, None])
        self.is_done = not active.any()
        left = int(np.sum(self._inside, where=active))
        if left * self.dtype.itemsize <= self.budget:
            self.search = Search(self._low, self._high, np.zeros_like(self._low), active, 0)
        else:
            self._count_in(self._low, self._high, active)

    def _count_in(self, low: Any, high: Any, active: Any) -> None:
        """Let the next pass count in intervals, in as many bins as there is memory for."""
        each = low.size * np.dtype(np.int64).itemsize
        bits = max(self.budget // each, 1).bit_length() - 1
        bits = min(max(bits, _LEAST_BITS), _MOST_BITS)
        lengths = np.array([int(n).bit_length() for n in (high - low).flat], np.int64)
        shift = np.maximum(lengths - bits, 0).astype(np.uint64).reshape(low.shape)
        self.search = Search(low.copy(), high.copy(), shift, active, 1 << bits)


def _changed() -> RuntimeError:
    return RuntimeError("the elements changed between two passes over them")


def keys_of(x: Any) -> Any:
    """Return the unsigned integers in the order of floating point numbers; those of NaN are last.

    The key of -inf is 0, and that of inf the last one of a number.
    """
    keys = np.array(x).view(np.dtype(f"u{x.itemsize}"))
    sign = 8 * x.itemsize - 1
    # The bits of a negative number become smaller with it, and those of others are behind them.
    flipped = (keys.view(np.dtype(f"i{x.itemsize}")) >> sign).view(keys.dtype)
    flipped |= keys.dtype.type(1 << sign)
    keys ^= flipped
    keys -= _first_key(x.dtype)
    return keys


def of_keys(keys: Any, dtype: np.dtype[Any]) -> Any:
    """Return the numbers of keys."""
    kind = np.dtype(f"u{dtype.itemsize}")
    sign = kind.type(1 << (8 * dtype.itemsize - 1))
    shifted = keys.astype(kind) + _first_key(dtype)
    return (shifted ^ np.where(shifted & sign, sign, ~kind.type(0))).view(dtype)


def _first_key(dtype: np.dtype[Any]) -> Any:
    """Return the inverted bits of -inf."""
    return ~np.array(-np.inf, dtype).view(np.dtype(f"u{dtype.itemsize}"))


@functools.cache
def _last_key(itemsize: int) -> int:
    """Return the key of infinity, the last one of a number."""
    return int(keys_of(np.array([np.inf], np.dtype(f"f{itemsize}")))[0])
