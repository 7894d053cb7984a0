"""Numbers of every type as arguments of calls inside compiled functions."""

import numba
import numpy as np
import pytest
from nopython import check, compiled
from numba.core.errors import TypingError

import numnorm
from numnorm import rnn

pytestmark = compiled
rng = np.random.default_rng(41)
X = rng.standard_normal((3, 4)).astype(np.float32)


def rows(x, number, count):
    y = numnorm.layer_norm(x, eps=number)
    z = numnorm.ada_norm(x, scale=number, k=number, eps=number, eps_in="std", ddof=count)
    n = numnorm.ada_norm_forward(x, eps=number, ddof=count)
    dx = numnorm.ada_norm_backward(
        x, x, n.mean, n.rstd, scale=number, k=number, eps=number, eps_in="std", ddof=count
    )
    return y, z, dx, numnorm.standard_normal_variate(x, axis=count, ddof=count)


def columns(x, number, count):
    mean, var = np.zeros(4), np.ones(4)
    y = numnorm.batch_norm(
        x, channel_axis=count, running_mean=mean, running_var=var, momentum=number, eps=number
    )
    numnorm.batch_norm(x, running_mean=mean, running_var=var, momentum="cumulative", batches=count)
    moments = numnorm.batch_moments(x, channel_axis=count)
    return y, mean, var, moments.var(count)


def groups(x, number, count):
    cube = x.reshape(1, 3, 4)
    return numnorm.group_norm(cube, groups=count, channel_axis=count, eps=number)


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.int32(1), np.uint8(1)])
def test_real_numbers(number):
    check(rows, X, number, 1)
    check(columns, X, number, 1)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint32, np.uint64])
def test_integers(kind):
    check(rows, X, 0.25, kind(1))
    check(columns, X, 0.25, kind(1))


@pytest.mark.full
@pytest.mark.parametrize("kind", [np.int8, np.uint64])
def test_integers_of_groups(kind):
    check(groups, X, np.float32(0.25), kind(1))


@pytest.mark.parametrize("eps", [np.float32(0.25), np.int64(1)])
def test_cells(eps):
    packed = rnn.gru_pack(rnn.gru_init(4, 3, rng=np.random.default_rng(0)))

    def step(x, packed, eps):
        return rnn.gru_cell(x, packed, eps=eps)

    check(step, X, packed, eps)


@pytest.mark.parametrize("value", [True, np.bool_(True)])
def test_a_bool_is_no_number(value):
    @numba.njit
    def call(x, eps):
        return numnorm.layer_norm(x, eps=eps)

    with pytest.raises(TypingError, match="eps must be a number, got bool"):
        call(X, value)
