"""What the estimators share: checks of X, results that follow X, and chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import FLOAT_DTYPES, check_array, validate_data

from numnorm.arguments import check_shape
from numnorm.derived import parameters_of
from numnorm.norms.declared import BY_NAME
from numnorm.norms.weighted import POLICIES

Array = np.ndarray[Any, Any]

# The elements of a chunk: its temporary arrays of float64 stay in the cache.
CHUNK = 1 << 15

CONSTANT = ("zero", "nan", "raise")


class Normalizer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Base of all estimators; features go out as they came in, in their dtype."""

    _parameter_constraints: dict[str, list[Any]] = {
        "nan_policy": [StrOptions(set(POLICIES))],
        "copy": ["boolean"],
    }

    def _validated(self, X: Any, *, reset: bool) -> Array:
        """Return X as an array of floats, and remember its features if `reset`."""
        given = as_numpy(X)
        values = self._checked(given, float_dtypes(X))
        if reset:
            self._weights_of(values.shape[1])  # before the features are remembered
        validate_data(self, given, reset=reset, skip_check_array=True)
        return values

    def _checked(self, X: Any, dtype: Any) -> Array:
        """Return X as an array of floats that are finite or, where `nan_policy` says so, NaN."""
        values: Array = check_array(
            X, dtype=dtype, ensure_all_finite="allow-nan", estimator=self, input_name="X"
        )
        # scikit-learn's own message recommends other estimators.
        if not self._takes_nan() and (missing := np.isnan(values)).any():
            row, feature = np.argwhere(missing)[0]
            raise ValueError(
                f"X must not contain NaN, as nan_policy is 'raise', got one in row {row}, feature "
                f"{feature}: nan_policy='omit' leaves NaN out"
            )
        return values

    def _takes_nan(self) -> bool:
        return bool(self.nan_policy != "raise")

    def _counting(self, X: Array) -> dict[str, Any]:
        """Return the keywords with which a norm leaves out NaN, and those for weights of X."""
        weights = self._weights_of(X.shape[1])
        given: dict[str, Any] = {} if weights is None else {"weights": weights}
        return {**given, "nan_policy": "omit"} if self.nan_policy == "omit" else given

    def _weights_of(self, features: int) -> Array | None:
        """Return the checked weights of the features, if the estimator takes them and has some."""
        given = getattr(self, "weights", None)
        if given is None:
            return None
        weights: Array = check_array(
            as_numpy(given), ensure_2d=False, dtype=np.float64, input_name="weights"
        )
        check_shape("weights", weights.shape, (features,), "one for each feature of X")
        if not (np.min(weights) >= 0 and np.any(weights)):
            got = f"{np.min(weights):g}" if np.any(weights) else "only 0"
            raise ValueError(f"weights must be at least 0, and greater for a feature, got {got}")
        return weights

    def _relative_weights(self, features: int) -> tuple[Array, Any]:
        """Return weights times ``2.0**-exponent``, so that the largest is near 1; the exponent."""
        weights = self._weights_of(features)
        if weights is None:
            return np.ones(features), 0
        exponent = np.frexp(np.max(weights))[1]
        with np.errstate(under="ignore"):
            return np.ldexp(weights, -exponent), exponent

    def _out(self, values: Array) -> Array | None:
        """Return where to write the result: into `values` where that is wanted and possible."""
        return None if self.copy or not values.flags.writeable else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_nan()
        tags.transformer_tags.preserves_dtype = [np.dtype(kind).name for kind in FLOAT_DTYPES]
        tags.array_api_support = True
        return tags


def constraints_of(norm: str) -> dict[str, list[Any]]:
    """Return the constraints of all estimators, with weights if the norm is declared with some."""
    constraints = dict(Normalizer._parameter_constraints)
    if "weights" in parameters_of(BY_NAME[norm].function):
        constraints["weights"] = ["array-like", None]
    return constraints


