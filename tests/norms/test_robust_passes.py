"""The statistics of robust norms in passes over parts: the bytes of the call on whole rows."""

import itertools

import numpy as np
import pytest

import numnorm
from numnorm.norms.robust_passes import robust_statistics

OPTIONS = [
    {},
    {"scale": "iqr", "factor": "normal"},
    {"scale": (0.05, 0.9), "method": "hazen"},
    {"scale": "range", "center": 0.25},
    {"scale": None},
    {"scale": None, "center": -1.5},
    {"scale": "mad", "center": 1.0, "factor": "normal", "method": "median_unbiased"},
    {"eps": 0.5, "method": "higher"},
]


def in_passes(x, options, cuts=(30, 31), budget=2000):
    ends = [0, *cuts, x.shape[1]]
    half = len(x) // 2
    parts = [
        (x[rows, start:end], np.arange(len(x))[rows])
        for start, end in itertools.pairwise(ends)
        for rows in (slice(0, half), slice(half, None))
    ]
    passes = []

    def each_pass(task):
        passes.append(task)
        return [task.found_in(*part) for part in parts]

    found = robust_statistics(len(x), x.dtype, options, each_pass, parts[:2], budget)
    y = np.empty_like(x)
    whole = type(found)(*(array[:, None] for array in found))
    whole.normalize(x, y)
    return y, len(passes)


def rows(kind, dtype):
    rng = np.random.default_rng(3)
    x = rng.normal(2, 3, size=(5, 90))
    if kind == "ties":
        x = rng.integers(-2, 3, (5, 90)) / 4
    if kind == "offset":
        x += 1e6
    if kind == "infinite":
        x[rng.random(x.shape) < 0.3] = np.inf
        x[1] = np.where(rng.random(90) < 0.5, -np.inf, np.inf)
    x[3] = 0.1
    if kind == "missing":
        x[0, 7] = x[2, 50:] = np.nan
    return x.astype(dtype)


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("normal", "float16"),
        ("normal", "float64"),
        ("ties", "float32"),
        ("offset", "float32"),
        ("offset", "float64"),
        ("infinite", "float32"),
        ("missing", "float64"),
    ],
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_bytes_of_whole_rows(options, kind, dtype):
    x = rows(kind, dtype)
    for policy in ("propagate", "omit") if kind == "missing" else ("propagate",):
        options = {**options, "nan_policy": policy}
        expected = numnorm.robust_norm(x, **options)
        for budget in (2000, 1 << 20):
            y, passes = in_passes(x, options, budget=budget)
            np.testing.assert_array_equal(y, expected)
        assert passes <= 4  # one that counts and one that keeps, for the center and for the scale


def test_the_mean_is_the_same_up_to_rounding():
    x = rows("offset", "float64")
    for scale in ("mad", "iqr", None):
        options = {"center": "mean", "scale": scale}
        expected = numnorm.robust_norm(x, **options)
        # A mean with mean_lo has a few roundings of a deviation, of which the largest are near 4.
        np.testing.assert_allclose(in_passes(x, options)[0], expected, atol=1e-14)


def test_the_policy_raises():
    with pytest.raises(ValueError, match=r"^x must not contain NaN"):
        in_passes(rows("missing", "float32"), {"nan_policy": "raise"})


def test_rows_of_no_numbers():
    x = np.full((2, 40), np.nan)
    for options in ({"nan_policy": "omit"}, {}, {"scale": "iqr"}):
        assert np.isnan(in_passes(x, options)[0]).all()
