"""Calls for type checkers: `test_types.py` expects an error in each line that ends with "# error".

Nothing here runs.
"""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import xarray as xr

import numnorm
import numnorm.autograd
import numnorm.jax
import numnorm.xarray

F32 = npt.NDArray[np.float32]


class Frame:
    """Stands for a data frame, or an array of another library."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise NotImplementedError


def right(x: F32, y: npt.NDArray[np.float64], n: npt.NDArray[np.int64], some: Any) -> None:
    assert_type(numnorm.layer_norm(x), F32)
    assert_type(numnorm.layer_norm(y, y, y, axis=(0, 1)), npt.NDArray[np.float64])
    assert_type(numnorm.standard_normal_variate(x=x, ddof=1), F32)
    assert_type(numnorm.ada_norm(x, eps_in="std"), F32)
    assert_type(numnorm.standard_normal_variate_forward(x).y, F32)
    assert_type(numnorm.weight_norm(x=x, g=n, axis=[0]), F32)
    assert_type(numnorm.weight_norm_backward(y, x, y, n).dg, Any)
    result, *_ = numnorm.layer_norm_forward(x, [1.0])
    assert_type(result, F32)
    assert_type(numnorm.rms_norm_forward(x).y, F32)
    assert_type(numnorm.layer_norm_backward(y, x, y, y, detach="mean").dx, F32)
    assert_type(numnorm.batch_norm(x, running_mean=y, running_var=y, momentum="cumulative"), F32)
    assert_type(numnorm.layer_norm(x, where=n > 0, weights=y, nan_policy="omit", fill=0.0), F32)
    assert_type(numnorm.batch_moments(x, weights=y), numnorm.Moments)
    assert_type(numnorm.batch_moments(x, labels=n, where=n > 0), numnorm.GroupMoments)
    assert_type(numnorm.batch_norm_backward(y, x, y, y, labels=n).dx, F32)
    # What becomes an array of float64, or lies wherever it lies.
    assert_type(numnorm.layer_norm(n), Any)
    assert_type(numnorm.layer_norm([[1.0, 2.0]]), Any)
    assert_type(numnorm.layer_norm(Frame()), Any)
    assert_type(numnorm.layer_norm(some), Any)
    numnorm.rnn.lstm(x, numnorm.rnn.lstm_init(3, 4, rng=some), norm=None, variant="paper")


def numbers_of_numpy(x: F32, i: np.int64, f: np.float32) -> None:
    assert_type(numnorm.layer_norm(x, axis=i, eps=f), F32)
    assert_type(numnorm.rms_norm(x, axis=(i, 1), eps=i), F32)
    assert_type(numnorm.standard_normal_variate(x, axis=[i], ddof=i), F32)
    assert_type(numnorm.ada_norm(x, k=f, ddof=i), F32)
    assert_type(numnorm.group_norm(x, groups=i, channel_axis=i), F32)
    assert_type(numnorm.batch_norm(x, channel_axis=i, momentum=f, fill=f, where=x > 0), F32)
    assert_type(numnorm.moving_norm(x, i, axis=i, min_window=i, eps=f), F32)
    assert_type(numnorm.exponential_norm(x, f, axis=i, initial=i), F32)
    numnorm.rnn.rnn(x, numnorm.rnn.rnn_init(3, 4, rng=np.random.default_rng()), eps=f, dropout=f)


def array_likes(x: F32, row: Sequence[float], rows: Sequence[Sequence[int]]) -> None:
    assert_type(numnorm.layer_norm(row), Any)
    assert_type(numnorm.layer_norm(rows, row), Any)
    assert_type(numnorm.layer_norm(range(3), eps=0), Any)


def other_array_likes(x: F32, given: npt.ArrayLike) -> None:
    assert_type(numnorm.layer_norm(x, given, given), F32)
    assert_type(numnorm.layer_norm(x, where=given), F32)
    numnorm.batch_moments(given, weights=given)
    numnorm.layer_norm(given)  # error


def labelled(array: xr.DataArray, dataset: xr.Dataset, x: F32) -> None:
    assert_type(numnorm.xarray.layer_norm(array, dim="time"), xr.DataArray)
    assert_type(numnorm.xarray.batch_norm(dataset, channel_dim=("band", "time")), xr.Dataset)
    numnorm.xarray.layer_norm(array)  # error
    numnorm.xarray.layer_norm(x, dim="time")  # error
    numnorm.xarray.layer_norm(array, dim="time", axis=0)  # error
    assert_type(numnorm.xarray.group_norm(array, groups=2, channel_dim="c", dim=()), xr.DataArray)
    assert_type(numnorm.xarray.batch_moments(array, channel_dim="c"), numnorm.xarray.Moments)


def differentiable(x: F32, n: npt.NDArray[np.int64]) -> None:
    assert_type(numnorm.autograd.rms_norm(x, axis=(0, 1), where=n > 0), Any)
    assert_type(numnorm.autograd.batch_norm(x, labels=n, momentum="cumulative"), Any)
    numnorm.autograd.rms_norm(x, beta=x)  # error
    numnorm.autograd.moving_norm(x)  # error
    numnorm.jax.layer_norm(x, x, weights=x, detach="mean")
    numnorm.jax.layer_norm(x, out=x)  # error
    numnorm.jax.exponential_norm(x, alpha="a")  # error


def wrong(x: F32, y: npt.NDArray[np.float64], words: npt.NDArray[np.str_], some: Any) -> None:
    text: str = numnorm.layer_norm(x)  # error
    double: npt.NDArray[np.float64] = numnorm.layer_norm(x)  # error
    print(text, double)
    numnorm.layer_norm("hello")  # error
    numnorm.layer_norm(None)  # error
    numnorm.layer_norm(words)  # error
    numnorm.layer_norm(x, axs=0)  # error
    numnorm.layer_norm(x, weight=y)  # error
    numnorm.layer_norm(x, eps="a")  # error
    numnorm.layer_norm(x, y, y, -1)  # error
    numnorm.layer_norm_backward(x, x, y, y, detach="means")  # error
    numnorm.ada_norm(x, eps_in="sd")  # error
    numnorm.layer_norm(x, nan_policy="drop")  # error
    numnorm.layer_norm(x, labels=y)  # error
    numnorm.layer_norm_backward(x, x, y, y, fill=0.0)  # error
    numnorm.batch_norm(x, convention="tf")  # error
    numnorm.batch_norm(x, momentum="mean")  # error
    numnorm.instance_norm(x, training="no")  # error
    numnorm.group_norm(x)  # error
    numnorm.layernorm(x)  # error
    parameters = numnorm.rnn.lstm_init(3, 4, rng=some)
    numnorm.rnn.lstm(x, parameters, norm="layr")  # error
    numnorm.rnn.lstm(x, parameters, variant="papers")  # error
    numnorm.rnn.gru_init(3, 4, norm="batch", rng=some)  # error
    numnorm.rnn.rnn(x, numnorm.rnn.rnn_init(3, 4, rng=some), nonlinearity="sigmoid")  # error
