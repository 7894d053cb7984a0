"""The norms of rows."""

from __future__ import annotations

from typing import Any, cast

import xarray as xr

import numnorm
from numnorm.array_types import EpsIn, Integer, NanPolicy, Number
from numnorm.xarray.named_dims import (
    Counting,
    Dims,
    Labelled,
    Names,
    apply,
    counting,
    each_variable,
    names_of,
)


def layer_norm(
    x: Labelled,
    gamma: Any = None,
    beta: Any = None,
    *,
    dim: Dims,
    eps: Number = 1e-5,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize to mean 0 and variance 1 over the named dimensions, then scale and shift.

    Parameters
    ----------
    x : DataArray or Dataset
        Of any float dtype that `numnorm.layer_norm` takes; integers and bool become float64. In a
        Dataset, the variables that have all the named dimensions are normalized.
    gamma, beta : DataArray or array_like, optional
        Gain and bias. A DataArray has dimensions of x, in any order, and the same labels: usually
        those of `dim`; with others it broadcasts against x. An array has the axes of `dim`, in the
        order in which they are named.
    dim : hashable or iterable of hashable
        The dimensions that share their statistics.
    eps : float, default 1e-5
        As for `numnorm.layer_norm`.
    where : DataArray or array_like of bool, or of 0 and 1, optional
        Which elements count; the others get `fill`. A DataArray has dimensions of x, in any order,
        and the same labels; an array has the shape of x.
    weights : DataArray or array_like, optional
        How often each element counts, as `where`.
    nan_policy : {"propagate", "omit", "raise"}
        As for `numnorm.layer_norm`.
    fill : float, optional
        As for `numnorm.layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        With the dimensions in the order of x, its coordinates and its name. Lazy if an argument is.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type, or a wrong dimension, label, shape or value; also
        if a named dimension of x has several chunks.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> spectra = xr.DataArray([[1.0, 2.0], [3.0, 8.0]], dims=("wavelength", "sample"))
    >>> numnorm.xarray.layer_norm(spectra, dim="wavelength", eps=0).values
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    parameters = {"gamma": gamma, "beta": beta}
    counts = counting(where, weights, nan_policy, fill)
    return _over(numnorm.layer_norm, x, parameters, dim, {"eps": eps}, counts, keep_attrs)


def rms_norm(
    x: Labelled,
    gamma: Any = None,
    *,
    dim: Dims,
    eps: Number = 1e-5,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Divide by the root mean square over the named dimensions, then scale.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    gamma : DataArray or array_like, optional
        Gain, as for `layer_norm`.
    dim : hashable or iterable of hashable
        The dimensions that share their root mean square.
    eps : float, default 1e-5
        As for `numnorm.rms_norm`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([3.0, 4.0], dims="wavelength")
    >>> numnorm.xarray.rms_norm(x, dim="wavelength", eps=0).values.round(4)
    array([0.8485, 1.1314])
    """
    counts = counting(where, weights, nan_policy, fill)
    return _over(numnorm.rms_norm, x, {"gamma": gamma}, dim, {"eps": eps}, counts, keep_attrs)


def ada_norm(
    x: Labelled,
    *,
    dim: Dims,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize over the named dimensions, then scale each value by a factor that depends on it.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    dim : hashable or iterable of hashable
        The dimensions that share their statistics.
    scale, k, eps, eps_in, ddof
        As for `numnorm.ada_norm`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([1.0, 3.0], dims="wavelength")
    >>> numnorm.xarray.ada_norm(x, dim="wavelength", eps=0).values
    array([-1.1,  0.9])
    """
    options = {"scale": scale, "k": k, "eps": eps, "eps_in": eps_in, "ddof": ddof}
    counts = counting(where, weights, nan_policy, fill)
    return _over(numnorm.ada_norm, x, {}, dim, options, counts, keep_attrs)


def standard_normal_variate(
    x: Labelled,
    *,
    dim: Dims,
    ddof: Integer = 0,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize to mean 0 and standard deviation 1 over the named dimensions.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    dim : hashable or iterable of hashable
        The dimensions that share their statistics: of spectra, the wavelengths.
    ddof : int, default 0
        As for `numnorm.standard_normal_variate`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`. A constant spectrum gives 0, not NaN.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], dims=("sample", "wavelength"))
    >>> numnorm.xarray.standard_normal_variate(x, dim="wavelength", ddof=1).values
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]])
    """
    counts = counting(where, weights, nan_policy, fill)
    return _over(numnorm.standard_normal_variate, x, {}, dim, {"ddof": ddof}, counts, keep_attrs)


def weight_norm(
    x: Labelled,
    g: Any = None,
    *,
    dim: Dims,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Scale each vector along the named dimensions to a given length.

    Parameters
    ----------
    x : DataArray or Dataset
        The vectors, as for `layer_norm`.
    g : DataArray or array_like, optional
        The lengths. A DataArray has dimensions of x, usually all but `dim`, in any order; an array
        has the other dimensions of x, in the order of x. Default: 1.
    dim : hashable or iterable of hashable
        The dimensions of one vector.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[3.0, 4.0], [0.0, 0.0]], dims=("unit", "input"))
    >>> numnorm.xarray.weight_norm(x, [10.0, 1.0], dim="input").values
    array([[6., 8.],
           [0., 0.]])
    """
    counts = counting(where, weights, nan_policy, fill)
    return _over(numnorm.weight_norm, x, {"g": g}, dim, {}, counts, keep_attrs)


def _over(
    function: Any,
    x: Labelled,
    parameters: Any,
    dim: Any,
    options: Any,
    counts: Counting,
    keep_attrs: bool,
) -> Labelled:
    """Return a norm of rows."""
    dims = names_of("dim", dim)
    if not dims:
        raise ValueError("dim must name at least one dimension, got none")

    def norm(array: xr.DataArray) -> xr.DataArray:
        axes = [axis for axis, name in enumerate(array.dims) if name in dims]
        others: Names = tuple(name for name in array.dims if name not in dims)
        return apply(
            function,
            array,
            {**parameters, **counts.arrays},
            {**options, **counts.options, "axis": axes[0] if len(axes) == 1 else tuple(axes)},
            core=dims,
            usual=others if "g" in parameters else dims,
            keep_attrs=keep_attrs,
        )

    return cast(Labelled, each_variable(x, dims, keep_attrs, norm))
