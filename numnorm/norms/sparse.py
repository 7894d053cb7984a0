"""Batch norm and moments of the columns of SciPy's sparse matrices, which stay sparse."""

from __future__ import annotations

from sys import modules
from typing import Any, cast

import numpy as np

from numnorm.arguments import (
    check_choice,
    check_eps,
    check_flag,
    check_number,
    check_shape,
    result_dtype,
)
from numnorm.array_likes import as_plain_array
from numnorm.backends import backend_of
from numnorm.backends.contract.sparse import Samples, SparseBackend, Stored
from numnorm.layouts import column_layout, normalized_axes
from numnorm.norms.labels import check_no_running, checked_labels, no_labels, stored_statistics
from numnorm.norms.moments import (
    GroupMoments,
    Moments,
    check_moments,
    deviations,
    has_counts,
    merged_after,
    of_no_label,
    reciprocals,
    seen_statistics,
)
from numnorm.norms.results import Normalized
from numnorm.norms.running import running_options
from numnorm.norms.weighted import POLICIES

_FLOAT64 = np.dtype(np.float64)


def is_sparse(x: Any) -> bool:
    """Return whether an object is a sparse matrix or array of SciPy."""
    issparse = getattr(modules.get("scipy.sparse"), "issparse", None)
    return issparse is not None and bool(issparse(x))


def check_dense_gradient(x: Any, with_mean: Any, clip: Any) -> None:
    """Raise if batch norm of x by these options has no backward pass."""
    if is_sparse(x):
        raise NotImplementedError("x must not be sparse in batch_norm_backward: use .toarray()")
    if not check_flag("with_mean", with_mean):
        raise NotImplementedError("with_mean must be True in batch_norm_backward, got False")
    if clip is not None:
        raise NotImplementedError("clip must be None in batch_norm_backward")


# Moments


def sparse_moments(arguments: dict[str, Any]) -> Any:
    """Return what `batch_moments` returns for a sparse x; the arguments are its own."""
    x, after = arguments["x"], arguments["after"]
    _check_columns(x, arguments["channel_axis"])
    if arguments["labels"] is None:
        now = Moments(*_moments(x, *_samples(x, arguments, None), None))
        if after is None:
            return now
        check_moments("after", after, (x.shape[1],), "the channels of x")
        return after.merge(now)
    labels = checked_labels(arguments["labels"])
    check_shape("labels", labels.shape, (x.shape[0],), "one label for each sample")
    if not x.shape[0]:
        nothing = np.zeros(x.shape[1])
        return merged_after(after, of_no_label(Moments(0, nothing, nothing, nothing), labels))
    kinds, codes = np.unique(labels, return_inverse=True)
    found = _moments(x, *_samples(x, arguments, codes), len(kinds))
    return merged_after(after, GroupMoments(kinds, Moments(*found)))


def _check_columns(x: Any, channel_axis: Any) -> None:
    """Raise unless x has a format, a dtype and channels that the kernels take."""
    if x.format not in ("csr", "csc"):
        raise TypeError(
            f"x must be CSR or CSC if it is sparse, got {x.format.upper()}: use .tocsr()"
        )
    if x.ndim != 2:
        raise ValueError(f"x must have 2 axes if it is sparse, got {x.ndim}")
    result_dtype("x", x.dtype)  # raises for complex and longer numbers
    axes = normalized_axes(channel_axis, 2, "channel_axis")
    if axes != (1,):
        raise NotImplementedError(
            f"channel_axis must be 1 with a sparse x, got {channel_axis}: transpose it, as in x.T"
        )
    _check_places(x)


def _check_places(x: Any) -> None:
    """Raise unless all stored values have a place in x, as SciPy does not check what is assigned.

    Kernels go where these arrays say.
    """
    across = x.format == "csr"
    lines, places = x.shape if across else x.shape[::-1]
    ends, indices = x.indptr, x.indices
    if ends.shape != (lines + 1,):
        raise ValueError(f"x must have an indptr of shape ({lines + 1},), got {ends.shape}")
    stored = min(indices.size, x.data.size)
    if ends[0] != 0 or ends[-1] > stored or (np.diff(ends) < 0).any():
        raise ValueError(f"x must have an indptr that rises from 0 to at most {stored}")
    used = indices[: ends[-1]]
    # As unsigned numbers, of which negative ones are the largest.
    if used.size and used.view(used.dtype.str.replace("i", "u")).max() >= places:
        what = "columns" if across else "rows"
        raise ValueError(
            f"x must have indices of its {places} {what}, got {used.min()} to {used.max()}"
        )


