"""Products of matrices: the definition at any size, and that no row depends on its neighbours."""

import numpy as np
import pytest

from numnorm.backends.cpu.recurrent.matmul import matmul, packed, packed_shape, transposed_matmul
from numnorm.backends.cpu.simd.element_type import element_type_of

# Below, at and between multiples of lanes, of panels and of a tile's rows.
SIZES = [1, 2, 7, 8, 15, 16, 17, 31, 33, 50, 97]
DTYPES = [np.float32, np.float64]


def draw(*shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def panels(matrix):
    """A packed matrix, between guards."""
    element_type = element_type_of(matrix.dtype)
    (size,) = packed_shape(*matrix.shape, element_type)
    room = np.full(size + 2, 7, matrix.dtype)
    packed(matrix, room[1:-1], element_type)
    assert room[0] == room[-1] == 7
    return room[1:-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_packed(dtype, transposed):
    lanes = element_type_of(np.dtype(dtype)).lanes
    for depth in SIZES:
        for width in SIZES:
            source = draw(*((width, depth) if transposed else (depth, width)), dtype=dtype)
            matrix = source.T if transposed else source
            padded = np.zeros((depth, -(-width // lanes) * lanes), dtype)
            padded[:, :width] = matrix
            expected = padded.reshape(depth, -1, lanes).swapaxes(0, 1)
            np.testing.assert_array_equal(panels(matrix), expected.reshape(-1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_product(dtype):
    element_type = element_type_of(np.dtype(dtype))
    for rows, depth, width in [(1, 50, 33), (5, 1, 16), (13, 31, 97), (60, 17, 7), (97, 300, 50)]:
        a, b = draw(rows, depth, dtype=dtype), draw(depth, width, dtype=dtype, seed=1)
        found = matmul(a, panels(b), np.empty((rows, width), dtype), element_type)
        exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
        # One rounding for each of the terms, of the sum of their sizes.
        bound = depth * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
        assert (np.abs(found - exact) <= bound).all()
        alone = matmul(a[-1:].copy(), panels(b), np.empty((1, width), dtype), element_type)
        np.testing.assert_array_equal(alone[0], found[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_few_rows_are_those_of_a_product_of_many(dtype):
    """Tiles of up to four rows have more panels: widths of whole groups of these, and of a rest."""
    element_type = element_type_of(np.dtype(dtype))
    for width in (15, 16, 129, 181, 256):
        a, b = draw(12, 40, dtype=dtype), draw(40, width, dtype=dtype, seed=1)
        right, guarded = panels(b), np.full((13, width), 7, dtype)
        many = matmul(a, right, np.empty((12, width), dtype), element_type)
        for rows in range(1, 12):
            matmul(a[:rows].copy(), right, guarded[1 : rows + 1], element_type)
            np.testing.assert_array_equal(guarded[1 : rows + 1], many[:rows])
            assert (guarded[rows + 1 :] == 7).all() and (guarded[0] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_product(dtype):
    element_type = element_type_of(np.dtype(dtype))
    for depth, rows, width in [(1, 5, 16), (50, 33, 7), (300, 97, 50), (600, 13, 31)]:
        a, b = draw(depth, rows, dtype=dtype), draw(depth, width, dtype=dtype, seed=1)
        found = transposed_matmul(a, panels(b), width, element_type)
        exact = a.astype(np.longdouble).T @ b.astype(np.longdouble)
        bound = depth * np.finfo(dtype).eps * (np.abs(a).T @ np.abs(b))
        assert (np.abs(found - exact) <= bound).all()
