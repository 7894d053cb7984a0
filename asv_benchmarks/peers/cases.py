"""The cases of the comparison: norm, recurrent cell or estimator, direction, and array."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Parameters
    ----------
    norm : str
        A norm of numnorm, ``"batch_norm_inference"``, or ``"standardize"``: a layer norm without
        gain, bias and epsilon, as `zscore` and `scale` compute it. Or one of `CELLS`, or one of
        `ESTIMATORS`, which are fitted and transform the same array.
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
    """

    norm: str
    direction: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    out: bool = False

    @property
    def family(self) -> str:
        """The family of comparable cases: norms, recurrent cells, or estimators."""
        if self.norm in ESTIMATORS:
            return "estimators"
        return "cells" if self.norm in CELLS else "norms"

    @property
    def kind(self) -> str:
        """The direction, and whether there is an output array."""
        return f"{self.direction} out=" if self.out else self.direction

    @property
    def label(self) -> str:
        """The norm and the array, in words."""
        return f"{self.norm} {self.dtype} {'×'.join(map(str, self.shape))}"

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
    return [*norms, *cells, *_estimators(QUICK_SPECTRA if quick else SPECTRA)]


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