def _samples(x: Any, arguments: dict[str, Any], codes: Any) -> tuple[Any, Any, bool]:
    """Return the weights of the samples, their codes, and whether NaN is left out."""
    if arguments["where"] is not None:
        raise NotImplementedError("where must be None with a sparse x: set weights of samples to 0")
    policy = check_choice("nan_policy", arguments["nan_policy"], POLICIES)
    if policy == "raise" and x.dtype.kind == "f" and np.isnan(x.data).any():
        raise ValueError("x must not contain NaN, as nan_policy is 'raise'")
    weights = arguments["weights"]
    if weights is not None:
        weights = as_plain_array("weights", weights)
        result_dtype("weights", weights.dtype)
        samples = x.shape[0]
        if weights.shape not in ((samples,), (samples, 1)):
            expected = f"({samples},) or ({samples}, 1), one for each sample of a sparse x"
            raise ValueError(f"weights must have shape {expected}, got {weights.shape}")
        weights = np.ascontiguousarray(weights.reshape(-1), np.float64)
        if not np.all((weights >= 0.0) & (weights < np.inf)):
            raise ValueError("weights must be finite and at least 0")
    return weights, codes, policy == "omit"


def _moments(
    x: Any, weights: Any, codes: Any, omit: bool, groups: int | None
) -> tuple[Any, Any, Any, Any]:
    """Return count, mean, m2 and mean_lo of each column, or of each group and column."""
    backend = cast(SparseBackend, backend_of(np.ndarray))
    own = np.empty(0) if weights is None else weights
    samples = Samples(own, _codes(codes), groups or 1, omit)
    count, mean, m2, mean_lo = backend.sparse_moments(_stored(_summed(x)), samples)
    if groups is not None:
        return count, mean, m2, mean_lo
    if weights is None and not omit:  # an x without elements has no values, as a dense one
        return x.shape[0] if x.shape[1] else 0, mean[0], m2[0], mean_lo[0]
    return count[0], mean[0], m2[0], mean_lo[0]


def _codes(codes: Any) -> Any:
    """Return codes as kernels take them; none are an empty array."""
    return np.ascontiguousarray([] if codes is None else codes, np.int64)


def _summed(x: Any) -> Any:
    """Return x without entries of the same place, which SciPy adds up: x itself if it has none."""
    if not x.has_canonical_format:
        x = x.copy()
        x.sum_duplicates()
    return x


def _stored(x: Any) -> Stored:
    """Return what kernels take of a matrix."""
    values = x.data.astype(result_dtype("x", x.dtype), copy=False)
    values, indices, ends = (_plain(array) for array in (values, x.indices, x.indptr))
    return Stored(values, indices, ends, tuple(x.shape), x.format == "csc")


