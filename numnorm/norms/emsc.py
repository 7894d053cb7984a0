"""Extended multiplicative signal correction of spectra (Martens and Stark 1991)."""

from __future__ import annotations

from sys import modules
from typing import Any, Generic, NamedTuple, Never

import numpy as np

from numnorm.arguments import Shape, brief, check_integer, check_shape
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_out,
    is_on_device,
    lazily,
    results_like,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, row_layout
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import Counting, checked_counting, fills, of_rows


class EMSCNormalized(NamedTuple, Generic[Array]):
    """Corrected spectra, and how much of the reference each one held.

    Attributes
    ----------
    y : array
        The corrected spectra, of the shape and dtype of x.
    slope : array
        The coefficient of the reference in each spectrum; float64 (float32 for float16).

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
        one, becomes the baseline of the reference.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value; also if the
        reference is itself a polynomial of that degree.

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
    gradient = _on_host("dy", dy)
    check_shape("dy", gradient.shape, spectra.x.shape, "the shape of the input")
    slopes = _on_host("slope", slope).astype(np.float64)
    check_shape("slope", slopes.shape, spectra.layout.statistic_shape, "one for each row")
    rows, slopes = spectra.rows(gradient), slopes.reshape(-1, 1)
    dx = np.empty(rows.shape)
    with np.errstate(all="ignore"):
        for some, fit in spectra.fits():
            kept = fit.keep if fit.keep is not None else True
            dy_rows = np.where(kept, rows[some], 0.0)
            residual = fit.residual(spectra.values[some])
            along = np.sum(dy_rows * np.where(kept, residual, 0.0), axis=1, keepdims=True)
            own = slopes[some]
            found = (fit.transposed(dy_rows) - fit.direction * (along / own)) / own
            dx[some] = np.where(kept & (own != 0.0), found, 0.0)
    return spectra.result(dx, out)


def _corrected(
    x: Any, reference: Any, axis: Any, degree: Any, out: Any, counting: tuple[Any, Any, Any, Any]
) -> EMSCNormalized[Any]:
    spectra = _Spectra.of(x, reference, axis, degree, counting)
    fill, fill_missing = fills(counting[-1])
    y = np.empty(spectra.values.shape)
    slopes = np.empty((len(y), 1))
    with np.errstate(all="ignore"):
        for some, fit in spectra.fits():
            residual = fit.residual(spectra.values[some])
            # Elements that are left out are 0 in the sum: their direction is.
            slope = np.sum(np.where(fit.direction != 0.0, residual, 0.0) * fit.direction, axis=1)
            slopes[some, 0] = slope
            slope = slope[:, np.newaxis]
            y[some] = np.where(slope == 0.0, 0.0, residual / slope) + fit.baseline
        left_out = spectra.rows_of(spectra.counting.where)
        missing = np.isnan(spectra.values) if spectra.counting.omit else np.False_
        y = np.where(missing, fill_missing, y)
        y = y if left_out is None else np.where(left_out, y, fill)
    corrected = spectra.result(y, out)
    return EMSCNormalized(corrected, spectra.statistic(slopes))


class _Fit(NamedTuple):
    """The fit of a baseline to spectra with the same weights.

    Attributes
    ----------
    basis : array
        The polynomials, ``(K + 1, D)``.
    solve : array
        The matrix that gives their coefficients of a spectrum, ``(K + 1, D)``.
    direction : array
        The row whose product with a residual is the slope.
    baseline : array
        That of the reference.
    keep : array or None
        Which elements count.
    """

    basis: Any
    solve: Any
    direction: Any
    baseline: Any
    keep: Any

    def residual(self, x: Any) -> Any:
        """Return spectra less their baselines."""
        kept = x if self.keep is None else np.where(self.keep, x, 0.0)
        # First less a constant, so that no offset costs digits.
        level = np.sum(kept * self.solve[0], axis=1, keepdims=True)
        deviations = x - level
        kept = deviations if self.keep is None else np.where(self.keep, deviations, 0.0)
        return deviations - _product(_product(kept, self.solve.T), self.basis)

    def transposed(self, dy: Any) -> Any:
        """Return the transposed matrix of `residual` times rows."""
        return dy - _product(_product(dy, self.basis.T), self.solve)


def _product(rows: Any, matrix: Any) -> Any:
    # A matrix product would round otherwise for another number of rows.
    return np.einsum("ij,jk->ik", rows, matrix)


def _fitted(reference: Any, degree: int, weights: Any, keep: Any) -> _Fit:
    """Return the fit for weights of one spectrum, None for equal ones."""
    width = len(reference)
    t = np.linspace(-1.0, 1.0, width) if width > 1 else np.zeros(width)
    basis = np.polynomial.legendre.legvander(t, degree).T
    root = np.ones(width) if weights is None else np.sqrt(weights)
    q, r = np.linalg.qr((basis * root).T)
    # The row of the constant gives the mean of a spectrum, a level close to it.
    solve = np.linalg.pinv(r) @ (q.T * root)
    level = solve[0] @ reference
    baseline = level + (solve @ (reference - level)) @ basis
    across = root**2 * (reference - baseline)
    squares = np.sum(across * (reference - baseline))
    if not squares > (1e-14 * np.max(np.abs(reference), initial=0.0)) ** 2:
        raise ValueError(
            f"reference must not be a polynomial of degree {degree} where its elements count"
        )
    return _Fit(basis, solve, across / squares, baseline, keep)


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
    degree : int
    counting : Counting
    """

    like: Any
    x: Any
    layout: RowLayout
    values: Any
    reference: Any
    degree: int
    counting: Counting

    @classmethod
    def of(cls, x: Any, reference: Any, axis: Any, degree: Any, counting: Any) -> _Spectra:
        """Return the arguments, or raise an error."""
        if is_on_device(x):
            raise NotImplementedError("emsc is not supported on a device")
        like = results_like(x)
        _, array = backend_for(x, "x")
        layout = row_layout(array.shape, _one_axis(axis))
        order = check_integer("degree", degree, 0)
        spectrum = _on_host("reference", reference).astype(np.float64)
        check_shape("reference", spectrum.shape, (layout.width,), "the normalized axis of x")
        _, checked = checked_counting(of_rows, array, axis, *counting)
        unset = cls(like, array, layout, None, spectrum, order, checked)
        return unset._replace(values=unset.rows(array).astype(np.float64))

    def rows(self, array: Any) -> Any:
        """Return an array of the shape of x as rows."""
        moved = array if self.layout.order is None else array.transpose(self.layout.order)
        return moved.reshape(self.layout.rows, self.layout.width)

    def rows_of(self, array: Any) -> Any:
        """Return an array that broadcasts against x as rows; None for None."""
        return None if array is None else self.rows(np.broadcast_to(array, self.x.shape))

    def fits(self) -> list[tuple[Any, _Fit]]:
        """Return which rows share a fit, and the fits."""
        if not self.values.size:
            return []
        weights = self.rows_of(self.counting.weights)
        keep = self.rows_of(self.counting.where)
        if self.counting.omit:
            present = ~np.isnan(self.values)
            keep = present if keep is None else keep & present
        if keep is not None and keep.all():
            keep = None
        of_elements = weights if keep is None else keep * (1.0 if weights is None else weights)
        if of_elements is None:
            return [(slice(None), _fitted(self.reference, self.degree, None, None))]
        own, inverse = np.unique(of_elements, axis=0, return_inverse=True)
        found = []
        for k, row in enumerate(own):
            some = np.flatnonzero(inverse.reshape(-1) == k)
            kept = None if keep is None else keep[some[0]]
            found.append((some, _fitted(self.reference, self.degree, row, kept)))
        return found

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
        """Return a number for each row as the backward pass takes it."""
        dtype = np.float32 if self.x.dtype.itemsize == 2 else np.float64
        return slopes.astype(dtype).reshape(self.layout.statistic_shape)


def _on_host(name: str, value: Any) -> Any:
    if is_on_device(value):
        raise NotImplementedError("emsc is not supported on a device")
    return as_plain_array(name, value)


def _one_axis(axis: Any) -> Any:
    if isinstance(axis, tuple | list) and len(axis) != 1:
        raise ValueError(f"axis must name one axis, got {brief(axis)}")
    return axis


def _row_call(shape: Shape, axis: Any, degree: Any = 2) -> RowCall:
    """Return the layout of the spectra."""
    check_integer("degree", degree, 0)
    return RowCall(row_layout(shape, _one_axis(axis)), scaling_by(0.0))


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
