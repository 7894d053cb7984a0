"""Kernels as compiled entries, and the helpers that they inline or share."""

import sys

import every_call
import numpy as np
import pytest
from every_call import COMPILED, in_new_process

from numnorm.backends.cpu.compiler.jit import inlined, launcher_address, make_kernel, shared

compiled = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


def scale_rows(rows, factors, results, first, last):
    for i in range(first, last):
        for j in range(rows.shape[1]):
            results[i, j] = rows[i, j] * factors[i]


def arguments(rows=7):
    rng = np.random.default_rng(0)
    return rng.random((rows, 5)), rng.random(rows), np.zeros((rows, 5))


def uncached(name, function):
    kernel = make_kernel(name, function)
    if COMPILED:
        kernel.entry._cache.disable()  # its files would stay in the cache
    return kernel


@pytest.mark.parametrize("parts", [(0, 7), (0, 0), (2, 5)])
def test_a_launcher_does_the_same_parts_as_a_serial_call(parts):
    kernel = uncached("test.scale_rows", scale_rows)
    rows, factors, serial = arguments()
    parallel = np.zeros_like(serial)
    kernel.serial(rows, factors, serial, *parts)
    kernel.entry(launcher_address(), rows, factors, parallel, *parts)
    expected = np.zeros_like(serial)
    expected[slice(*parts)] = (rows * factors[:, None])[slice(*parts)]
    assert serial.tobytes() == parallel.tobytes() == expected.tobytes()


def test_entries_keep_no_references():
    kernel = uncached("test.scale_rows", scale_rows)
    arrays = arguments()
    counts = [sys.getrefcount(array) for array in arrays]
    for _ in range(10):
        kernel.serial(*arrays, 0, 7)
        kernel.entry(launcher_address(), *arrays, 0, 7)
    assert [sys.getrefcount(array) for array in arrays] == counts


def helper_with(constant):
    def plus(x):
        return x + constant

    return plus


@compiled
def test_helpers_of_one_code_and_equal_constants_are_one():
    assert inlined(helper_with(1)) is inlined(helper_with(1))
    assert inlined(helper_with((1, 2.0))) is inlined(helper_with((1, 2.0)))
    # Equal numbers of different types make different code.
    constants = (1, 2, 1.0, True, np.float32(1), np.float64(1), (1, 2), (1.0, 2))
    assert len({id(inlined(helper_with(value))) for value in constants}) == len(constants)
    assert inlined(helper_with(1)) is not shared(helper_with(1))


@compiled
def test_helpers_of_equal_helpers_are_one():
    one, other = helper_with(inlined(helper_with(1))), helper_with(inlined(helper_with(1)))
    assert inlined(one) is inlined(other)
    assert inlined(one) is not inlined(helper_with(inlined(helper_with(2))))


def test_a_shared_helper_may_be_called_more_than_once():
    @shared
    def total(row, factor):
        result = 0.0
        for j in range(row.size):
            result += row[j] * factor
        return result

    def kernel(rows, results, first, last):
        for i in range(first, last):
            results[i] = total(rows[i], 2.0) - total(rows[i], 0.5)

    results = np.zeros(4)
    uncached("test.shared", kernel).serial(np.ones((4, 100)), results, 0, 4)
    assert results.tolist() == [150.0] * 4


ALLOCATIONS = """
import numpy as np
from numba.core.runtime import rtsys

import numnorm
from numnorm import rnn

rng = np.random.default_rng(0)

def gradients(shape, dtype, misaligned=0):
    size = int(np.prod(shape))
    x = np.zeros(size + misaligned, dtype)[misaligned:].reshape(shape)
    x[...] = rng.standard_normal(shape)
    gamma = np.ones(shape[1], dtype)
    _, mean, rstd = numnorm.layer_norm_forward(x, gamma, gamma)
    numnorm.layer_norm_backward(x, x, mean, rstd, gamma)
    numnorm.batch_norm(x * 1e-30, gamma, gamma)

for shape in ((3, 7), (40, 40), (3, 300), (200, 1000), (700, 40)):
    for dtype in ("float32", "float64"):
        for misaligned in (0, 3):
            for _ in range(3):
                gradients(shape, dtype, misaligned)
parameters = rnn.lstm_init(3, 4, rng=rng)
y, *_, saved = rnn.lstm_forward(np.ones((2, 5, 3)), parameters)
rnn.lstm_backward(y, saved)
stats = rtsys.get_allocation_stats()
print(stats.alloc, stats.alloc - stats.free, stats.mi_alloc - stats.mi_free)
"""


@compiled
def test_kernels_free_what_they_allocate():
    printed = every_call.in_new_process("-c", ALLOCATIONS, NUMBA_NRT_STATS="1")
    allocated, kept, infos_kept = map(int, printed.split())
    assert allocated > 0, "the calls are too small for allocations"
    assert (kept, infos_kept) == (0, 0)


BESIDE_A_KERNEL = """
import numba
import numpy as np

import numnorm

numnorm.batch_moments(np.ones((40, 25), np.float32))  # its kernel frees what it allocates

@numba.njit
def chosen(one, other):
    return one if one is not None else other

optional = numba.types.Optional(numba.types.float64[::1])
chosen.compile((optional, optional))
chosen.disable_compile()
print(chosen(None, np.ones(3)), chosen(None, None))
"""


@compiled
def test_functions_of_others_do_not_run_helpers_of_a_kernel():
    # Numba's `NRT_decref` as optimized for a kernel reads the null pointer of a missing array.
    assert in_new_process("-c", BESIDE_A_KERNEL) == "[1. 1. 1.] None\n"
