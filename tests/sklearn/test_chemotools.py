"""The scatter corrections beside those of chemotools."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from numnorm.sklearn import (
    MultiplicativeScatterCorrection,
    RobustNormalVariate,
    StandardNormalVariate,
)

pytestmark = pytest.mark.chemotools

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"


@pytest.fixture
def coffee():
    datasets = pytest.importorskip("chemotools.datasets", reason="chemotools is not installed")
    pytest.importorskip("pandas")
    return datasets.load_coffee()[0].to_numpy(np.float64)


def test_equal_on_real_spectra(coffee):
    scatter = pytest.importorskip("chemotools.scatter")
    pairs = [
        (StandardNormalVariate(), scatter.StandardNormalVariate()),
        (RobustNormalVariate(eps=1e-10), scatter.RobustNormalVariate()),
        (RobustNormalVariate(percentile=60, eps=1e-10), scatter.RobustNormalVariate(60)),
        (MultiplicativeScatterCorrection(), scatter.MultiplicativeScatterCorrection()),
    ]
    for ours, theirs in pairs:
        # What the others lose in the variance and in the inverse of a 2 × 2 matrix.
        np.testing.assert_allclose(
            ours.fit_transform(coffee), theirs.fit_transform(coffee), rtol=1e-9, atol=1e-11
        )


@pytest.mark.filterwarnings("ignore:Standard deviation is zero", "ignore:invalid value")
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:Denominator is zero")
def test_where_they_differ(coffee):
    scatter = pytest.importorskip("chemotools.scatter")
    flat = coffee.copy()
    flat[0] = 0.25
    assert np.isnan(scatter.StandardNormalVariate().fit_transform(flat)[0]).all()
    assert (StandardNormalVariate().fit_transform(flat)[0] == 0).all()
    # With an offset its regression loses all digits, as the two columns are nearly parallel.
    far = coffee + 1e7
    theirs = scatter.MultiplicativeScatterCorrection().fit_transform(far) - 1e7
    ours = MultiplicativeScatterCorrection().fit_transform(far) - 1e7
    near = MultiplicativeScatterCorrection().fit_transform(coffee)
    # x is rounded at 1e7 to 2e-9, and divided by slopes that are near 1.
    assert abs(ours - near).max() < 1e-6
    assert abs(theirs - near).max() > 1e-3
    # Single precision comes back as double.
    assert scatter.StandardNormalVariate().fit_transform(coffee.astype("f4")).dtype == np.float64
    assert StandardNormalVariate().fit_transform(coffee.astype("f4")).dtype == np.float32


def test_gallery():
    pytest.importorskip("chemotools")
    example = runpy.run_path(str(GALLERY / "spectra_pls.py"))
    errors = example["main"]()
    assert min(errors["standard normal variate"][:4]) < min(errors["none"][:4]) / 2
    assert min(errors["in windows of 51"]) < min(errors["standard normal variate"])
