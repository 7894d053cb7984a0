"""The backward pass against central differences of the very forward pass that is shipped.

Detached statistics and AdaNorm's detached factor are constants that differences cannot hold: they
are compared with the definition in test_definitions.py.
"""

import kernels
import numpy as np
import pytest
from gradients import STEP, numerical_gradients

import numnorm

# The forward pass is float64, so the sum of some dozens of outputs is off by some 1e-15, which
# the step divides: 1e-9 for a step of 5e-7. The curvature adds the square of the step times third
# derivatives, which reach a hundred here: 2e-11. Where longdouble is float64 the step is 6e-6 and
# the second part 4e-9. Relative to the largest gradient, of about one, a factor of 20 is left.
TOLERANCE = 20 * (1e-15 / float(STEP) + 100 * float(STEP) ** 2)


def draw(shape, seed, mean=0.0):
    return mean + np.random.default_rng(seed).normal(size=shape)


def as_tuple(gradients):
    return gradients if isinstance(gradients, tuple) else (gradients,)


def assert_gradients(forward, backward, dy, arrays):
    """`backward` returns the derivatives of sum(dy * forward(*arrays)) by its first arguments."""

    def weighed(*arrays):
        return forward(*(np.float64(array) for array in arrays))

    expected = numerical_gradients(weighed, arrays, dy)
    for mine, theirs in zip(as_tuple(backward), expected, strict=True):
        error = np.abs(mine - theirs).max()
        assert error <= TOLERANCE * max(np.abs(theirs).max(), 1)


def test_the_differences_are_as_good_as_they_are_said_to_be():
    x = np.linspace(-2, 2, 9)
    # An error of a part in a million would be seen.
    assert_gradients(np.sin, np.cos(x), np.ones(9), [x])
    with pytest.raises(AssertionError):
        assert_gradients(np.sin, np.cos(x) * (1 + 1e-6), np.ones(9), [x])
    assert TOLERANCE < 1e-6


AXES = [
    pytest.param((3, 7), -1, id="last"),
    pytest.param((7, 3), 0, id="first"),
    pytest.param((2, 3, 4), (1, 2), id="two"),
    pytest.param((2, 3, 4), (0, 2), id="apart"),
    pytest.param((2, 3, 4), (-1, -2, -3), id="all"),
]
EPS = pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])


