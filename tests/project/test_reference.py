"""The reference is trusted because its gradients are those of its own forward passes."""

import numpy as np
import pytest
import reference
from gradients import TOLERANCE, numerical_gradient, numerical_gradients

SHAPE = (3, 4, 5)
AXES = [-1, 1, 0, (1, 2), (0, -1)]


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.longdouble)


def draw_parameters(x, axis, count):
    axes = reference.normalized_axes(x.ndim, axis)
    shape = [x.shape[number] for number in axes]
    return [draw(10 + number, *shape) for number in range(count)]


def assert_gradients(actual, expected):
    """`actual` against central differences; see `gradients.TOLERANCE` for its reason."""
    assert len(actual) == len(expected)
    for mine, numerical in zip(actual, expected, strict=True):
        assert mine.shape == numerical.shape
        np.testing.assert_allclose(mine, numerical, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_layer_norm_backward(axis, eps):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    gamma, beta = draw_parameters(x, axis, 2)

    def forward(x, gamma, beta):
        return reference.layer_norm(x, gamma, beta, axis, eps)[0]

    expected = numerical_gradients(forward, (x, gamma, beta), dy)
    assert_gradients(reference.layer_norm_backward(dy, x, gamma, axis, eps), expected)


@pytest.mark.parametrize("detach", [None, "mean", "scale", "both"])
def test_layer_norm_backward_with_detached_statistics(detach):
    x, dy, gamma = draw(0, 3, 6), draw(1, 3, 6), draw(2, 6)
    constant_mean, constant_rstd = reference.row_mean(x, (1,)), reference.row_rstd(x, (1,), 0.1)

    def weighted_sum():
        detached_mean, detached_scale = detach in ("mean", "both"), detach in ("scale", "both")
        mean = constant_mean if detached_mean else reference.row_mean(x, (1,))
        rstd = constant_rstd if detached_scale else reference.row_rstd(x, (1,), 0.1)
        return np.sum((x - mean) * rstd * gamma * dy)

    actual = reference.layer_norm_backward(dy, x, gamma, eps=0.1, detach=detach)[0]
    assert_gradients([actual], [numerical_gradient(weighted_sum, x)])


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_rms_norm_backward(axis, eps):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    (gamma,) = draw_parameters(x, axis, 1)

    def forward(x, gamma):
        return reference.rms_norm(x, gamma, axis, eps)[0]

    expected = numerical_gradients(forward, (x, gamma), dy)
    assert_gradients(reference.rms_norm_backward(dy, x, gamma, axis, eps), expected)


ADA_OPTIONS = [
    {"axis": axis, "scale": 0.8, "k": 0.3, "eps": eps, "eps_in": eps_in, "ddof": ddof}
    for axis in (-1, (0, 2))
    for eps in (0.0, 0.4)
    for eps_in in ("variance", "std")
    for ddof in (0, 1)
]


@pytest.mark.parametrize("options", ADA_OPTIONS, ids=str)
def test_ada_norm_backward_with_the_factor_in_the_gradient(options):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    expected = numerical_gradients(lambda x: reference.ada_norm(x, **options)[0], (x,), dy)
    actual = reference.ada_norm_backward(dy, x, detach_factor=False, **options)
    assert_gradients([actual], expected)


@pytest.mark.parametrize("options", ADA_OPTIONS, ids=str)
def test_ada_norm_backward_with_a_constant_factor(options):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    plain = {**options, "k": 0.0}
    factor = 1 - np.longdouble(options["k"]) * reference.ada_norm(x, **plain | {"scale": 1})[0]
    expected = numerical_gradients(lambda x: factor * reference.ada_norm(x, **plain)[0], (x,), dy)
    assert_gradients([reference.ada_norm_backward(dy, x, **options)], expected)


def test_ada_norm_without_its_factor_is_layer_norm():
    x, dy = draw(0, 3, 6), draw(1, 3, 6)
    plain = reference.ada_norm(x, scale=1, k=0)
    for ada, layer in zip(plain, reference.layer_norm(x), strict=True):
        np.testing.assert_array_equal(ada, layer)
    layer_dx = reference.layer_norm_backward(dy, x)[0]
    # The two formulas round differently, a few units of the last place of a longdouble.
    np.testing.assert_allclose(reference.ada_norm_backward(dy, x, k=0), layer_dx, rtol=TOLERANCE)


@pytest.mark.parametrize("channel_axis", [0, 1, -1])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_batch_norm_backward(channel_axis, eps):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    gamma, beta = draw_parameters(x, channel_axis, 2)

    def forward(x, gamma, beta):
        return reference.batch_norm(x, gamma, beta, channel_axis, eps)[0]

    expected = numerical_gradients(forward, (x, gamma, beta), dy)
    assert_gradients(reference.batch_norm_backward(dy, x, gamma, channel_axis, eps), expected)


@pytest.mark.parametrize("channel_axis", [0, 1, -1])
def test_batch_norm_inference_backward(channel_axis):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    gamma, beta, running_mean, running_var = draw_parameters(x, channel_axis, 4)
    running_var = running_var**2
    stored = (running_mean, running_var)

    def forward(x, gamma, beta):
        return reference.batch_norm_inference(x, *stored, gamma, beta, channel_axis)[0]

    expected = numerical_gradients(forward, (x, gamma, beta), dy)
    actual = reference.batch_norm_inference_backward(dy, x, *stored, gamma, channel_axis)
    assert_gradients(actual, expected)


def test_batch_norm_with_its_own_statistics_stored_is_the_training_output():
    x = draw(0, 8, 3)
    y, mean, _ = reference.batch_norm(x)
    stored = reference.batch_norm_inference(x, mean, x.var(axis=0))[0]
    np.testing.assert_allclose(stored, y, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape, channel_axis", [((2, 6, 3), 1), ((2, 3, 6), -1), ((2, 6), 1)])
def test_group_norm_backward(groups, shape, channel_axis):
    x, dy = draw(0, *shape), draw(1, *shape)
    gamma, beta = draw_parameters(x, channel_axis, 2)

    def forward(x, gamma, beta):
        return reference.group_norm(x, gamma, beta, groups, channel_axis, 0.1)[0]

    expected = numerical_gradients(forward, (x, gamma, beta), dy)
    actual = reference.group_norm_backward(dy, x, gamma, groups, channel_axis, 0.1)
    assert_gradients(actual, expected)


@pytest.mark.parametrize("shape, channel_axis", [((2, 3, 4), 1), ((2, 4, 3), -1)])
def test_instance_norm_backward(shape, channel_axis):
    x, dy = draw(0, *shape), draw(1, *shape)
    gamma, beta = draw_parameters(x, channel_axis, 2)

    def forward(x, gamma, beta):
        return reference.instance_norm(x, gamma, beta, channel_axis, 0.1)[0]

    expected = numerical_gradients(forward, (x, gamma, beta), dy)
    actual = reference.instance_norm_backward(dy, x, gamma, channel_axis, 0.1)
    assert_gradients(actual, expected)


def test_group_norm_of_one_group_is_layer_norm_of_a_sample():
    x = draw(0, 2, 6, 3)
    sample = reference.layer_norm(x, axis=(1, 2))[0]
    np.testing.assert_array_equal(reference.group_norm(x, groups=1)[0], sample)


@pytest.mark.parametrize("axis", AXES)
def test_weight_norm_backward(axis):
    x, dy = draw(0, *SHAPE), draw(1, *SHAPE)
    g = draw(2, *[SHAPE[n] for n in range(3) if n not in reference.normalized_axes(3, axis)])

    def forward(x, g):
        return reference.weight_norm(x, g, axis)[0]

    expected = numerical_gradients(forward, (x, g), dy)
    assert_gradients(reference.weight_norm_backward(dy, x, g, axis), expected)


@pytest.mark.parametrize("split", [0, 1, 4, 9])
def test_merged_moments_are_the_moments_of_everything(split):
    x = draw(0, 9, 3)
    merged = reference.merge_moments(reference.moments(x[:split]), reference.moments(x[split:]))
    for part, whole in zip(merged, reference.moments(x), strict=True):
        np.testing.assert_allclose(part, whole, rtol=TOLERANCE, atol=TOLERANCE)


def test_running_statistics_of_the_two_conventions_differ_by_the_correction_alone():
    x, old = draw(0, 5, 3), np.zeros(3)
    torch = reference.running_statistics(x, old, old, reference.kept_share("torch", 0.25), 1)
    keras = reference.running_statistics(x, old, old, reference.kept_share("keras", 0.75), 0)
    np.testing.assert_array_equal(torch[0], keras[0])
    np.testing.assert_allclose(torch[1], keras[1] * 5 / 4, rtol=TOLERANCE)


def test_cumulative_running_mean_is_the_mean_of_the_batch_means():
    batches = draw(0, 4, 6, 3)
    mean = variance = np.zeros(3)
    for number, batch in enumerate(batches):
        kept = reference.kept_share("torch", "cumulative", number)
        mean, variance = reference.running_statistics(batch, mean, variance, kept, 1)
    expected = batches.mean(axis=(0, 1))
    np.testing.assert_allclose(mean, expected, rtol=TOLERANCE, atol=TOLERANCE)
    expected = batches.var(axis=1, ddof=1).mean(axis=0)
    np.testing.assert_allclose(variance, expected, rtol=TOLERANCE)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e30])
def test_zero_variance_without_eps_gives_beta_and_no_gradient(constant):
    x, dy, beta = np.full((2, 5), constant), draw(1, 2, 5), draw(2, 5)
    y, mean, rstd = reference.layer_norm(x, None, beta, eps=0)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, y.shape))
    np.testing.assert_array_equal(mean, constant)
    np.testing.assert_array_equal(rstd, 0)
    np.testing.assert_array_equal(reference.layer_norm_backward(dy, x, eps=0)[0], 0)
    np.testing.assert_array_equal(reference.ada_norm_backward(dy, x, eps=0), 0)
    np.testing.assert_array_equal(reference.batch_norm_backward(dy, x, eps=0)[0], 0)


def test_the_zero_weight_vector_has_no_direction():
    dx, dg = reference.weight_norm_backward(draw(0, 2, 3), np.zeros((2, 3)))
    np.testing.assert_array_equal(reference.weight_norm(np.zeros((2, 3)))[0], 0)
    np.testing.assert_array_equal(dx, 0)
    np.testing.assert_array_equal(dg, 0)
