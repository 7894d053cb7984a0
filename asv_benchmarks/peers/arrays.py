"""The input arrays of all libraries, the same ones in every process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from numnorm import rnn

from .cases import CELLS, LABELS, Case

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


def arrays_of(case: Case) -> Any:
    """Return the `Sequences` of a cell, or the `Arrays` of a norm, in the dtype of `case`.

    For an estimator and a moving norm only x is there; where values are missing, an `Incomplete`;
    of samples with labels, a `Labelled`; for the way back, an `Inverse`.
    The axis 1 of a norm's array is that of rows and of channels.
    """
    if case.family == "cells":
        return _drawn_sequences(case.norm, case.shape, case.dtype)
    if case.family == "estimators":
        return _drawn_spectra(case.shape, case.dtype)
    if case.family in ("moving", "order"):
        return _drawn_recording(case.shape, case.dtype)
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
