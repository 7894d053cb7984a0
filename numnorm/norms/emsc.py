"""Extended multiplicative signal correction of spectra (Martens and Stark 1991)."""

from __future__ import annotations

from collections.abc import Iterator
from sys import modules
from typing import Any, Generic, NamedTuple, Never

import numpy as np

from numnorm.arguments import Shape, brief, check_float, check_integer, check_shape
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_norm_on_host,
    check_out,
    lazily,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, row_layout
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import Counting, checked_counting, fills, of_rows

# A slope less than this, times the largest element, is what rounding left of a fit.
_NOISE = 4.0 * float(np.finfo(np.float64).eps)

# Spectra with weights or missing elements of their own are fitted so many at a time.
_TOGETHER = 256


class EMSCNormalized(NamedTuple, Generic[Array]):
    """Corrected spectra, and how much of the reference each one held.

    Attributes
    ----------
    y : array
        The corrected spectra, of the shape and dtype of x.
    slope : array
        The coefficient of the reference in each spectrum, NaN without a fit; float64 (float32 for
        float16).

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.emsc_forward([[3.0, 5.0, 9.0]], [1.0, 2.0, 4.0], degree=0)
    >>> forward.y, forward.slope
    (array([[1., 2., 4.]]), array([2.]))
    """

    y: Array
    slope: Any


