"""positional_encoding: its formula, its dtypes, and what it refuses."""

import math

import ml_dtypes
import numpy as np
import pytest

import numnorm


def by_formula(positions, width):
    """Each element by itself, as the paper has it."""
    elements = [
        (math.cos if j % 2 else math.sin)(t / 10000 ** ((j - j % 2) / width))
        for t in positions
        for j in range(width)
    ]
    return np.array(elements).reshape(len(positions), width)


@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (4, 3), (50, 16), (17, 33), (0, 4)], ids=str)
def test_formula(shape):
    found = numnorm.positional_encoding(*shape, dtype=np.float64)
    assert (found.shape, found.dtype) == (shape, np.float64)
    # An angle up to 50 is off by a few of its roundings, 7e-15 each; its sine by no more.
    np.testing.assert_allclose(found, by_formula(range(shape[0]), shape[1]), rtol=0, atol=3e-14)


def test_positions_far_away():
    # An angle of 1e5 has an ulp of 1.5e-11: to compute it in float32 would be off by 1e-2.
    far = [99_999, 100_000]
    found = numnorm.positional_encoding(100_001, 6, dtype=np.float64)[far]
    np.testing.assert_allclose(found, by_formula(far, 6), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, "float32", ">f4", np.float64], ids=str
)
def test_rounded_once(dtype):
    exact = numnorm.positional_encoding(40, 9, dtype=np.float64)
    found = numnorm.positional_encoding(40, 9, dtype=dtype)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found, exact.astype(found.dtype))
    assert numnorm.positional_encoding(1, 1).dtype == np.float32


def test_each_position_is_another_and_all_have_one_length():
    encoding = numnorm.positional_encoding(100, 32, dtype=np.float64)
    # sin² + cos² = 1 of each of the 16 pairs.
    np.testing.assert_allclose((encoding**2).sum(axis=1), 16, rtol=1e-15 * 32)
    apart = np.linalg.norm(encoding[:, None] - encoding, axis=-1)
    assert apart[~np.eye(100, dtype=bool)].min() > 0.5


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((-1, 4), {}, ValueError, "length must be at least 0, got -1"),
        ((3, 0), {}, ValueError, "width must be at least 1, got 0"),
        ((3.0, 4), {}, TypeError, "length must be an int, got 3.0"),
        ((3, "4"), {}, TypeError, "width must be an int, got '4'"),
        ((3, 4), {"dtype": int}, TypeError, "or float64, got int64"),
        ((3, 4), {"dtype": None}, TypeError, "or float64, got None"),
        ((3, 4), {"dtype": "half a float"}, TypeError, "or float64, got 'half a float'"),
        ((3, 4), {"dtype": np.complex64}, TypeError, "or float64, got complex64"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error) as caught:
        numnorm.positional_encoding(*arguments, **options)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