def sizes_of(shape, axis):
    """The lengths of the axes that are normalized."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(shape[number] for number in sorted(number % len(shape) for number in axes))


@kernels.full
@pytest.mark.parametrize("shape, axis", AXES)
@EPS
def test_layer_norm(shape, axis, eps):
    x, dy, options = draw(shape, 0, 0.5), draw(shape, 1), {"axis": axis}
    gamma, beta = draw(sizes_of(shape, axis), 2, 1.0), draw(sizes_of(shape, axis), 3)

    def forward(x, gamma=None, beta=None):
        return numnorm.layer_norm(x, gamma, beta, eps=eps, **options)

    _, *saved = numnorm.layer_norm_forward(x, gamma, beta, eps=eps, **options)
    gradients = numnorm.layer_norm_backward(dy, x, *saved, gamma, **options)
    assert_gradients(forward, gradients, dy, [x, gamma, beta])
    plain = numnorm.layer_norm_backward(dy, x, *saved, **options)
    assert_gradients(forward, plain.dx, dy, [x])
    # The gradients of a gain of 1 and a bias of 0 are there without them, too: sums of the same
    # few terms, each of which rounds by half of 2e-16 of at most ten.
    np.testing.assert_allclose(plain.dgamma, gradients.dgamma, rtol=0, atol=1e-14)
    np.testing.assert_allclose(plain.dbeta, gradients.dbeta, rtol=0, atol=1e-14)


@kernels.full
@pytest.mark.parametrize("shape, axis", AXES)
@EPS
def test_rms_norm(shape, axis, eps):
    x, dy, options = draw(shape, 0, 0.5), draw(shape, 1), {"axis": axis}
    gamma = draw(sizes_of(shape, axis), 2, 1.0)

    def forward(x, gamma=None):
        return numnorm.rms_norm(x, gamma, eps=eps, **options)

    _, rstd = numnorm.rms_norm_forward(x, gamma, eps=eps, **options)
    assert_gradients(
        forward, numnorm.rms_norm_backward(dy, x, rstd, gamma, **options), dy, [x, gamma]
    )
    assert_gradients(forward, numnorm.rms_norm_backward(dy, x, rstd, **options).dx, dy, [x])


@pytest.mark.parametrize("shape, axis", AXES)
@pytest.mark.parametrize("eps_in, eps", [("variance", 1e-5), ("std", 1e-5), ("std", 0.5)])
@pytest.mark.parametrize("ddof", [0, 1, 3])
@pytest.mark.parametrize("scale, k", [(1.0, 0.1), (0.8, -0.4), (2.0, 0.0)])
def test_ada_norm_with_a_flowing_factor(shape, axis, eps_in, eps, ddof, scale, k):
    x, dy = draw(shape, 0, 0.5), draw(shape, 1)
    options = {"axis": axis, "eps_in": eps_in, "eps": eps, "ddof": ddof, "scale": scale, "k": k}
    _, *saved = numnorm.ada_norm_forward(x, **options)
    dx = numnorm.ada_norm_backward(dy, x, *saved, **options, detach_factor=False)
    assert_gradients(lambda x: numnorm.ada_norm(x, **options), dx, dy, [x])
    if k == 0:
        detached = numnorm.ada_norm_backward(dy, x, *saved, **options, detach_factor=True)
        np.testing.assert_array_equal(detached, dx)


@pytest.mark.parametrize("shape, axis", AXES)
def test_the_detached_factor_of_ada_norm_is_a_constant(shape, axis):
    # What is left is layer norm, with the factor in place of gamma: a gain that is different for
    # each element of x, which is what the weights of the sum may be.
    x, dy, scale, k = draw(shape, 0, 0.5), draw(shape, 1), 1.5, 0.3
    normalized = numnorm.layer_norm(x, axis=axis)
    _, *saved = numnorm.ada_norm_forward(x, axis=axis, scale=scale, k=k)
    dx = numnorm.ada_norm_backward(dy, x, *saved, axis=axis, scale=scale, k=k)
    weights = dy * scale * (1 - k * normalized)
    assert_gradients(lambda x: numnorm.layer_norm(x, axis=axis), dx, weights, [x])


@pytest.mark.parametrize("shape, axis", AXES)
@pytest.mark.parametrize("ddof", [0, 1, 2])
def test_standard_normal_variate(shape, axis, ddof):
    x, dy, options = draw(shape, 0, 0.5), draw(shape, 1), {"axis": axis, "ddof": ddof}
    _, *saved = numnorm.standard_normal_variate_forward(x, **options)
    dx = numnorm.standard_normal_variate_backward(dy, x, *saved, **options)
    assert_gradients(lambda x: numnorm.standard_normal_variate(x, **options), dx, dy, [x])


CHANNEL_AXES = [
    pytest.param((7, 3), 1, id="rows"),
    pytest.param((3, 7), 0, id="columns"),
    pytest.param((2, 3, 2, 2), 1, id="images"),
    pytest.param((2, 2, 2, 3), -1, id="channels-last"),
]


@pytest.mark.parametrize("shape, channel_axis", CHANNEL_AXES)
@EPS
def test_batch_norm(shape, channel_axis, eps):
    x, dy, options = draw(shape, 0, 0.5), draw(shape, 1), {"channel_axis": channel_axis}
    gamma, beta = draw(3, 2, 1.0), draw(3, 3)

    def forward(x, gamma=None, beta=None):
        return numnorm.batch_norm(x, gamma, beta, eps=eps, **options)

    _, *saved = numnorm.batch_norm_forward(x, gamma, beta, eps=eps, **options)
    gradients = numnorm.batch_norm_backward(dy, x, *saved, gamma, **options)
    assert_gradients(forward, gradients, dy, [x, gamma, beta])
    plain = numnorm.batch_norm_backward(dy, x, *saved, **options)
    assert_gradients(forward, plain.dx, dy, [x])


@pytest.mark.parametrize("shape, channel_axis", CHANNEL_AXES)
def test_batch_norm_in_inference(shape, channel_axis):
    x, dy, gamma, beta = draw(shape, 0), draw(shape, 1), draw(3, 2, 1.0), draw(3, 3)
    running = {"running_mean": draw(3, 4), "running_var": draw(3, 5) ** 2 + 0.5}
    options = {"channel_axis": channel_axis, "training": False}

    def forward(x, gamma, beta):
        return numnorm.batch_norm(x, gamma, beta, **running, **options)

    _, *saved = numnorm.batch_norm_forward(x, gamma, beta, **running, **options)
    gradients = numnorm.batch_norm_backward(dy, x, *saved, gamma, **options)
    assert_gradients(forward, gradients, dy, [x, gamma, beta])


GROUPS = [
    pytest.param((2, 4, 3), 2, 1, id="two"),
    pytest.param((2, 6), 2, 1, id="flat"),
    pytest.param((2, 2, 3, 4), 2, -1, id="channels-last"),
    pytest.param((2, 4, 3), 1, 1, id="one"),
    pytest.param((2, 4, 3), 4, 1, id="each-channel"),
]


@kernels.full
@pytest.mark.parametrize("shape, groups, channel_axis", GROUPS)
@EPS
def test_group_norm(shape, groups, channel_axis, eps):
    x, dy = draw(shape, 0, 0.5), draw(shape, 1)
    gamma, beta = draw(shape[channel_axis], 2, 1.0), draw(shape[channel_axis], 3)
    options = {"groups": groups, "channel_axis": channel_axis}

    def forward(x, gamma=None, beta=None):
        return numnorm.group_norm(x, gamma, beta, eps=eps, **options)

    _, *saved = numnorm.group_norm_forward(x, gamma, beta, eps=eps, **options)
    gradients = numnorm.group_norm_backward(dy, x, *saved, gamma, **options)
    assert_gradients(forward, gradients, dy, [x, gamma, beta])
    plain = numnorm.group_norm_backward(dy, x, *saved, **options)
    assert_gradients(forward, plain.dx, dy, [x])


@kernels.full
@pytest.mark.parametrize("shape, channel_axis", [((2, 3, 5), 1), ((2, 2, 3, 3), -1)])
@EPS
def test_instance_norm(shape, channel_axis, eps):
    x, dy, gamma, beta = draw(shape, 0, 0.5), draw(shape, 1), draw(3, 2, 1.0), draw(3, 3)

    def forward(x, gamma, beta):
        return numnorm.instance_norm(x, gamma, beta, channel_axis=channel_axis, eps=eps)

    _, *saved = numnorm.instance_norm_forward(x, channel_axis=channel_axis, eps=eps)
    gradients = numnorm.instance_norm_backward(dy, x, *saved, gamma, channel_axis=channel_axis)
    assert_gradients(forward, gradients, dy, [x, gamma, beta])


@kernels.full
@pytest.mark.parametrize("shape, axis", AXES)
def test_weight_norm(shape, axis):
    x, dy = draw(shape, 0, 0.5), draw(shape, 1)
    axes = {number % len(shape) for number in (axis if isinstance(axis, tuple) else (axis,))}
    g = draw([size for number, size in enumerate(shape) if number not in axes], 2, 1.0)

    def forward(x, g=None):
        return numnorm.weight_norm(x, g, axis=axis)

    _, norm = numnorm.weight_norm_forward(x, g, axis=axis)
    assert_gradients(forward, numnorm.weight_norm_backward(dy, x, norm, g, axis=axis), dy, [x, g])
    assert_gradients(forward, numnorm.weight_norm_backward(dy, x, norm, axis=axis).dx, dy, [x])
