"""Numbers printed elsewhere: in tutorials on layer norm, by spaGO, by the authors of AdaNorm."""

import numpy as np
import pytest
import reference
from gradients import numerical_gradients

import numnorm

# Rows and their layer norm (eps 1e-5, no gain or bias), both printed by PyTorch to four digits.
LAYER_NORM = [
    ([-3.8049, 1.9899, -1.7325, 2.1359], [-1.3671, 0.9279, -0.5464, 0.9857]),
    ([1.7854, 0.8155, 0.1116, -1.7420], [1.1953, 0.4438, -0.1015, -1.5376]),
    ([-2.4273, 1.3559, 2.8615, 2.0084], [-1.6706, 0.2010, 0.9458, 0.5238]),
    ([-1.0353, -1.2766, -2.2082, -0.6952], [0.4782, 0.0485, -1.6106, 1.0839]),
    ([-0.8044, 1.9707, 3.3704, 2.0587], [-1.6129, 0.2116, 1.1318, 0.2695]),
    ([4.2256, 6.9575, 1.4770, 2.0762], [0.2520, 1.5236, -1.0272, -0.7484]),
    (
        [-2.0934, 1.5040, 1.8742, 0.0628, 0.3034, 2.0190],
        [-1.9061, 0.6287, 0.8896, -0.3868, -0.2172, 0.9917],
    ),
    (
        [-0.8853, 2.8213, 0.5911, 2.4193, -2.5230, 0.3599],
        [-0.7362, 1.2864, 0.0694, 1.0670, -1.6299, -0.0568],
    ),
    ([1.4636, 2.3663], [-1, 1]),
    ([1.9806, -0.7564], [1, -1]),
]

# Mean and biased variance of the first six rows.
STATISTICS = [
    (-0.3529, 6.3756),
    (0.2426, 1.6661),
    (0.9496, 4.0862),
    (-1.3038, 0.3153),
    (1.6489, 2.3135),
    (3.6841, 4.6163),
]

HALF_DIGIT = 0.5e-4
DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row, printed", LAYER_NORM)
def test_layer_norm_prints_the_same(dtype, row, printed):
    y, _, rstd = numnorm.layer_norm_forward(np.array([row], dtype))
    # Half a digit from printing y, and half a digit d of every input, which moves y by at most
    # d * rstd * (1 + 1 + |y|): itself, through the mean, and through the variance.
    tolerance = HALF_DIGIT * (1 + rstd[0] * (2 + np.abs(printed)))
    assert np.all(np.abs(y[0] - printed) <= tolerance)


@pytest.mark.parametrize("row, printed", LAYER_NORM)
def test_the_reference_prints_the_same(row, printed):
    y, _, rstd = reference.layer_norm(np.array(row))
    # The same reasoning as above.
    assert np.all(np.abs(y - printed) <= HALF_DIGIT * (1 + rstd * (2 + np.abs(printed))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(STATISTICS)))
def test_layer_norm_saves_the_printed_statistics(dtype, number):
    mean, variance = STATISTICS[number]
    x = np.array(LAYER_NORM[number][0], dtype)
    forward = numnorm.layer_norm_forward(x)
    # Half a digit of printing and half a digit d of the inputs, which moves the mean by d at most
    # and the variance by twice d times the mean distance, which is at most the deviation.
    assert abs(forward.mean - mean) <= 2 * HALF_DIGIT
    assert abs(forward.rstd**-2 - 1e-5 - variance) <= HALF_DIGIT * (1 + 2 * variance**0.5)