class RowNormalizer(Normalizer):
    """Base of the estimators that take each row by itself; subclasses have `_normalized`."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters and X, of which nothing but the features is learned.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : None
            Ignored.

        Returns
        -------
        self : object
            This estimator.
        """
        self._validate_params()
        self._validated(X, reset=True)
        return self

    def transform(self, X: Any) -> Any:
        """Normalize each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        X_transformed : ndarray of shape (n_samples, n_features)
            The normalized rows, in the dtype of X.
        """
        self._validate_params()
        values = self._validated(X, reset=False)
        return like(X, self._normalized(values, self._out(values)))

    def _normalized(self, X: Array, out: Array | None) -> Array:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def float_dtypes(X: Any) -> Any:
    """Return the dtypes that an array of X may have; the first is what others become."""
    # scikit-learn makes float64 of the frames of polars.
    columns = {str(kind) for kind in getattr(X, "dtypes", ())}
    return np.float32 if columns == {"Float32"} else FLOAT_DTYPES


def as_numpy(X: Any) -> Any:
    """Return an array of another library as a NumPy array if scikit-learn dispatches on it."""
    if _namespace(X) is None:
        return X
    try:
        return np.from_dlpack(X)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"X must be shareable as an array of NumPy: {error}") from error


def like(X: Any, result: Array) -> Any:
    """Return a result as an array of the library and the device of X if it dispatches on X."""
    namespace = _namespace(X)
    return result if namespace is None else namespace.asarray(result, device=X.device)


def check_same_library(X: Any, estimator: Any, attribute: str) -> None:
    """Raise if scikit-learn dispatches on X, and the estimator was fitted with another library."""
    if sklearn.get_config()["array_api_dispatch"]:
        from sklearn.utils import _array_api

        check = getattr(_array_api, "check_same_namespace", None)  # scikit-learn 1.9
        if check is not None:
            check(X, estimator, attribute=attribute, method="transform")


def _namespace(X: Any) -> Any:
    """Return the module of an array that scikit-learn leaves as it is, or None."""
    if isinstance(X, np.ndarray) or not sklearn.get_config()["array_api_dispatch"]:
        return None
    from sklearn.utils._array_api import get_namespace

    namespace, known = get_namespace(X)
    # Lists and data frames have NumPy's.
    return namespace if known and hasattr(X, "__dlpack__") else None


def row_chunks(X: Array, step: int = 1) -> Iterator[slice]:
    """Yield the chunks of rows of X, of a multiple of `step`."""
    length = step * max(1, CHUNK // (step * X.shape[1]))
    for start in range(0, len(X), length):
        yield slice(start, start + length)


def in_chunks(function: Callable[[Array], Array], X: Array, out: Array | None = None) -> Array:
    """Return what a function makes of rows of float64, chunk by chunk, in the dtype of X."""
    result = np.empty_like(X) if out is None else out
    with np.errstate(all="ignore"):
        for rows in row_chunks(X):
            # One order of summation, and so one result, for every layout of X.
            result[rows] = function(X[rows].astype(np.float64, order="C"))
    return result


def exponents_of_largest(x: Array, axis: int) -> Array:
    """Return the exponents that bring the largest finite values along an axis to 1/2 ... 1.

    They keep the axis. With ``np.ldexp(x, -exponents)`` squares neither overflow nor vanish, and no
    digit is lost.
    """
    largest = np.max(abs(x), axis=axis, keepdims=True, where=np.isfinite(x), initial=0.0)
    exponents: Array = np.frexp(largest)[1]
    return exponents


def centred(x: Array, weights: Array, valid: Array | None = None) -> tuple[Array, Array]:
    """Return the deviations from the mean of each row, and the mean; x is float64."""
    where: Any = True if valid is None else valid
    count = weight_of(weights, x.shape, where)
    mean = np.sum(x * weights, axis=1, keepdims=True, where=where) / count
    deviations = x - mean
    # What the mean lost when it was rounded, which is much at a large offset.
    lost = np.sum(deviations * weights, axis=1, keepdims=True, where=where) / count
    deviations -= lost
    return deviations, mean + lost


def weight_of(weights: Array, shape: tuple[int, ...], where: Any) -> Array:
    """Return the sum of the weights of each row, of those where `where` is true."""
    total: Array = np.sum(np.broadcast_to(weights, shape), axis=1, keepdims=True, where=where)
    return total


def check_constant(constant: Array, policy: str, what: str) -> None:
    """Raise if a row is constant and `policy` says so."""
    if policy == "raise" and constant.any():
        raise ValueError(f"X must not have {what}, got one in row {int(np.argmax(constant))}")
