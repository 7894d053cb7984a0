"""Standard normal variate (Barnes, Dhanoa and Lister 1989): a layer norm without epsilon."""

from __future__ import annotations

from sys import modules
from typing import Any, Unpack

from numnorm.arguments import Axis, check_integer
from numnorm.array_types import Array, Filling, Input, Integer
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import scaling_by
from numnorm.layouts import RowLayout, row_layout
from numnorm.lazy_arrays import any_lazy, lazy_twin
from numnorm.norms.layer import LAYER
from numnorm.norms.weighted import with_weights


def standard_normal_variate(
    x: Input[Array],
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    out: Any = None,
    **others: Unpack[Filling],
) -> Array:
    r"""Normalize to mean 0 and standard deviation 1, however small the deviation is.

    .. math:: y = \frac{x - \mu}{s}, \quad s^2 = \frac{1}{D - \mathrm{ddof}} \sum (x - \mu)^2

    over the D elements of `axis` [1]_: the scatter correction of spectroscopy.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    axis : int or tuple of int, default -1
        The axes that share their statistics: of spectra in rows, the wavelengths.
    ddof : int, default 0
        The variance divides by the number of elements less `ddof`, as in `numpy.std`. Many
        programs for spectra use 1.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, of the
        shape of the normalized axes, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its row NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. A constant row gives 0, not NaN.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    layer_norm : The same with epsilon, gain and bias, and with a backward pass.

    Notes
    -----
    As accurate as `layer_norm`, at any mean and scale. A NaN makes only its own row NaN, unless
    `nan_policy` leaves it out.

    References
    ----------
    .. [1] R. J. Barnes, M. S. Dhanoa, S. J. Lister, "Standard Normal Variate Transformation and
       De-trending of Near-Infrared Diffuse Reflectance Spectra", 1989.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> numnorm.standard_normal_variate([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], ddof=1)
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]])
    >>> numnorm.standard_normal_variate([[1.0, np.nan, 3.0]], nan_policy="omit")
    array([[-1., nan,  1.]])
    """
    if others:
        return with_weights(standard_normal_variate, locals())
    if "dask" in modules and any_lazy(x):
        return lazy_twin("standard_normal_variate")(x, axis=axis, ddof=ddof, out=out)
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_by(0.0, 0.0, check_ddof(ddof, layout))
    return backend.row_forward(LAYER, x, None, None, layout, scaling, out, False)[0]


def check_ddof(ddof: Any, layout: RowLayout) -> int:
    """Return an integer that is less than the number of normalized elements."""
    number = check_integer("ddof", ddof, 0)
    if number >= layout.width > 0:
        raise ValueError(
            f"ddof must be less than the {layout.width} normalized elements, got {number}"
        )
    return number
