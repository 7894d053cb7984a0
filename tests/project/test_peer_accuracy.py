"""The errors of moving norms that docs/numerics.md lists beside those of peers."""

import importlib
import re
from pathlib import Path

import pytest

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
