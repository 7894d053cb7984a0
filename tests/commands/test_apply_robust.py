"""``numnorm apply robust_norm``: its options, and rows that do not fit into memory, in passes."""

import os

import numpy as np
import pytest
from array_files import apply, bits, draw

import numnorm
from numnorm.commands.apply import run

TINY = "0.0004"  # blocks of 419 bytes
SMALL = "0.0015"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def passes(monkeypatch):
    """The tasks of all passes."""
    tasks = []
    found = run.Here.found

    def noted(self, job, task, parts):
        tasks.append(task)
        return found(self, job, task, parts)

    monkeypatch.setattr(run.Here, "found", noted)
    return tasks


def check(capsys, x, *options, block_size=TINY, **keywords):
    np.save("x.npy", x)
    arguments = ("robust_norm", "x.npy", "y.npy", *options, "--block-size", block_size, "--force")
    assert apply(capsys, *arguments) == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.robust_norm(x, **keywords))


CALLS = [
    ((), {}),
    (("--axis", "0"), {"axis": 0}),
    (("--axis", "0", "1", "2"), {"axis": (0, 1, 2)}),
    (("--axis", "2", "0", "--scale", "iqr"), {"axis": (2, 0), "scale": "iqr"}),
    (("--scale", "0.1", "0.8", "--method", "hazen"), {"scale": (0.1, 0.8), "method": "hazen"}),
    (("--scale", "none", "--center", "2.5"), {"scale": None, "center": 2.5}),
    (("--factor", "normal", "--axis", "1"), {"factor": "normal", "axis": 1}),
    (("--factor", "2", "--scale", "range"), {"factor": 2.0, "scale": "range"}),
]


@pytest.mark.parametrize(
    "dtype, order", [("float32", "C"), ("float32", "F"), ("float64", "C"), ("int16", "C")]
)
@pytest.mark.parametrize("options, keywords", CALLS)
def test_same_bits_as_in_memory(capsys, passes, options, keywords, dtype, order):
    x = draw((4, 20, 9), dtype, order=order)
    check(capsys, x, *options, block_size=SMALL, **keywords)
    rows = np.prod([x.shape[axis] for axis in np.atleast_1d(keywords.get("axis", -1))])
    assert bool(passes) is bool(rows * max(x.itemsize, 4 if dtype == "float32" else 8) > 1572)


def test_few_passes_where_blocks_are_of_a_usual_size(capsys, passes):
    x = np.random.default_rng(0).normal(1e3, 1, 30_000).astype("float32")
    check(capsys, x, block_size="0.1")
    assert len(passes) == 4  # one that counts and one that keeps, of elements and of distances
    passes.clear()
    check(capsys, x, "--scale", "iqr", block_size="0.1", scale="iqr")
    assert len(passes) == 2


def test_missing_values(capsys, passes):
    x = draw((2, 1500))
    x[0, [5, 1000]] = np.nan
    check(capsys, x, block_size=SMALL)
    check(capsys, x, "--nan-policy", "omit", block_size=SMALL, nan_policy="omit")
    assert passes
    status, text = apply(
        capsys, "robust_norm", "x.npy", "z.npy", "--nan-policy", "raise", "--block-size", TINY
    )
    assert status and "x must not contain NaN" in text
    assert not os.path.exists("z.npy")


def test_the_mean_of_long_rows_is_the_same_up_to_rounding(capsys, passes):
    x = draw((3, 900), "float64")
    np.save("x.npy", x)
    assert apply(
        capsys, "robust_norm", "x.npy", "y.npy", "--center", "mean", "--block-size", TINY
    ) == (0, "")
    assert passes
    # Some roundings of values near 4.
    expected = numnorm.robust_norm(x, center="mean")
    np.testing.assert_allclose(np.load("y.npy"), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "options, message",
    [
        (("--scale", "wide"), "scale must be"),
        (("--scale", "0.9", "0.1"), "scale must be a lower"),
        (("--center", "middle"), "center must be"),
        (("--method", "mode"), "method must be"),
        (("--factor", "sd"), "factor must be"),
    ],
)
def test_options_that_are_wrong(capsys, options, message):
    np.save("x.npy", draw((4, 5)))
    status, text = apply(capsys, "robust_norm", "x.npy", "y.npy", *options)
    assert status and message in text


def test_other_norms_keep_the_meaning_of_their_options(capsys):
    x = draw((6, 20))
    np.save("x.npy", x)
    arguments = ("moving_norm", "--center", "x.npy", "y.npy", "--window", "5")
    assert apply(capsys, *arguments) == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.moving_norm(x, 5, center=True))
    assert apply(capsys, "ada_norm", "x.npy", "z.npy", "--scale", "2") == (0, "")
    assert bits(np.load("z.npy")) == bits(numnorm.ada_norm(x, scale=2.0))
