"""The errors of moving norms at offsets, of numnorm and of its peers.

``python -m peers.accuracy`` prints the tables of docs/numerics.md. The data are 10,000 steps of
normal noise in 8 channels, a minute apart on average where they have times, and the errors those of
all full windows, or of all steps, against the definition of the data as they are after their own
rounding.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np

from .arrays import Array, Timed, times_of
from .cases import Case
from .libraries import load
from .report import as_markdown
from .statistics_definition import fading, shares, starts, windows

SHAPE = (10_000, 8)
WINDOW = 50
OFFSETS = (0.0, 1e3, 1e5, 1e7)
# A value at this step, and the errors of the windows after it.
OUTLIER, AT = 1e12, 5000
LIBRARIES = {
    "moving_norm": ("numnorm", "pandas", "bottleneck", "numbagg", "torchaudio", "scipy", "numpy"),
    "exponential_norm": ("numnorm", "pandas", "numbagg", "braindecode"),
    "moving_norm_times": ("numnorm", "pandas"),
    "exponential_norm_times": ("numnorm", "pandas"),
}


@lru_cache(maxsize=1)
def _data(case: Case, offset: float, outlier: bool) -> tuple[Timed, Array]:
    """Return the data, and the last steps by the definition."""
    x = (np.random.default_rng(0).standard_normal(SHAPE) + offset).astype(case.dtype)
    if outlier:
        x[AT] = OUTLIER
    arrays = Timed(x, times_of(len(x)))
    if not case.window:
        return arrays, fading(x, shares(case, arrays))
    steps = np.arange(AT + WINDOW if outlier else WINDOW - 1, len(x))
    return arrays, windows(x, starts(case, arrays, steps), steps)


def error(library: str, norm: str, dtype: str, offset: float, outlier: bool = False) -> float:
    """Return the largest absolute error of a library."""
    window = WINDOW if norm.startswith("moving") else 0
    case = Case(norm, "forward", SHAPE, dtype, window=window)
    arrays, expected = _data(case, offset, outlier)
    call = load(library).call_of(case, arrays)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        (y,) = call.arrays(call.run())
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
    """Print the tables."""
    for norm, libraries in LIBRARIES.items():
        print(_table(norm, libraries))


if __name__ == "__main__":
    main()
