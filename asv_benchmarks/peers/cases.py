"""The cases of the comparison: norm, recurrent cell or estimator, direction, and array."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

ROWS = [
    (1, 256),
    (32, 512),
    (128, 1024),
    (1024, 768),
    (4096, 1024),
    (16384, 1024),
    (65536, 64),
    (2048, 8192),
    (1_000_000, 16),
]
QUICK_ROWS = [(1, 256), (1024, 768), (4096, 1024)]
MATRICES = [(1024, 768), (4096, 1024)]
QUICK_MATRICES = MATRICES[:1]
# Samples and channels, for the norms that have channels.
CHANNELS = [(8192, 256)]
# Larger than all caches: there a dtype of half the size should take half the time.
LARGE = (16384, 1024)
IMAGES = [(32, 64, 56, 56)]
# Steps, sequences, inputs and units.
SEQUENCES = [
    (100, 1, 128, 128),
    (100, 12, 128, 128),
    (100, 32, 256, 256),
    (60, 64, 512, 512),
    (500, 8, 400, 400),
]
QUICK_SEQUENCES = SEQUENCES[:2]
# Samples and wavelengths.
SPECTRA = [(60, 1841), (4096, 1024)]
QUICK_SPECTRA = SPECTRA[:1]
# Steps and channels of recordings, as far as the arrays of all libraries fit in memory together.
_STEPS, _CHANNELS = (600, 10_000, 1_000_000, 10_000_000), (1, 22, 80, 512)
RECORDINGS = [(steps, channels) for steps in _STEPS for channels in _CHANNELS]
QUICK_RECORDINGS = [(600, 80), (10_000, 22)]
MOST_BYTES = 700e6
WINDOWS = (10, 300, 3000)
# The only one for long recordings, whose time does not depend on it.
WINDOW = 300
LONG = 6e6
# Steps and channels for statistics that fade.
FADING = [(600, 80), (50_000, 22), (1_000_000, 1)]
# Channels and steps.
TIME_LAST = [(22, 50_000), (512, 10_000)]
# Samples and features of which some are missing.
INCOMPLETE = [(1024, 768), (4096, 1024)]
# Samples and features of a few labels in turn, such as days and grid points: a climatology.
LABELLED = [
    *((365, 64_800), (3650, 2592), (7300, 100), (36_500, 300), (1000, 20)),
    *((100_000, 64), (1_000_000, 8), (50_000, 512)),
]
QUICK_LABELLED = [(1000, 20), (7300, 100)]

# Forecasts of samples and channels, with steps last; and rows, as one channel.
FORECASTS = [(32, 7, 96), (32, 7, 720), (256, 21, 192), (32, 321, 96), (32, 862, 336)]
FORECASTS += [(1024, 768), (16384, 1024)]
# Samples and features, of statistics of each feature.
FEATURES = [(8192, 256), (100_000, 64), (1_000_000, 8)]

# Rows for robust norms; columns are the same with the axes exchanged.
ROBUST_ROWS = [
    (1, 1_000_000),
    (10, 100_000),
    (100, 10_000),
    (256, 2048),
    (1024, 768),
    (2048, 256),
    (4096, 64),
    (8192, 16),
]

# Irregular steps, a minute apart on average, and channels; windows are of so many minutes.
TIMED = [(600, 1), (600, 80), (10_000, 1), (10_000, 22), (100_000, 1), (100_000, 22)]
TIMED += [(1_000_000, 1), (1_000_000, 4)]
QUICK_TIMED = [(600, 80), (10_000, 22)]
# Samples and features for quantiles of each feature.
SAMPLES = [(1000, 1), (1000, 100), (1000, 1000), (100_000, 1), (100_000, 30)]
SAMPLES += [(1_000_000, 1), (1_000_000, 4), (10_000_000, 1)]
# Samples and features of sparse matrices, and the share of values that are stored.
STORED = {
    (1000, 100): 0.1,
    (3000, 2000): 0.1,
    (50_000, 2000): 0.05,
    (100_000, 300): 0.1,
    (2000, 20_000): 0.02,
    (300_000, 30): 0.3,
    (50_000, 50): 0.9,
    (500_000, 10_000): 0.0005,
}

# The number of groups in Wu and He (2018).
GROUPS = 32
# Added to a variance.
EPS = 1e-5
# The recurrent cells, with the norm that each has.
CELLS = {"lstm": None, "ln_lstm": "layer"}
# The transformers of scikit-learn; `BatchNormalizer` stands beside its StandardScaler.
ESTIMATORS = (
    *("StandardNormalVariate", "RobustNormalVariate", "MultiplicativeScatterCorrection"),
    "BatchNormalizer",
)
# The norms along an axis, the first one or, of channels and steps, the last one.
MOVING = ("moving_norm", "moving_norm_last", "exponential_norm", "exponential_norm_last")
# A median of windows subtracted, and the rest divided by the distance of the quartiles.
ORDER = ("moving_median", "moving_quartiles")
# Channels and steps, and windows of order statistics.
ORDER_SHAPES, ORDER_WINDOWS = ((1, 200_000), (22, 20_000)), (11, 101, 1001, 10_001)
# The weight of a new step in `exponential_norm`, and the least deviation.
ALPHA = 1e-3
LEAST = 1e-4
# No gain, no bias, no epsilon: rows and columns with NaN left out, and rows under a mask.
MISSING = ("rows_nan", "columns_nan", "rows_where")
# The means and the deviations of each label, and the samples normalized by those of their label.
BY_LABEL = ("labels_statistics", "labels_norm")
LABELS = 12
# The way back, by statistics of all but the last axis, and of the last axis.
INVERSES = ("denormalize", "denormalize_features")
# Centred by the median, and scaled by the median absolute deviation, the interquartile range, or
# not at all.
ROBUST = tuple(
    f"{kind}_{lines}" for lines in ("rows", "columns") for kind in ("mad", "iqr", "median")
)
# By windows that last a duration, and by weights with a half-life, in minutes.
TIMES = ("moving_norm_times", "exponential_norm_times")
HALFLIFE = 300
# Three quantiles of each feature, or the median and the interquartile range: of the whole array,
# of chunks in turn, with an error of rank, and of chunks of Dask.
QUANTILES = ("quantiles", "median_iqr", "quantiles_chunks", "quantiles_error", "quantiles_dask")
Q = (0.25, 0.5, 0.75)
CHUNKS = 10
ERROR = 0.01
# Mean and variance of each feature, or the samples by their deviations, of all or of each batch.
SPARSE = tuple(
    f"{what}_{layout}" for layout in ("csr", "csc") for what in ("moments", "scaled", "batches")
)
MOST, BATCHES = 10.0, 8
FAMILIES = {
    "estimators": ESTIMATORS,
    "moving": MOVING,
    "order": ORDER,
    "missing": MISSING,
    "labels": BY_LABEL,
    "inverse": INVERSES,
    "robust": ROBUST,
    "times": TIMES,
    "quantiles": QUANTILES,
    "sparse": SPARSE,
}


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Parameters
    ----------
    norm : str
        A norm of numnorm, ``"batch_norm_inference"``, or ``"standardize"``: a layer norm without
        gain, bias and epsilon, as `zscore` and `scale` compute it. Or one of `CELLS`, or one of
        `ESTIMATORS`, which are fitted and transform the same array, or of another of `FAMILIES`.
    direction : {"forward", "backward", "forward and backward"}
        Only the output; all gradients, from the saved results of the forward pass; or, for cells,
        all gradients including the forward pass.
    shape : tuple of int
        The shape of the array: rows; or samples, channels and spatial axes. For cells: steps,
        sequences, inputs and units.
    dtype : str
        The dtype of its elements.
    out : bool
        Whether the result is written into an existing array.
    window : int
        The number of steps of a window that moves, or of minutes in `TIMES`, else 0.
    density : float
        The share of values that are stored, less than 1 for sparse matrices.
    """

    norm: str
    direction: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    out: bool = False
    window: int = 0
    density: float = 1.0

    @property
    def family(self) -> str:
        """The family of comparable cases."""
        for family, norms in FAMILIES.items():
            if self.norm in norms:
                return family
        return "cells" if self.norm in CELLS else "norms"

    @property
    def kind(self) -> str:
        """The direction, and whether there is an output array."""
        return f"{self.direction} out=" if self.out else self.direction

    @property
    def label(self) -> str:
        """The norm and the array, in words."""
        window = f", window {self.window}" if self.window else ""
        minutes = " min" if window and self.family == "times" else ""
        stored = f", {self.density:.2%} stored" if self.density < 1 else ""
        shape = "×".join(map(str, self.shape))
        return f"{self.norm} {self.dtype} {shape}{window}{minutes}{stored}"

    @property
    def axis(self) -> int:
        """The axis of time, or of what has one mean."""
        steps_first = self.norm in ("moving_norm", "exponential_norm", *TIMES)
        return 0 if steps_first or "columns" in self.norm or self.family == "quantiles" else 1

    @property
    def name(self) -> str:
        """The whole case, in words."""
        return f"{self.family}, {self.kind}: {self.label}"


