"""The checks that scikit-learn has for every estimator."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from numnorm import sklearn as estimators

EVERY = [
    estimators.StandardNormalVariate(),
    estimators.StandardNormalVariate(with_mean=False, nan_policy="omit"),
    estimators.StandardNormalVariate(constant="nan", nan_policy="raise"),
    estimators.RobustNormalVariate(),
    estimators.RobustNormalVariate(method="mad"),
    estimators.LocalStandardNormalVariate(window=3),
    estimators.MultiplicativeScatterCorrection(),
    estimators.LayerNormalizer(),
    estimators.RMSNormalizer(),
    estimators.BatchNormalizer(),
]
LEARNS = (estimators.BatchNormalizer, estimators.MultiplicativeScatterCorrection)


def failures_expected(estimator):
    if isinstance(estimator, LEARNS):
        return {}
    # scikit-learn's own Normalizer is marked likewise.
    return {"check_array_api_same_namespace": "nothing is learned that could lie elsewhere"}


@parametrize_with_checks(EVERY, expected_failed_checks=failures_expected)
def test_scikit_learn_finds_nothing(estimator, check):
    check(estimator)
