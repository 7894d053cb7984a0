"""The checks that scikit-learn has for every estimator."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn
from packaging.version import Version
from sklearn import config_context
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from numnorm import sklearn as estimators

EVERY = [
    estimators.StandardNormalVariate(),
    estimators.StandardNormalVariate(with_mean=False, nan_policy="omit"),
    estimators.StandardNormalVariate(constant="nan", nan_policy="raise"),
    estimators.RobustNormalVariate(),
    estimators.RobustNormalVariate(method="mad"),
    estimators.LocalStandardNormalVariate(window=3),
    estimators.MovingNormalizer(window=3),
    estimators.MultiplicativeScatterCorrection(),
    estimators.MultiplicativeScatterCorrection(nan_policy="propagate"),
    estimators.LayerNormalizer(),
    estimators.LayerNormalizer(nan_policy="raise"),
    estimators.RMSNormalizer(),
    estimators.RMSNormalizer(nan_policy="omit"),
    estimators.BatchNormalizer(),
    estimators.BatchNormalizer(nan_policy="propagate"),
]
LEARNS = (estimators.BatchNormalizer, estimators.MultiplicativeScatterCorrection)


def failures_expected(estimator):
    if isinstance(estimator, LEARNS):
        return {}
    # scikit-learn's own Normalizer is marked likewise.
    return {"check_array_api_same_namespace": "nothing is learned that could lie elsewhere"}


def test_every_estimator_is_checked():
    assert {type(estimator).__name__ for estimator in EVERY} == set(estimators.__all__)


@parametrize_with_checks(EVERY, expected_failed_checks=failures_expected)
def test_scikit_learn_finds_nothing(estimator, check):
    check(estimator)


@pytest.mark.skipif("SCIPY_ARRAY_API" not in os.environ, reason="run by the test below")
@pytest.mark.parametrize("estimator", EVERY, ids=str)
def test_values_and_library_of_array_api_strict(estimator):
    strict = pytest.importorskip("array_api_strict")
    x = np.random.default_rng(0).standard_normal((7, 9))
    expected = clone(estimator).fit_transform(x)
    with config_context(array_api_dispatch=True):
        for device in ("CPU_DEVICE", "device1"):
            values = strict.asarray(x, device=strict.Device(device))
            result = clone(estimator).fit_transform(values)
            assert result.device == values.device
            np.testing.assert_array_equal(np.from_dlpack(result), expected)


@pytest.mark.skipif(
    Version(sklearn.__version__) < Version("1.7"), reason="scikit-learn needs another package"
)
def test_the_checks_of_other_array_libraries():
    # Without this variable, which must be set before SciPy is imported, they are skipped.
    chosen = [__file__, "-k", "array_api_strict", "-p", "no:cacheprovider", "-rs"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *chosen],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
    assert "not set" not in ended.stdout
