"""The input arrays of all libraries, the same ones in every process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from numnorm import rnn

from .cases import BATCHES, CELLS, CHUNKS, LABELS, Case

Array = np.ndarray[Any, Any]

MISSING_SHARE = 0.1


class Arrays(NamedTuple):
    """The input, the gradient of the output, the parameters, and the stored statistics."""

    x: Any
    dy: Any
    gamma: Any
    beta: Any
    mean: Any
    variance: Any


class Sequences(NamedTuple):
    """The input of a cell, the gradient of its states, and numnorm's parameters."""

    x: Array
    dy: Array
    parameters: rnn.LSTMParameters


class Incomplete(NamedTuple):
    """An input, and where it is not missing: its other elements may be NaN."""

    x: Array
    keep: Array


class Labelled(NamedTuple):
    """An input, and a label for each of its samples."""

    x: Array
    labels: Array


class Timed(NamedTuple):
    """An input, and the time of each of its steps."""

    x: Array
    times: Array


class Sparse(NamedTuple):
    """A sparse matrix, and the batch of each of its rows, or None."""

    x: Any
    labels: Array | None

    def each(self, function: Callable[[Any], Any]) -> Any:
        """Return the matrix of a function's results for each batch."""
        from scipy import sparse

        if self.labels is None:
            return function(self.x)
        rows = [np.flatnonzero(self.labels == batch) for batch in range(BATCHES)]
        stacked = sparse.vstack([function(self.x[of]) for of in rows], format="csr")
        return stacked[np.argsort(np.concatenate(rows))].asformat(self.x.format)


class Inverse(NamedTuple):
    """A normalized array, and statistics in float64, as numnorm saves them."""

    x: Array
    mean: Array
    rstd: Array

    def broadcast(self, case: Case) -> tuple[Array, Array, Array]:
        """Return the array and its statistics in its dtype, to broadcast against it."""
        last = case.norm == "denormalize"
        statistics = (a.astype(self.x.dtype) for a in (self.mean, self.rstd))
        mean, rstd = (a[..., np.newaxis] if last else a for a in statistics)
        return self.x, mean, rstd


# For successive cases of the same array; more than one entry could need too much memory.
@lru_cache(maxsize=1)
def _drawn(shape: tuple[int, ...], dtype: str) -> Arrays:
    generator = np.random.default_rng(0)
    # Mean and variance are easy for every formula: speed is compared here, not accuracy.
    x = 0.5 + 1.5 * generator.standard_normal(shape, np.float32)
    dy = generator.standard_normal(shape, np.float32)
    width = shape[1]
    small = (
        np.linspace(0.5, 1.5, width),
        np.linspace(-1, 1, width),
        np.linspace(0.4, 0.6, width),
        np.linspace(2, 2.5, width),
    )
    return Arrays(*(array.astype(_numpy_dtype(dtype), copy=False) for array in (x, dy, *small)))


@lru_cache(maxsize=1)
def _drawn_sequences(cell: str, shape: tuple[int, ...], dtype: str) -> Sequences:
    steps, batch, inputs, hidden = shape
    generator = np.random.default_rng(0)
    x = generator.standard_normal((steps, batch, inputs), dtype)
    dy = generator.standard_normal((steps, batch, hidden), dtype)
    begin = rnn.lstm_init(inputs, hidden, rng=generator, norm=CELLS[cell], dtype=dtype)
    # Gains of 1 and biases of 0 would hide a library that ignores them. And with gains of 1 the
    # states are chaotic: after 500 steps, float32 and float64 results differ completely.
    parameters = (
        0.5 * p + generator.normal(0, 0.1, p.shape).astype(dtype) if np.ndim(p) == 1 else p
        for p in begin
    )
    return Sequences(x, dy, rnn.LSTMParameters(*parameters))


@lru_cache(maxsize=1)
def _drawn_spectra(shape: tuple[int, ...], dtype: str) -> Arrays:
    generator = np.random.default_rng(0)
    samples, width = shape
    curve = np.cumsum(generator.standard_normal(width))
    gain, offset = generator.uniform(0.5, 2, (samples, 1)), generator.standard_normal((samples, 1))
    x = gain * curve + offset + generator.standard_normal(shape)
    return Arrays(x.astype(dtype), *[None] * 5)


