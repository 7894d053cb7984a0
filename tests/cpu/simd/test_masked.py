"""Some lanes of a vector: with masks, as processors with AVX-512 do it, and in pieces."""

import itertools

import numba
import numpy as np
import pytest
from every_call import COMPILED

from numnorm.backends.cpu.simd import masked
from numnorm.backends.cpu.simd.processor import has_avx, has_avx512
from numnorm.backends.cpu.simd.vector import make_load

DTYPES = (np.float32, np.float64, np.uint16)
COUNTS = (8, 16, 32)


def bounds(count):
    """Every stretch at the beginning or the end, and an end beyond all lanes."""
    first = [(0, high) for high in range(1, count + 3)]
    return first + [(low, count) for low in range(1, count)]


WAYS = {"pieces": True, "avx": has_avx(), "avx512": has_avx512()}


@pytest.fixture(params=[way for way, has in WAYS.items() if has] if COMPILED else ["plain"])
def way(request, monkeypatch):
    monkeypatch.setattr(masked, "has_avx512", lambda: request.param == "avx512")
    monkeypatch.setattr(masked, "has_avx", lambda: request.param != "pieces")


def compiled(function):
    return numba.njit(function) if COMPILED else function


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype, count", list(itertools.product(DTYPES, COUNTS)))
def test_other_lanes_are_loaded_as_0_and_not_stored(dtype, count):
    load, masked_load = make_load(count), masked.make_masked_load(count)
    masked_store = masked.masked_store

    @compiled
    def loaded(source, target, index, low, high):
        lanes = masked_load(source, index, low, high)
        masked_store(target, 0, lanes, 0, count)

    @compiled
    def stored(source, target, index, low, high):
        masked_store(target, index, load(source, 0), low, high)

    source = np.arange(1, 3 * count + 1).astype(dtype)
    for low, high in bounds(count):
        last = min(high, count)
        target = np.full(count, 99, dtype)
        loaded(source, target, 5, low, high)
        expected = np.zeros(count, dtype)
        expected[low:last] = source[5 + low : 5 + last]
        np.testing.assert_array_equal(target, expected, err_msg=f"{low}:{high}")

        target = np.full(2 * count, 99, dtype)
        stored(source, target, 3, low, high)
        expected = np.full(2 * count, 99, dtype)
        expected[3 + low : 3 + last] = source[low:last]
        np.testing.assert_array_equal(target, expected, err_msg=f"{low}:{high}")