def all_cases(quick: bool = False) -> list[Case]:
    """Return the cases of the comparison; with `quick`, those of a few shapes and the images.

    Cases of the same array follow each other, so that the workers can reuse it.
    """
    rows, matrices = (QUICK_ROWS, QUICK_MATRICES) if quick else (ROWS, MATRICES)
    channels = matrices if quick else [*matrices, *CHANNELS]
    norms = [*_layer_norms(rows, matrices), *_other_norms(matrices, channels)]
    cells = _cells(QUICK_SEQUENCES if quick else SEQUENCES)
    estimators = _estimators(QUICK_SPECTRA if quick else SPECTRA)
    incomplete = INCOMPLETE[:1] if quick else INCOMPLETE
    by_label = _by_label(QUICK_LABELLED if quick else LABELLED)
    robust = _robust(ROBUST_ROWS[4:6] if quick else ROBUST_ROWS)
    statistics = [*_moving(quick), *_order(quick), *_missing(incomplete), *by_label]
    statistics += [*_inverses(quick), *robust, *_times(quick), *_quantiles(quick), *_sparse(quick)]
    return [*norms, *cells, *estimators, *statistics]


def _layer_norms(rows: list[tuple[int, ...]], matrices: list[tuple[int, ...]]) -> Iterator[Case]:
    arrays = [(shape, "float32") for shape in rows]
    others = [*matrices, LARGE] if LARGE in rows else matrices
    arrays += [(shape, dtype) for dtype in ("float16", "bfloat16", "float64") for shape in others]
    for shape, dtype in arrays:
        yield Case("layer_norm", "forward", shape, dtype)
        yield Case("layer_norm", "forward", shape, dtype, out=True)
        yield Case("layer_norm", "backward", shape, dtype)
    for shape in rows:
        yield Case("standardize", "forward", shape)