@lru_cache(maxsize=1)
def _drawn_recording(shape: tuple[int, ...], dtype: str) -> Arrays:
    x = np.random.default_rng(0).standard_normal(shape, dtype)
    x *= 1.5
    x += 0.5
    return Arrays(x, *[None] * 5)


@lru_cache(maxsize=1)
def _drawn_incomplete(shape: tuple[int, ...], dtype: str, nan: bool) -> Incomplete:
    x = _drawn(shape, dtype).x
    keep = np.random.default_rng(1).random(shape) >= MISSING_SHARE
    return Incomplete(np.where(keep, x, np.nan).astype(dtype) if nan else x, keep)


@lru_cache(maxsize=1)
def _drawn_labelled(shape: tuple[int, ...], dtype: str) -> Labelled:
    return Labelled(_drawn(shape, dtype).x, np.arange(shape[0]) // 30 % LABELS)


@lru_cache(maxsize=1)
def _drawn_inverse(norm: str, shape: tuple[int, ...], dtype: str) -> Inverse:
    generator = np.random.default_rng(0)
    own = shape[:-1] if norm == "denormalize" else shape[-1:]
    x = generator.standard_normal(shape, dtype)
    return Inverse(x, generator.normal(5, 1, own), generator.uniform(0.5, 2, own))


@lru_cache(maxsize=1)
def _drawn_sparse(shape: tuple[int, int], dtype: str, density: float) -> Sparse:
    from scipy import sparse

    rng, (rows, columns) = np.random.default_rng(0), shape
    # The distances of what is stored, a tenth more than are needed: much faster than SciPy's.
    distances = rng.geometric(density, round(1.1 * density * rows * columns))
    places = np.cumsum(distances) - 1
    places = places[places < rows * columns]
    values = (1 - rng.random(len(places))).astype(dtype)  # no zeros
    coordinates = np.array(np.divmod(places, columns), np.int32)
    x = sparse.coo_array((values, coordinates), shape).tocsr()
    return Sparse(x, rng.integers(0, BATCHES, rows))


def times_of(steps: int) -> Array:
    """Return times of seconds, a minute apart on average."""
    passed = np.random.default_rng(1).integers(1, 120, steps)
    return np.datetime64("2026-01-01", "s") + np.cumsum(passed)


def in_chunks(x: Array) -> Any:
    """Return a lazy array of Dask."""
    import dask.array as da

    return da.from_array(x, chunks=(-(-len(x) // CHUNKS), -1))


def arrays_of(case: Case) -> Any:
    """Return the `Sequences` of a cell, or the `Arrays` of a norm, in the dtype of `case`.

    For estimators, moving norms and quantiles only x is there; where values are missing, an
    `Incomplete`; of samples with labels, a `Labelled`; for the way back, an `Inverse`; of irregular
    steps, a `Timed`; of sparse matrices, a `Sparse`.
    The axis 1 of a norm's array is that of rows and of channels.
    """
    if case.family == "cells":
        return _drawn_sequences(case.norm, case.shape, case.dtype)
    if case.family == "estimators":
        return _drawn_spectra(case.shape, case.dtype)
    if case.family in ("moving", "order", "quantiles"):
        return _drawn_recording(case.shape, case.dtype)
    if case.family == "times":
        return Timed(_drawn_recording(case.shape, case.dtype).x, times_of(case.shape[0]))
    if case.family == "sparse":
        x, labels = _drawn_sparse(case.shape, case.dtype, case.density)
        by_batch = case.norm.startswith("batches")
        return Sparse(x.asformat(case.norm[-3:]), labels if by_batch else None)
    if case.family == "missing":
        return _drawn_incomplete(case.shape, case.dtype, case.norm != "rows_where")
    if case.family == "labels":
        return _drawn_labelled(case.shape, case.dtype)
    if case.family == "inverse":
        return _drawn_inverse(case.norm, case.shape, case.dtype)
    return _drawn(case.shape, case.dtype)


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
