"""The errors of moving norms at offsets, of numnorm and of its peers.

``python -m peers.accuracy`` prints the tables of docs/numerics.md. The data are 10,000 steps of
normal noise in 8 channels, and the errors those of all full windows, or of all steps, against the
definition of the data as they are after their own rounding.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np

from .arrays import Array, Arrays
from .cases import Case
from .libraries import load
from .report import as_markdown
from .statistics_definition import fading, windows

SHAPE = (10_000, 8)
WINDOW = 50
OFFSETS = (0.0, 1e3, 1e5, 1e7)
# A value at this step, and the errors of the windows after it.
OUTLIER, AT = 1e12, 5000
MOVING = ("numnorm", "pandas", "bottleneck", "numbagg", "torchaudio", "scipy", "numpy")
FADING = ("numnorm", "pandas", "numbagg", "braindecode")


@lru_cache(maxsize=1)
def _data(dtype: str, offset: float, outlier: bool) -> tuple[Array, Array, Array]:
    """Return the data, and the windows and the fading statistics by their definitions."""
    x = (np.random.default_rng(0).standard_normal(SHAPE) + offset).astype(dtype)
    if outlier:
        x[AT] = OUTLIER
    return x, windows(x, WINDOW, np.arange(_first(outlier), len(x))), fading(x)


def _first(outlier: bool) -> int:
    return AT + WINDOW if outlier else WINDOW - 1


def error(library: str, norm: str, dtype: str, offset: float, outlier: bool = False) -> float:
    """Return the largest absolute error of a library."""
    x, of_windows, faded = _data(dtype, offset, outlier)
    case = Case(norm, "forward", SHAPE, dtype, window=WINDOW if norm == "moving_norm" else 0)
    call = load(library).call_of(case, Arrays(x, *[None] * 5))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        (y,) = call.arrays(call.run())
    expected = of_windows if case.window else faded
    return float(abs(y[len(y) - len(expected) :] - expected).max())


def _table(norm: str, libraries: tuple[str, ...]) -> str:
    data = [(dtype, offset, False) for dtype in ("float64", "float32") for offset in OFFSETS]
    if norm == "moving_norm":
        data.append(("float64", 0.0, True))
    rows = []
    for dtype, offset, outlier in data:
        errors = [error(name, norm, dtype, offset, outlier) for name in libraries]
        after = f", after {_brief(OUTLIER, 'g')}" if outlier else ""
        numbers = (_brief(number, ".0e") for number in errors)
        rows.append([f"{dtype}, {_brief(offset, 'g')}{after}", *numbers])
    return as_markdown([f"{norm}: dtype, offset", *libraries], rows)


def _brief(number: float, form: str) -> str:
    if np.isnan(number):
        return "NaN"
    if 1e3 <= number < np.inf:
        form = ".0e"
    # Without the padding of exponents.
    return format(number, form).replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def main() -> None:
    """Print both tables."""
    print(_table("moving_norm", MOVING))
    print(_table("exponential_norm", FADING))


if __name__ == "__main__":
    main()
