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
# The weight of a new step in `exponential_norm`, and the least deviation.
ALPHA = 1e-3
LEAST = 1e-4
# No gain, no bias, no epsilon: rows and columns with NaN left out, and rows under a mask.
MISSING = ("rows_nan", "columns_nan", "rows_where")
# Centred by the median, and scaled by the median absolute deviation, the interquartile range, or
# not at all.
ROBUST = tuple(
    f"{kind}_{lines}" for lines in ("rows", "columns") for kind in ("mad", "iqr", "median")
)


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Parameters
    ----------
    norm : str
        A norm of numnorm, ``"batch_norm_inference"``, or ``"standardize"``: a layer norm without
        gain, bias and epsilon, as `zscore` and `scale` compute it. Or one of `CELLS`, or one of
        `ESTIMATORS`, which are fitted and transform the same array, or of `MOVING`, `MISSING` or
        `ROBUST`.
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
        The number of steps of a window that moves, else 0.
    """

    norm: str
    direction: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    out: bool = False
    window: int = 0

    @property
    def family(self) -> str:
        """The family of comparable cases."""
        families = {
            "estimators": ESTIMATORS,
            "moving": MOVING,
            "missing": MISSING,
            "robust": ROBUST,
        }
        for family, norms in families.items():
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
        return f"{self.norm} {self.dtype} {'×'.join(map(str, self.shape))}{window}"

    @property
    def axis(self) -> int:
        """The axis of time, or of what has one mean."""
        steps_first = self.norm in ("moving_norm", "exponential_norm")
        return 0 if steps_first or "columns" in self.norm else 1

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
    robust = ROBUST_ROWS[4:6] if quick else ROBUST_ROWS
    others = [*_moving(quick), *_missing(incomplete), *_robust(robust)]
    return [*norms, *cells, *estimators, *others]


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
            count = math.prod(shape)
            if size * count > MOST_BYTES:
                continue
            for window in (WINDOW,) if quick or count > LONG else WINDOWS:
                if window <= shape[0]:
                    yield Case("moving_norm", "forward", shape, dtype, window=window)
        for shape in fading:
            yield Case("exponential_norm", "forward", shape, dtype)
        for shape in last:
            yield Case("moving_norm_last", "forward", shape, dtype, window=WINDOW)
            yield Case("exponential_norm_last", "forward", shape, dtype)


def _missing(shapes: list[tuple[int, ...]]) -> Iterator[Case]:
    for norm in MISSING:
        for shape in shapes:
            for dtype in ("float32", "float64"):
                yield Case(norm, "forward", shape, dtype)


def _robust(shapes: list[tuple[int, ...]]) -> Iterator[Case]:
    for shape in shapes:
        for dtype in ("float32", "float64"):
            for norm in ROBUST:
                yield Case(norm, "forward", shape[::-1] if "columns" in norm else shape, dtype)