def _other_norms(
    matrices: list[tuple[int, ...]], channels: list[tuple[int, ...]]
) -> Iterator[Case]:
    # A channel of a matrix is a single number, so that instance norm is only for images.
    shapes = {
        "rms_norm": matrices,
        "ada_norm": matrices,
        "group_norm": [*channels, *IMAGES],
        "instance_norm": IMAGES,
        "batch_norm": [*channels, *IMAGES],
        "batch_norm_inference": [*channels, *IMAGES],
    }
    for norm, arrays in shapes.items():
        for shape in arrays:
            for direction in ("forward", "backward"):
                yield Case(norm, direction, shape)


def _cells(sequences: list[tuple[int, ...]]) -> Iterator[Case]:
    for shape in sequences:
        for cell in CELLS:
            for direction in ("forward", "forward and backward"):
                yield Case(cell, direction, shape)


def _estimators(spectra: list[tuple[int, ...]]) -> Iterator[Case]:
    for shape in spectra:
        for dtype in ("float32", "float64"):
            for estimator in ESTIMATORS:
                yield Case(estimator, "forward", shape, dtype)


def _moving(quick: bool) -> Iterator[Case]:
    last, fading = (TIME_LAST[:1], FADING[:1]) if quick else (TIME_LAST, FADING)
    for dtype, size in {"float32": 4, "float64": 8}.items():
        for shape in QUICK_RECORDINGS if quick else RECORDINGS:
            if size * math.prod(shape) <= MOST_BYTES:
                for window in _windows(shape, quick):
                    yield Case("moving_norm", "forward", shape, dtype, window=window)
        for shape in fading:
            yield Case("exponential_norm", "forward", shape, dtype)
        for shape in last:
            yield Case("moving_norm_last", "forward", shape, dtype, window=WINDOW)
            yield Case("exponential_norm_last", "forward", shape, dtype)


def _windows(shape: tuple[int, ...], quick: bool) -> list[int]:
    windows = (WINDOW,) if quick or math.prod(shape) > LONG else WINDOWS
    return [window for window in windows if window <= shape[0]]


def _order(quick: bool) -> Iterator[Case]:
    for norm in ORDER:
        for shape in ORDER_SHAPES[:1] if quick else ORDER_SHAPES:
            for dtype in ("float32", "float64"):
                for window in ORDER_WINDOWS[:2] if quick else ORDER_WINDOWS:
                    yield Case(norm, "forward", shape, dtype, window=window)


def _missing(shapes: list[tuple[int, ...]]) -> Iterator[Case]:
    for norm in MISSING:
        for shape in shapes:
            for dtype in ("float32", "float64"):
                yield Case(norm, "forward", shape, dtype)


def _by_label(shapes: list[tuple[int, ...]]) -> Iterator[Case]:
    for shape in shapes:
        for dtype in ("float32", "float64"):
            for norm in BY_LABEL:
                yield Case(norm, "forward", shape, dtype)


def _inverses(quick: bool) -> Iterator[Case]:
    for norm, shapes in zip(INVERSES, (FORECASTS, FEATURES), strict=True):
        for shape in shapes[:1] if quick else shapes:
            for dtype in ("float32", "float64"):
                yield Case(norm, "forward", shape, dtype)


def _robust(shapes: list[tuple[int, ...]]) -> Iterator[Case]:
    for shape in shapes:
        for dtype in ("float32", "float64"):
            for norm in ROBUST:
                yield Case(norm, "forward", shape[::-1] if "columns" in norm else shape, dtype)


def _times(quick: bool) -> Iterator[Case]:
    for shape in QUICK_TIMED if quick else TIMED:
        for dtype in ("float32", "float64"):
            for window in _windows(shape, quick or dtype == "float32"):
                yield Case("moving_norm_times", "forward", shape, dtype, window=window)
            yield Case("exponential_norm_times", "forward", shape, dtype)


def _quantiles(quick: bool) -> Iterator[Case]:
    for shape in SAMPLES[:2] if quick else SAMPLES:
        for norm in QUANTILES:
            yield Case(norm, "forward", shape)


def _sparse(quick: bool) -> Iterator[Case]:
    for shape, density in list(STORED.items())[: 2 if quick else None]:
        for norm in SPARSE:
            yield Case(norm, "forward", shape, density=density)