def emsc(
    x: Input[Array],
    reference: ArrayLike,
    *,
    axis: Integer = -1,
    degree: Integer = 2,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Take the baseline and the gain of its fit to a reference from each spectrum.

    A spectrum is fitted by least squares, with the wavelength :math:`t` from -1 to 1,

    .. math:: x \approx b \, m + \sum_{k=0}^{K} c_k t^k, \quad
              y = \frac{1}{b} \left( x - \sum_{k=0}^{K} c_k t^k \right)

    where :math:`m` is the reference and :math:`K` the degree [1]_ [2]_. With degree 0 this is
    multiplicative scatter correction.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array of Dask, in any chunks, gives a lazy result.
    reference : array_like
        The spectrum m, often the mean of all spectra; of the length of `axis`.
    axis : int, default -1
        The axis of the wavelengths, which have equal distances.
    degree : int, default 2
        The degree of the baseline's polynomial.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How much each element counts in the fit, any numbers from 0 on, of the length of `axis` or
        broadcasting against x: 0 where the spectra differ by their chemistry.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its spectrum NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. A spectrum without any of the reference, such as a constant
        one, becomes the baseline of the reference; one of which too few elements count becomes NaN.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value; also if the
        reference is itself a polynomial of that degree along all wavelengths.

    References
    ----------
    .. [1] H. Martens, E. Stark, "Extended multiplicative signal correction and spectral
       interference subtraction", Journal of Pharmaceutical and Biomedical Analysis, 1991.
    .. [2] N. K. Afseth, A. Kohler, "Extended multiplicative signal correction in vibrational
       spectroscopy, a tutorial", Chemometrics and Intelligent Laboratory Systems, 2012.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.emsc([[3.0, 5.0, 9.0], [0.5, 1.0, 2.0]], [1.0, 2.0, 4.0], degree=0)
    array([[1., 2., 4.],
           [1., 2., 4.]])
    """
    if others:
        raise unexpected(emsc, others)
    if "dask" in modules and any_lazy(x, reference, where, weights):
        return lazily(emsc, locals())
    counting = where, weights, nan_policy, fill
    return _corrected(x, reference, axis, degree, out, counting).y


def emsc_forward(
    x: Input[Array],
    reference: ArrayLike,
    *,
    axis: Integer = -1,
    degree: Integer = 2,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> EMSCNormalized[Array]:
    """Return `emsc` together with the slopes that its backward pass needs.

    Parameters
    ----------
    x, reference, axis, degree, out, where, weights, nan_policy, fill
        As for `emsc`.

    Returns
    -------
    EMSCNormalized
        ``(y, slope)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.emsc_forward([[3.0, 5.0, 9.0]], [1.0, 2.0, 4.0], degree=0).slope
    array([2.])
    """
    if others:
        raise unexpected(emsc_forward, others)
    if "dask" in modules and any_lazy(x, reference, where, weights):
        return lazily(emsc_forward, locals())
    return _corrected(x, reference, axis, degree, out, (where, weights, nan_policy, fill))


def emsc_backward(
    dy: ArrayLike,
    x: Input[Array],
    slope: ArrayLike,
    reference: ArrayLike,
    *,
    axis: Integer = -1,
    degree: Integer = 2,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `emsc` with respect to x; the reference is a constant.

    With the residual :math:`r` of x and :math:`v` of the reference after the fit of the baseline,
    the matrix :math:`A` of that fit's residual, and the weights :math:`w`,

    .. math:: dx = \frac1b \left( A^T dy
              - \frac{w v}{\sum w v^2} \, \frac{\sum dy \, r}{b} \right)

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    slope : array_like
        As `emsc_forward` returned it.
    reference : array_like
        As in the forward pass.
    axis, degree
        As in the forward pass.
    out : array, optional
        Where to write the result; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    array
        dx, of the shape and dtype of x. A spectrum with a slope of 0 gets a gradient of 0.

    Raises
    ------
    TypeError, ValueError
        As `emsc` does.

    Examples
    --------
    >>> import numnorm
    >>> x, reference = [[3.0, 5.0, 9.0]], [1.0, 2.0, 4.0]
    >>> y, slope = numnorm.emsc_forward(x, reference, degree=0)
    >>> numnorm.emsc_backward([[0.0, 0.0, 1.0]], x, slope, reference, degree=0).round(4)
    array([[ 0.0714, -0.1071,  0.0357]])
    """
    if others:
        raise unexpected(emsc_backward, others)
    if "dask" in modules and any_lazy(dy, x, slope, reference, where, weights):
        return lazily(emsc_backward, locals())
    spectra = _Spectra.of(x, reference, axis, degree, (where, weights, nan_policy, None))
    gradient = _float_array("dy", dy)
    check_shape("dy", gradient.shape, spectra.x.shape, "the shape of x")
    slopes = _float_array("slope", slope).astype(np.float64)
    check_shape("slope", slopes.shape, spectra.layout.statistic_shape, "one for each row")
    rows, slopes = spectra.rows(gradient), slopes.reshape(-1, 1)
    # In the units of the scaled reference, as the fits are.
    slopes = np.ldexp(slopes, spectra.exponent)
    dx = np.empty(rows.shape)
    with np.errstate(all="ignore"):
        for some, fit in spectra.fits():
            dy_rows = fit.kept(rows[some])
            along = np.sum(dy_rows * fit.kept(fit.residual(spectra.values[some])), axis=1)
            own = slopes[some]
            found = fit.transposed(dy_rows) - fit.direction * (along[:, np.newaxis] / own)
            dx[some] = np.where(own == 0.0, 0.0, fit.kept(found / own))
        # y is in the units of the reference.
        dx = np.ldexp(dx, spectra.exponent)
    return spectra.result(dx, out)


def _corrected(
    x: Any, reference: Any, axis: Any, degree: Any, out: Any, counting: tuple[Any, Any, Any, Any]
) -> EMSCNormalized[Any]:
    spectra = _Spectra.of(x, reference, axis, degree, counting)
    fill, fill_missing = fills(counting[-1])
    y = np.empty(spectra.values.shape)
    slopes = np.full((len(y), 1), np.nan)  # without wavelengths there is no fit
    with np.errstate(all="ignore"):
        for some, fit in spectra.fits():
            values = spectra.values[some]
            residual = fit.residual(values)
            slopes[some] = slope = fit.slopes(values, residual)
            y[some] = np.where(slope == 0.0, 0.0, residual / slope) + fit.baseline
        y = np.ldexp(y, spectra.exponent)
        slopes = np.ldexp(slopes, -spectra.exponent)
        left_out = spectra.rows_of(spectra.counting.where)
        missing = np.isnan(spectra.values) if spectra.counting.omit else np.False_
        y = np.where(missing, fill_missing, y)
        y = y if left_out is None else np.where(left_out, y, fill)
    corrected = spectra.result(y, out)
    return EMSCNormalized(corrected, spectra.statistic(slopes))


class _Fit(NamedTuple):
    """The fit of baselines to spectra: n spectra with weights of their own, or 1 for all.

    Attributes
    ----------
    basis : array
        The polynomials, ``(K + 1, D)``.
    solve : array
        What gives their coefficients of a spectrum, ``(n, K + 1, D)``; NaN where too few elements
        count.
    direction : array
        Rows whose product with a residual is the slope, ``(n, D)``.
    baseline : array
        That of the reference, ``(n, D)``.
    keep : array or None
        Which elements count, ``(n, D)``.
    """

    basis: Any
    solve: Any
    direction: Any
    baseline: Any
    keep: Any

    def kept(self, x: Any) -> Any:
        """Return spectra with 0 for what is left out."""
        return x if self.keep is None else np.where(self.keep, x, 0.0)

    def residual(self, x: Any) -> Any:
        """Return spectra less their baselines."""
        # First less a constant, so that no offset costs digits.
        deviations = x - _products(self.kept(x), self.solve[:, :1])
        coefficients = _products(self.kept(deviations), self.solve)
        return deviations - _sums(coefficients, self.basis[np.newaxis])

    def slopes(self, x: Any, residual: Any) -> Any:
        """Return the coefficient of the reference in each spectrum; 0 where it is only rounding."""
        slope = np.sum(self.kept(residual) * self.direction, axis=1, keepdims=True)
        largest = np.max(np.abs(self.kept(x)), axis=1, keepdims=True, initial=0.0)
        size = np.max(np.abs(self.direction), axis=1, keepdims=True, initial=0.0)
        noise = _NOISE * np.sqrt(x.shape[1]) * largest * size
        return np.where(np.abs(slope) <= noise, 0.0, slope)

    def transposed(self, dy: Any) -> Any:
        """Return the transposed matrix of `residual` times rows."""
        return dy - _sums(_products(dy, self.basis[np.newaxis]), self.solve)


def _products(rows: Any, matrices: Any) -> Any:
    """Return the products of rows with the rows of matrices, ``(n, K)``.

    A matrix product would round otherwise for another number of rows.
    """
    return np.stack([np.sum(rows * each, axis=1) for each in np.moveaxis(matrices, 1, 0)], axis=1)


def _sums(coefficients: Any, matrices: Any) -> Any:
    """Return the sums of the rows of matrices times coefficients, ``(n, D)``."""
    terms = zip(coefficients.T[..., np.newaxis], np.moveaxis(matrices, 1, 0), strict=True)
    return sum(coefficient * each for coefficient, each in terms)


def _fitted(reference: Any, degree: int, weights: Any, keep: Any) -> _Fit:
    """Return the fits for rows of weights, which are 0 where `keep` is false."""
    width = len(reference)
    t = np.linspace(-1.0, 1.0, width) if width > 1 else np.zeros(width)
    basis = np.polynomial.legendre.legvander(t, degree).T
    # No result depends on the scale of the weights; a power of two keeps their squares in range.
    exponents = np.frexp(np.max(weights, axis=1, initial=0.0, keepdims=True))[1]
    root = np.sqrt(np.ldexp(weights, -exponents))
    scaled = np.moveaxis(basis * root[:, np.newaxis], 1, 2)
    q, r = np.linalg.qr(scaled)
    solve = np.linalg.pinv(r) @ (np.moveaxis(q, 1, 2) * root[:, np.newaxis])
    # The row of the constant gives the mean of a spectrum, a level close to it.
    level = _products(reference[np.newaxis], solve[:, :1])
    baseline = level + _sums(_products(reference - level, solve), basis[np.newaxis])
    deviations = reference - baseline
    across = root**2 * deviations
    squares = np.sum(across * deviations, axis=1, keepdims=True)
    enough = np.count_nonzero(root, axis=1, keepdims=True) > degree + 1
    enough &= squares > (1e-14 * np.max(np.abs(reference), initial=0.0)) ** 2
    solve[~enough[:, 0]] = np.nan
    return _Fit(basis, solve, np.where(enough, across / squares, np.nan), baseline, keep)


class _Spectra(NamedTuple):
    """Checked arguments of a call.

    Attributes
    ----------
    like : callable or None
        Makes an array of the library of x of one of NumPy.
    x : array
    layout : RowLayout
    values : array of float64
        The spectra, a row each.
    reference : array of float64
        Divided by ``2**exponent``, so that its squares are in range.
    exponent : int
    degree : int
    counting : Counting
    """

    like: Any
    x: Any
    layout: RowLayout
    values: Any
    reference: Any
    exponent: int
    degree: int
    counting: Counting

    @classmethod
    def of(cls, x: Any, reference: Any, axis: Any, degree: Any, counting: Any) -> _Spectra:
        """Return the arguments, or raise an error."""
        check_norm_on_host("emsc", x)
        like = results_like(x)
        _, array = backend_for(x, "x")
        layout, order = _checked_layout(array.shape, axis, degree)
        spectrum = _float_array("reference", reference).astype(np.float64)
        check_shape("reference", spectrum.shape, (layout.width,), "the normalized axis of x")
        if not np.isfinite(spectrum).all():
            wrong = spectrum[~np.isfinite(spectrum)][0]
            raise ValueError(f"reference must be finite, got {wrong:g}")
        exponent = int(np.frexp(np.max(np.abs(spectrum), initial=0.0))[1])
        spectrum = np.ldexp(spectrum, -exponent)
        _, checked = checked_counting(of_rows, array, axis, *counting)
        unset = cls(like, array, layout, None, spectrum, exponent, order, checked)
        return unset._replace(values=unset.rows(array).astype(np.float64))

    def rows(self, array: Any) -> Any:
        """Return an array of the shape of x as rows."""
        moved = array if self.layout.order is None else array.transpose(self.layout.order)
        return moved.reshape(self.layout.rows, self.layout.width)

    def rows_of(self, array: Any) -> Any:
        """Return an array that broadcasts against x as rows; None for None."""
        return None if array is None else self.rows(np.broadcast_to(array, self.x.shape))

    def same_in_all_spectra(self, weights: Any) -> bool:
        """Return whether weights that broadcast against x differ along the wavelengths alone."""
        axis = self.layout.order[-1] if self.layout.order else self.x.ndim - 1
        first = self.x.ndim - weights.ndim
        return all(n == 1 or first + k == axis for k, n in enumerate(weights.shape))

    def fits(self) -> Iterator[tuple[Any, _Fit]]:
        """Yield which rows a fit is for, and the fit.

        Raise for a wrong reference, whatever the spectra and their weights are.
        """
        width = self.layout.width
        if not width:
            return
        fit = _fitted(self.reference, self.degree, np.ones((1, width)), None)
        if np.isnan(fit.direction).any():
            raise ValueError(f"reference must not be a polynomial of degree {self.degree}")
        keep = self.rows_of(self.counting.where)
        if self.counting.omit:
            present = ~np.isnan(self.values)
            keep = present if keep is None else keep & present
        weights = self.counting.weights
        each = np.broadcast_to(1.0, self.values.shape) if weights is None else self.rows_of(weights)
        shared = weights is None or self.same_in_all_spectra(weights)
        whole = np.ones(len(each), bool) if keep is None else keep.all(axis=1)
        if shared and whole.any():
            if weights is not None:
                fit = _fitted(self.reference, self.degree, each[:1], None)
            yield np.flatnonzero(whole), fit
        others = np.flatnonzero(~whole if shared else np.ones(len(each), bool))
        for start in range(0, len(others), _TOGETHER):
            some = others[start : start + _TOGETHER]
            kept = np.ones((len(some), 1), bool) if keep is None else keep[some]
            yield some, _fitted(self.reference, self.degree, each[some] * kept, kept)

    def result(self, rows: Any, out: Any) -> Any:
        """Return rows in the shape, dtype and library of x, or write them."""
        with np.errstate(all="ignore"):
            array = rows.astype(self.x.dtype)
        order = self.layout.order
        if order is None:
            y = array.reshape(self.x.shape)
        else:
            moved = array.reshape([self.x.shape[axis] for axis in order])
            y = np.ascontiguousarray(moved.transpose(np.argsort(order)))
        if out is not None:
            view = writable_view("out", out)
            check_out(view, self.x, "x")
            view[...] = y
            return out
        return y if self.like is None else self.like(y)

    def statistic(self, slopes: Any) -> Any:
        """Return a number for each row, in the library of x, as the backward pass takes it."""
        dtype = np.float32 if self.x.dtype.itemsize == 2 else np.float64
        array = slopes.astype(dtype).reshape(self.layout.statistic_shape)
        return array if self.like is None else statistics_like(self.like)(array)


def _float_array(name: str, value: Any) -> Any:
    array = as_plain_array(name, value)
    check_float(name, array.dtype)
    return array


def _one_axis(axis: Any) -> Any:
    if isinstance(axis, tuple | list) and len(axis) != 1:
        raise ValueError(f"axis must name one axis, got {brief(axis)}")
    return axis


def _checked_layout(shape: Shape, axis: Any, degree: Any) -> tuple[RowLayout, int]:
    """Return the layout of the spectra, and the degree; no wavelengths fit to any degree."""
    layout = row_layout(shape, _one_axis(axis))
    order, width = check_integer("degree", degree, 0), layout.width
    if width == 1:
        raise ValueError(f"x must have at least {order + 2} wavelengths for degree {order}, got 1")
    if order > width - 2 >= 0:
        raise ValueError(f"degree must be at most {width - 2} for {width} wavelengths, got {order}")
    return layout, order


def _row_call(shape: Shape, axis: Any, degree: Any = 2) -> RowCall:
    """Return the layout of the spectra."""
    layout, _ = _checked_layout(shape, axis, degree)
    return RowCall(layout, scaling_by(0.0))


SPEC = NormSpec(
    emsc,
    emsc_forward,
    emsc_backward,
    family="rows",
    counts=of_rows,
    constants={"reference": "normalized"},
    row_call=_row_call,
    example=Example(
        "[[3.0, 5.0, 9.0]]",
        "[1.0, 2.0, 4.0], degree=0",
        "[[1. 2. 4.]]",
        "[[ 0.0714 -0.1071  0.0357]]",
    ),
)
