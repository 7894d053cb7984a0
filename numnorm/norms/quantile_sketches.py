"""Sketches of the values of a channel, as Apache's datasketches makes them, by an error of rank."""

from __future__ import annotations

import bisect
import copy
import functools
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from numnorm.arguments import check_number

_LEAST_SIZE, _MOST_SIZE = 8, 65535  # what a sketch of datasketches takes


def merged_sketch(sketches: list[Any], parts: Iterable[Any], error: float) -> Any:
    """Return a sketch of one channel, of the values in sketches and in arrays."""
    total = copy.copy(sketches[0]) if sketches else _kind()(_size_of(error))
    for sketch in sketches[1:]:
        total.merge(sketch)
    for part in parts:
        total.update(part.astype(np.float64))  # it leaves NaN out
    return total


def values_at(sketch: Any, positions: Any) -> Any:
    """Return the values at positions among the sorted ones of a sketch that is not empty."""
    ranks = np.minimum((positions + 1) / sketch.n, 1.0)  # a channel with NaN has fewer values
    found = sketch.get_quantiles(ranks, True)
    # A sketch knows both ends exactly.
    is_end = [positions == 0, positions >= sketch.n - 1]
    return np.select(is_end, [sketch.get_min_value(), sketch.get_max_value()], found)


def arrays_of_sketches(sketches: Iterable[Any]) -> dict[str, Any]:
    """Return sketches as arrays of NumPy by name."""
    texts = [sketch.serialize() for sketch in sketches]
    return {
        "sketches": np.frombuffer(b"".join(texts), np.uint8),
        "lengths": np.array([len(text) for text in texts], np.int64),
    }


def saved_sketches(sketches: Any, lengths: Any) -> tuple[Any, ...]:
    """Return the sketches of which `arrays_of_sketches` made arrays."""
    text, ends = sketches.tobytes(), np.cumsum(lengths).tolist()
    pairs = zip([0, *ends], ends, strict=False)
    kind = _kind()
    return tuple(kind.deserialize(text[start:end]) for start, end in pairs)


def check_error(error: Any) -> float | None:
    """Return an allowed error of rank, if sketches with it can be made."""
    if error is None:
        return None
    number = check_number("error", error, least=0.0, most=1.0)
    _size_of(number)
    return number


def _kind() -> Any:
    """Return the class of sketches."""
    try:
        return importlib.import_module("datasketches").kll_doubles_sketch
    except ImportError as reason:
        message = "error= needs datasketches: pip install 'numnorm[sketches]'"
        raise ImportError(message) from reason


@functools.lru_cache(maxsize=64)
def _size_of(error: float) -> int:
    """Return the least size of a sketch with this error of rank."""
    of_size = _kind().get_normalized_rank_error
    sizes = range(_LEAST_SIZE, _MOST_SIZE + 1)
    place = bisect.bisect_left(sizes, -error, key=lambda size: -of_size(size, False))
    if place == len(sizes):
        least = of_size(_MOST_SIZE, False)
        raise ValueError(f"error must be at least {least:.2g}, got {error:g}: None is exact")
    return sizes[place]
