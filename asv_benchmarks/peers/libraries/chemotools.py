"""chemotools: scatter corrections."""

from __future__ import annotations

from functools import partial

from chemotools import scatter

from ..arrays import Arrays
from ..cases import Case
from . import Call

PACKAGES = ("chemotools", "scikit-learn", "numpy")


def start(threads: int) -> None:
    """Do nothing: the estimators have one thread, unless they are told otherwise."""


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return the estimator of the same name."""
    if case.family != "estimators" or not hasattr(scatter, case.norm):
        return None
    estimator = getattr(scatter, case.norm)()
    if case.norm == "RobustNormalVariate":
        estimator.set_params(epsilon=0)  # by default it adds 1e-10
    return Call(partial(estimator.fit_transform, arrays.x), lambda y: [y])