def test_all_rows_of_a_batch_at_once():
    rows = np.array([row for row, _ in LAYER_NORM[:6]])
    expected = np.array([printed for _, printed in LAYER_NORM[:6]])
    # Four digits printed, and no row here moves by more than three of its last digit.
    np.testing.assert_allclose(numnorm.layer_norm(rows), expected, rtol=0, atol=3e-4)
    stacked = numnorm.layer_norm(rows.reshape(2, 3, 4))
    np.testing.assert_array_equal(stacked.reshape(6, 4), numnorm.layer_norm(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", [(1.4636, 2.3663), (-5.0, 900.0), (0.25, 0.5)])
def test_layer_norm_of_two_features_forgets_everything_but_the_order(dtype, pair):
    y = numnorm.layer_norm(np.array([pair, pair[::-1]], dtype), eps=0)
    # Two units in the last place: the root and the product round once each.
    np.testing.assert_allclose(y, [[-1, 1], [1, -1]], rtol=2 * np.finfo(dtype).eps, atol=0)


def uniform(seed, count):
    """Return what PyTorch draws between 0 and 1: 24 bits of each word of the Mersenne Twister."""
    words = np.random.RandomState(seed).randint(0, 2**32, count, np.uint32)
    return words % 2**24 / 2**24


def normal(seed, count):
    """Return what PyTorch draws with `randn`, 16 numbers at a time by Box and Muller."""
    drawn = uniform(seed, count + 16)
    blocks = [(start, start) for start in range(0, count - 15, 16)]
    if count % 16:  # the last 16 are drawn again
        blocks.append((count - 16, count))
    numbers = np.empty(count)
    for to, start in blocks:
        first, second = drawn[start : start + 8], drawn[start + 8 : start + 16]
        length, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
        numbers[to : to + 8], numbers[to + 8 : to + 16] = (
            length * np.cos(angle),
            length * np.sin(angle),
        )
    return numbers


def encoded(points):
    """Return points (N, L, D) times the root of D, plus their positions."""
    *_, length, width = points.shape
    return points * width**0.5 + numnorm.positional_encoding(length, width, dtype=np.float64)


def assert_printed(found, printed):
    """Compare with numbers that PyTorch computed in float32 and printed to four digits."""
    # Half a digit, and a handful of roundings to float32 of numbers of that size.
    tolerance = HALF_DIGIT + 8 * 2.0**-24 * np.abs(printed)
    assert np.all(np.abs(found - np.array(printed)) <= tolerance)


# The first three and the last three of 256 values in each of four rows, before and after layer
# norm; mean and biased variance of the rows before it. All printed by PyTorch and NumPy.
ENDS_OF_256 = [
    [-14.4193, 10.0495, -7.8116, -15.4844, -18.0732, -3.9566],
    [2.6628, -3.5462, -23.6461, -0.9403, -18.4375, -37.4197],
    [-24.6397, -1.9127, -16.4244, -17.3708, -26.0550, -14.0706],
    [13.7988, 21.4612, 10.4125, -3.2333, -17.0188, 3.9237],
]
NORMALIZED_ENDS_OF_256 = [
    [-0.9210, 0.5911, -0.5127, -0.9868, -1.1467, -0.2744],
    [0.1399, -0.2607, -1.5574, -0.0925, -1.2214, -2.4460],
    [-1.5755, -0.1191, -1.0491, -1.1097, -1.6662, -0.8982],
    [0.8643, 1.3324, 0.6575, -0.1761, -1.0183, 0.2611],
]
MEANS_OF_256 = [0.4845, 0.4939, -0.0545, -0.3500]
VARIANCES_OF_256 = [261.8859, 240.2490, 243.4929, 267.9656]


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_256_values_prints_the_same(dtype):
    x = encoded(normal(23, 4 * 256).reshape(4, 1, 256))[:, 0]
    ends = np.r_[:3, -3:0]
    assert_printed(x[:, ends], ENDS_OF_256)
    y, mean, rstd = numnorm.layer_norm_forward(x.astype(dtype))
    assert_printed(y[:, ends], NORMALIZED_ENDS_OF_256)
    assert_printed(mean, MEANS_OF_256)
    assert_printed(rstd.astype(np.float64) ** -2 - 1e-5, VARIANCES_OF_256)
    assert_printed([y.mean(), y.std()], [0, 1])


def test_encoded_points_print_the_same():
    """What the tutorial normalizes, from its random numbers on."""
    assert_printed(
        encoded(normal(34, 24).reshape(3, 2, 4)).reshape(6, 4), [row for row, _ in LAYER_NORM[:6]]
    )
    corners = np.array([[1.0349, 0.9661], [0.8055, -0.9169]])
    # The corners are rounded to four digits, too: the root of two times half a digit.
    expected = [row for row, _ in LAYER_NORM[8:]]
    np.testing.assert_allclose(encoded(corners), expected, rtol=0, atol=(1 + 2**0.5) * HALF_DIGIT)
    drawn = (2 * uniform(11, 18) - 1) / 2**0.5
    weight, bias = drawn[:12].reshape(6, 2), drawn[12:]
    # PyTorch projected the rounded corners, too.
    assert_printed(encoded(corners @ weight.T + bias), [row for row, _ in LAYER_NORM[6:8]])


# spaGO's test of AdaNorm: biased deviation, eps 1e-10 added to it, C = 0.8, k = 0.1 and a
# detached factor (nlpodyssey/spago, nn/normalization/adanorm/adanorm_test.go).
SPAGO_OPTIONS = {"scale": 0.8, "k": 0.1, "eps": 1e-10, "eps_in": "std", "ddof": 0}
SPAGO_X = [[1.0, 2.0, 0.0, 4.0], [3.0, 2.0, 1.0, 6.0], [6.0, 2.0, 5.0, 1.0]]
SPAGO_Z = [
    [-0.4262454708, 0.1329389665, -1.0585727653, 1.0318792697],
    [0.0, -0.4504751299, -0.9466645455, 1.0771396755],
    [0.8524954413, -0.6244384413, 0.5397325589, -1.087789559],
]
SPAGO_DZ = [[-1.0, -0.2, 0.4, 0.6], [-0.3, 0.1, 0.7, 0.9], [0.3, -0.4, 0.7, -0.8]]
SPAGO_DX = [
    [-0.4779089755, -0.0839735551, 0.4004185091, 0.1614640214],
    [-0.2710945487, -0.0790678529, 0.2259110116, 0.12425139],
    [-0.1154695275, 0.0283184423, 0.1372573, -0.050106214],
]

# The vectors have ten digits after the point, the last of which are not all right: 0.1372573 is
# 0.1372572988 in extended precision. In float32 three roundings of numbers around one remain: the
# normalized value, the factor and their product.
SPAGO_TOLERANCE = {np.float32: 4 * 2.0**-24, np.float64: 2e-9}


@pytest.mark.parametrize("dtype", DTYPES)
def test_ada_norm_forward_of_spago(dtype):
    z = numnorm.ada_norm(np.array(SPAGO_X, dtype), **SPAGO_OPTIONS)
    np.testing.assert_allclose(z, SPAGO_Z, rtol=0, atol=SPAGO_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ada_norm_backward_of_spago(dtype):
    x, dz = np.array(SPAGO_X, dtype), np.array(SPAGO_DZ, dtype)
    _, mean, rstd = numnorm.ada_norm_forward(x, **SPAGO_OPTIONS)
    dx = numnorm.ada_norm_backward(dz, x, mean, rstd, **SPAGO_OPTIONS)
    np.testing.assert_allclose(dx, SPAGO_DX, rtol=0, atol=SPAGO_TOLERANCE[dtype])


def test_the_reference_has_the_vectors_of_spago():
    z = reference.ada_norm(SPAGO_X, **SPAGO_OPTIONS)[0]
    np.testing.assert_allclose(z, SPAGO_Z, rtol=0, atol=SPAGO_TOLERANCE[np.float64])
    dx = reference.ada_norm_backward(SPAGO_DZ, SPAGO_X, **SPAGO_OPTIONS)
    np.testing.assert_allclose(dx, SPAGO_DX, rtol=0, atol=SPAGO_TOLERANCE[np.float64])


def authors_factor(x, eps):
    """The authors' phi: a tenth of the row in units of its unbiased deviation plus eps."""
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + eps) / 10


def authors_ada_norm(x, factor, scale, eps):
    """The authors' published convention, given the factor, which they detach."""
    centred = x - x.mean(-1, keepdims=True)
    return (centred - centred * factor) / (x.std(-1, ddof=1, keepdims=True) + eps) * scale


AUTHORS_OPTIONS = {"k": 0.1, "eps_in": "std", "ddof": 1}


@pytest.mark.parametrize("scale", [0.8, 1.0, 2.0])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_ada_norm_of_the_authors(scale, eps):
    x = np.random.default_rng(5).normal(1.0, 3.0, size=(6, 20))
    z = numnorm.ada_norm(x, scale=scale, eps=eps, **AUTHORS_OPTIONS)
    expected = authors_ada_norm(x, authors_factor(x, eps), scale, eps)
    # Both are float64 and differ by a handful of roundings of numbers below eight.
    np.testing.assert_allclose(z, expected, rtol=0, atol=8 * 8 * np.finfo(np.float64).eps)


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_ada_norm_gradient_of_the_authors(eps):
    rng = np.random.default_rng(6)
    x, dz = rng.normal(1.0, 3.0, size=(3, 8)), rng.normal(size=(3, 8))
    factor = authors_factor(x, eps)
    (expected,) = numerical_gradients(
        lambda x: authors_ada_norm(x, factor, np.longdouble(2), np.longdouble(eps)), (x,), dz
    )
    options = {"scale": 2.0, "eps": eps, **AUTHORS_OPTIONS}
    _, mean, rstd = numnorm.ada_norm_forward(x, **options)
    dx = numnorm.ada_norm_backward(dz, x, mean, rstd, **options)
    # The central differences are good to 1e-12, a float64 gradient below two to 1e-15. Where
    # longdouble is float64 the differences are good to 1e-9 only.
    np.testing.assert_allclose(dx, expected, rtol=0, atol=1e-8)
