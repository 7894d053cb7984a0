"""Estimators of data of any scale: a power of two in X is one in the result, or none."""

import numpy as np
import pytest
from every_call import COMPILED

from numnorm.sklearn import (
    BatchNormalizer,
    LayerNormalizer,
    LocalStandardNormalVariate,
    MovingNormalizer,
    MultiplicativeScatterCorrection,
    RMSNormalizer,
    RobustNormalVariate,
    StandardNormalVariate,
)

WEIGHTS = np.arange(60) % 3  # of each feature

# Results that have the scale of the rows.
LINEAR = [
    StandardNormalVariate(with_std=False),
    MovingNormalizer(with_std=False),
    MultiplicativeScatterCorrection(),
    MultiplicativeScatterCorrection(weights=WEIGHTS),
    BatchNormalizer(with_std=False),
]
ESTIMATORS = [
    StandardNormalVariate(ddof=1),
    StandardNormalVariate(with_mean=False),
    StandardNormalVariate(ddof=1, weights=WEIGHTS),
    StandardNormalVariate(with_mean=False, weights=WEIGHTS),
    RobustNormalVariate(),
    RobustNormalVariate(method="mad"),
    LocalStandardNormalVariate(window=5, ddof=1),
    LocalStandardNormalVariate(),
    MovingNormalizer(),
    MovingNormalizer(window=41, center=True),
    MovingNormalizer(subtract_mean=False),
    LayerNormalizer(eps=0.0),
    RMSNormalizer(eps=0.0),
    RMSNormalizer(eps=0.0, weights=WEIGHTS),
    BatchNormalizer(),
    BatchNormalizer(with_mean=False),
    *LINEAR,
]


@pytest.mark.parametrize("exponent", [-1000, -508, 508, 1000])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_deviations_of_any_scale(estimator, missing, exponent):
    only_mean = isinstance(estimator, MovingNormalizer) and not estimator.with_std
    if not COMPILED and exponent == 1000 and only_mean:
        pytest.skip("without a fused multiplication and addition the variance is NaN")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 60)) + 3 * np.sin(np.arange(60) / 7)
    if missing:
        x[rng.random(x.shape) < 0.05] = np.nan
        estimator.set_params(nan_policy="omit")
    expected = estimator.fit(x).transform(x)
    if estimator in LINEAR:
        expected = np.ldexp(expected, exponent)
    scaled = np.ldexp(x, exponent)
    with np.errstate(all="raise"):
        y = estimator.fit(scaled).transform(scaled)
    # A power of two costs no digit; where a row is scaled at another place of the formula there is
    # one more rounding.
    largest = np.nanmax(abs(expected))
    np.testing.assert_allclose(y / largest, expected / largest, rtol=0, atol=1e-14)
    if isinstance(estimator, BatchNormalizer):
        back = estimator.inverse_transform(y)
        largest = np.nanmax(abs(scaled))
        np.testing.assert_allclose(back / largest, scaled / largest, rtol=0, atol=1e-15)


def test_an_outlier_of_another_scale_changes_only_its_windows():
    x = np.random.default_rng(0).normal(size=(2, 100)) * 1e-150
    expected = MovingNormalizer(window=5).fit_transform(np.ldexp(x, 500))
    x[:, 50] = 1e200
    y = MovingNormalizer(window=5).fit_transform(x)
    elsewhere = np.r_[:50, 55:100]
    np.testing.assert_allclose(y[:, elsewhere], expected[:, elsewhere], rtol=1e-12)


def test_chunks_of_features_of_any_scale():
    x = np.random.default_rng(0).normal(size=(50, 4)) * [1e-200, 1.0, 1e153, 0.0]
    whole, parts = BatchNormalizer().fit(x), BatchNormalizer()
    for part in np.array_split(x, 3):
        parts.partial_fit(part)
    np.testing.assert_allclose(parts.scale_, whole.scale_, rtol=1e-14)
    deviations = x[:, :3].astype(np.longdouble).std(0)
    np.testing.assert_allclose(whole.scale_[:3], deviations.astype(float), rtol=1e-14)
    assert whole.scale_[3] == 1.0
