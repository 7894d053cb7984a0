"""The errors of norms that docs/numerics.md lists beside those of peers."""

import importlib
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from sklearn import preprocessing

import numnorm

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (float\d\d), ([\de]+)(, after 1e12)? \| ([\de-]+) \|")


def rows(norm):
    """The dtype, the offset, whether there is an outlier, and the error of numnorm."""
    page = (ROOT / "docs" / "numerics.md").read_text("utf-8")
    words = norm.replace("_times", "(times=)")
    table = page[page.index(f"| dtype, offset | `{words}` |") :].split("\n\n")[0]
    for dtype, offset, after, error in ROW.findall(table):
        yield dtype, float(offset), bool(after), float(error)


@pytest.fixture
def accuracy(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "asv_benchmarks")
    return importlib.import_module("peers.accuracy")


NORMS = ["moving_norm", "exponential_norm", "moving_norm_times", "exponential_norm_times"]


@pytest.mark.parametrize("norm", NORMS)
def test_the_page_has_the_errors_of_numnorm(norm, accuracy):
    listed = list(rows(norm))
    assert len(listed) == (9 if norm == "moving_norm" else 8)
    assert {offset for _, offset, _, _ in listed} == set(accuracy.OFFSETS)
    for dtype, offset, after, stated in listed:
        error = accuracy.error("numnorm", norm, dtype, offset, after)
        # The promise, and the page up to the rounding of another processor or Numba.
        assert error <= min(1e-6, 2 * stated)


def test_another_library_that_is_always_there_is_worse(accuracy):
    # So that the data show what they are for.
    sums = [accuracy.error("numpy", "moving_norm", "float64", offset) for offset in (0.0, 1e5)]
    assert sums[0] < 1e-11 and sums[1] > 1e-4


def torch_layer_norm(x):
    torch = pytest.importorskip("torch")
    return torch.nn.functional.layer_norm(torch.from_numpy(x), x.shape[1:]).numpy()


LAYER_NORM = re.compile(r"^\| (\S+), (1|1e30) \|(.*)\|$", re.MULTILINE)
PEERS = {
    "numnorm": numnorm.layer_norm,
    "PyTorch": torch_layer_norm,
    "SciPy": lambda x: scipy.stats.zscore(x, axis=1),
    "scikit-learn": lambda x: preprocessing.scale(x, axis=1),
}


def error_of(library, mean, deviation):
    rng = np.random.default_rng(0)
    x = (mean + deviation * rng.standard_normal((256, 1024))).astype(np.float32)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        y = PEERS[library](x)
    wide = x.astype(np.longdouble)
    wide -= wide.mean(axis=1, keepdims=True)
    eps = np.longdouble(1e-5 if library in ("numnorm", "PyTorch") else 0)
    return float(abs(y - wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps)).max())


@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=[pytest.mark.torch] * (name == "PyTorch")) for name in PEERS],
)
def test_the_page_has_the_errors_of_layer_norms(library):
    page = (ROOT / "docs" / "numerics.md").read_text("utf-8")
    rows = LAYER_NORM.findall(page[page.index("| mean, standard deviation |") :].split("\n\n")[0])
    assert [row[0] for row in rows] == ["0", "1e3", "1e6", "1e7", "0"]
    for mean, deviation, cells in rows:
        stated = cells.split("|")[list(PEERS).index(library)].partition(",")[0].strip()
        error = error_of(library, float(mean), float(deviation))
        if library == "numnorm":
            # The page up to the rounding of another processor or Numba.
            assert error <= 2 * float(stated)
        elif stated == "zeros":
            assert error > 1
        else:
            # The order of magnitude: another version may add in another order.
            assert np.isnan([error, float(stated)]).all() or 0.1 < error / float(stated) < 10