def _plain(array: Any) -> Any:
    """Return an array that kernels can read: writable, aligned and contiguous."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.flags.carray else np.array(array, order="C")


# Batch norm


def sparse_normalized(arguments: dict[str, Any]) -> Normalized[Any]:
    """Return what `batch_norm_forward` returns for a sparse x; the arguments are its own.

    The means are those of the columns, though they are not subtracted.
    """
    x, labels, stored = arguments["x"], arguments["labels"], arguments["statistics"]
    _check_columns(x, arguments["channel_axis"])
    dtype = result_dtype("x", x.dtype)
    _check_stays_sparse(x, dtype, arguments)
    out, clip = arguments["out"], checked_clip(arguments["clip"])
    eps, gamma = check_eps(arguments["eps"]), _gain(arguments["gamma"], x.shape[1])
    _check_out(out, x, dtype)
    if labels is None and stored is not None:
        raise no_labels()
    codes, kinds = None, None
    if labels is not None:
        check_no_running(arguments)
        labels = checked_labels(labels)
        check_shape("labels", labels.shape, (x.shape[0],), "one label for each sample")
        if not x.shape[0]:
            raise ValueError("x must have at least 1 sample with labels, got 0")
        kinds, codes = np.unique(labels, return_inverse=True)
    weights, _, omit = _samples(x, arguments, codes)
    if kinds is None:
        mean, variance = _statistics(x, weights, omit, arguments)
        mean, variance = mean[None], variance[None]
    elif stored is None:
        count, mean, m2, _ = _moments(x, weights, codes, omit, len(kinds))
        mean, variance = seen_statistics(count, mean, m2)
    else:
        mean, variance = stored_statistics(stored, kinds, x.shape, 1)
    rstd = reciprocals(deviations(variance, 1.0, eps, 0.0))
    scale = rstd if gamma is None else rstd * gamma
    y = _scaled(x, dtype, codes, scale, clip, out)
    if kinds is None:
        mean, rstd = mean[0], rstd[0]
    return Normalized(y, np.array(mean, _FLOAT64), rstd)


def _check_stays_sparse(x: Any, dtype: Any, arguments: dict[str, Any]) -> None:
    """Raise if the result would not be sparse."""
    if check_flag("with_mean", arguments["with_mean"]):
        rows, columns = x.shape
        size = rows * columns * dtype.itemsize
        raise ValueError(
            f"with_mean must be False with a sparse x, whose centred result is dense: {rows} x "
            f"{columns} {dtype}, {_described_size(size)}; got True"
        )
    for name in ("beta", "fill"):
        if arguments[name] is not None:
            raise ValueError(f"{name} must be None with a sparse x, whose result is sparse")


def _described_size(size: int) -> str:
    """Return a number of bytes in the largest unit of which there is at least one."""
    number, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.3g} {unit}"


def checked_clip(clip: Any) -> float:
    """Return the largest absolute value of results, infinity for None."""
    if clip is None:
        return np.inf
    return check_number("clip", clip, above=0.0)


def _gain(gamma: Any, columns: int) -> Any:
    """Return gamma in float64, None for None."""
    if gamma is None:
        return None
    gamma = as_plain_array("gamma", gamma)
    check_shape("gamma", gamma.shape, (columns,), "the channels of a sparse x")
    return gamma.astype(result_dtype("gamma", gamma.dtype)).astype(_FLOAT64)


def _check_out(out: Any, x: Any, dtype: Any) -> None:
    """Raise unless `out` is None or an x that can hold the result."""
    if out is not None and out is not x:
        raise ValueError("out must be x itself or None with a sparse x")
    if out is not None and x.dtype != dtype:
        raise TypeError(f"out must have dtype {dtype}, got {x.dtype}")
    if out is not None and not x.data.flags.carray:
        raise ValueError("out must have data that can be written, got a sparse matrix without")


def _statistics(x: Any, weights: Any, omit: bool, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Return the mean and the variance of each column; in training, move the running ones."""
    backend: Any = backend_of(np.ndarray)
    training = check_flag("training", arguments["training"])
    momentums = arguments["momentum"], arguments["batches"], arguments["convention"]
    running = arguments["running_mean"], arguments["running_var"]
    options = running_options(momentums, arguments["unbiased"], running, training)
    given, (samples, columns) = options.given, x.shape
    if given is not None:
        layout = column_layout(x.shape, 1)
        given = backend.running_statistics(*given, x, layout, training)
    if given is not None and not training:
        mean, variance = (np.asarray(array, _FLOAT64) for array in given)
        if np.any(variance < 0.0):
            raise ValueError(f"running_var must not be negative, got {np.nanmin(variance):g}")
        return mean, variance
    correction = options.correction(samples)
    count, mean, m2, _ = _moments(x, weights, None, omit, None)
    if not samples:
        return np.zeros(columns), np.zeros(columns)
    total = np.broadcast_to(np.asarray(count, _FLOAT64), mean.shape)
    mean, variance = seen_statistics(total, mean, m2)
    if given is not None and has_counts(Moments(count, mean, m2)):
        moved = mean, variance, np.array(total), correction
        backend.update_counted(given, *moved, options.weight)
    elif given is not None:
        backend.update_running(given, mean, m2, samples - correction, options.weight)
    return mean, variance


def _scaled(x: Any, dtype: Any, codes: Any, scale: Any, clip: float, out: Any) -> Any:
    """Return x with its values times the scale of their column, within -clip and clip."""
    backend = cast(SparseBackend, backend_of(np.ndarray))
    if out is None:
        y = _summed(x).astype(dtype)  # a copy
    else:
        if clip < np.inf and _summed(x).nnz != x.nnz:
            raise ValueError(
                "out must have no two entries of one place with clip: use x.sum_duplicates()"
            )
        y = x
    stored = _stored(y)
    backend.sparse_scaled(stored, _codes(codes), scale, clip, stored.values)
    if stored.values is not y.data:
        y.data[...] = stored.values
    return y
