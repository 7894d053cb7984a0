"""Instance norm with running statistics, against its definition and PyTorch."""

import numpy as np
import pytest

import numnorm

RNG = np.random.default_rng(8)
X = RNG.normal(3.0, 2.0, (5, 3, 4, 6))
GAMMA, BETA = np.array([0.5, 1.5, -2.0]), np.array([0.0, 1.0, 3.0])
# A mean of some dozen numbers below ten and one weighted sum, all in float64.
RTOL = 64 * np.finfo(np.float64).eps


def draw_running(dtype=np.float64):
    return np.array([0.5, -1.0, 2.0], dtype), np.array([1.0, 4.0, 0.25], dtype)


def averages(x, channel_axis, ddof):
    """The means and variances of all instances, averaged over the samples, in longdouble."""
    x = np.moveaxis(x, channel_axis, 1).astype(np.longdouble)
    x = x.reshape(*x.shape[:2], -1)
    return x.mean(axis=2).mean(axis=0), x.var(axis=2, ddof=ddof).mean(axis=0)


@pytest.mark.parametrize("channel_axis", [1, 2, -1])
@pytest.mark.parametrize(
    "options, kept, ddof",
    [
        ({}, 0.9, 1),
        ({"momentum": 0.3}, 0.7, 1),
        ({"momentum": 0.3, "unbiased": False}, 0.7, 0),
        ({"convention": "keras"}, 0.99, 0),
        ({"momentum": "cumulative", "batches": 3}, 0.75, 1),
    ],
)
def test_update(options, kept, ddof, channel_axis):
    x = np.moveaxis(X, 1, channel_axis)
    running = draw_running()
    y = numnorm.instance_norm(
        x, GAMMA, BETA, channel_axis=channel_axis,
        running_mean=running[0], running_var=running[1], **options,
    )  # fmt: skip
    for new, old, batch in zip(
        running, draw_running(), averages(x, channel_axis, ddof), strict=True
    ):
        np.testing.assert_allclose(new, kept * old + (1 - kept) * batch, rtol=RTOL)
    # The output is that of the samples' own statistics, with or without running ones.
    plain = numnorm.instance_norm(x, GAMMA, BETA, channel_axis=channel_axis)
    np.testing.assert_array_equal(y, plain)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_variance_is_exact_at_any_epsilon(scale, eps):
    x, (mean, variance) = X * scale, draw_running()
    numnorm.instance_norm(x, running_mean=mean, running_var=variance, momentum=1.0, eps=eps)
    expected = averages(x, 1, 1)
    np.testing.assert_allclose(mean, expected[0], rtol=RTOL)
    np.testing.assert_allclose(variance, expected[1], rtol=RTOL)


def test_constant_channels_have_a_variance_of_0():
    for eps in (0.0, 1e-5):
        mean, variance = np.zeros(2), np.ones(2)
        x = np.full((3, 2, 5), 7.5, np.float32)
        numnorm.instance_norm(x, running_mean=mean, running_var=variance, momentum=1.0, eps=eps)
        np.testing.assert_array_equal(mean, 7.5)
        np.testing.assert_array_equal(variance, 0.0)


@pytest.mark.parametrize("channel_axis", [1, -1])
def test_inference_is_that_of_batch_norm(channel_axis):
    x, dy = np.moveaxis(X, 1, channel_axis), np.moveaxis(X, 1, channel_axis) ** 2
    mean, variance = draw_running()
    stored = {"running_mean": mean, "running_var": variance, "training": False}
    y, *saved = numnorm.instance_norm_forward(x, GAMMA, BETA, channel_axis=channel_axis, **stored)
    expected, *theirs = numnorm.batch_norm_forward(
        x, GAMMA, BETA, channel_axis=channel_axis, **stored
    )
    np.testing.assert_array_equal(y, expected)
    options = {"channel_axis": channel_axis, "training": False}
    gradients = numnorm.instance_norm_backward(dy, x, *saved, GAMMA, **options)
    expected = numnorm.batch_norm_backward(dy, x, *theirs, GAMMA, **options)
    for mine, his in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(mine, his)
    np.testing.assert_array_equal((mean, variance), draw_running())


def test_an_empty_batch_and_a_refused_call_change_nothing():
    mean, variance = draw_running()
    options = {"running_mean": mean, "running_var": variance}
    numnorm.instance_norm(X[:0], **options)
    for bad in ({"gamma": np.ones(2)}, {"momentum": 2}, {"out": np.empty(3)}, {"x": X[..., 0, :1]}):
        with pytest.raises(ValueError):
            numnorm.instance_norm(**({"x": X} | options | bad))
    np.testing.assert_array_equal((mean, variance), draw_running())
    with pytest.raises(ValueError, match=r"^running_var must be given with running_mean, got None"):
        numnorm.instance_norm(X, running_mean=mean)
    with pytest.raises(ValueError, match=r"^running_mean must be given when training is False"):
        numnorm.instance_norm(X, training=False)
    with pytest.raises(ValueError, match=r"^x must have at least 2 values in each channel"):
        numnorm.instance_norm(X[..., :1, 0], **options)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("momentum", [0.1, 0.75])
def test_module_of_pytorch(momentum, dtype):
    torch = pytest.importorskip("torch")
    kind = torch.float32 if dtype == np.float32 else torch.float64
    module = torch.nn.InstanceNorm2d(
        3, affine=True, track_running_stats=True, momentum=momentum, dtype=kind
    )
    with torch.no_grad():
        module.weight[:] = torch.as_tensor(GAMMA)
        module.bias[:] = torch.as_tensor(BETA)
    mean, variance = np.zeros(3, dtype), np.ones(3, dtype)
    # Both round in this dtype, PyTorch also between its steps.
    options = {"rtol": 100 * np.finfo(dtype).eps, "atol": 100 * np.finfo(dtype).eps}
    for batch in range(3):
        x = RNG.normal(batch, 1 + batch, (4, 3, 5, 2)).astype(dtype)
        y = numnorm.instance_norm(
            x, GAMMA, BETA, running_mean=mean, running_var=variance, momentum=momentum
        )
        np.testing.assert_allclose(y, module(torch.as_tensor(x)).detach(), **options)
        np.testing.assert_allclose(mean, module.running_mean, **options)
        np.testing.assert_allclose(variance, module.running_var, **options)
    module.eval()
    x = torch.as_tensor(x).requires_grad_()
    theirs = module(x)
    theirs.square().sum().backward()
    stored = {"running_mean": mean, "running_var": variance, "training": False}
    y, *saved = numnorm.instance_norm_forward(x.detach(), GAMMA, BETA, **stored)
    np.testing.assert_allclose(y, theirs.detach(), **options)
    dx, dgamma, dbeta = numnorm.instance_norm_backward(
        2 * y, x.detach(), *saved, GAMMA.astype(dtype), training=False
    )
    gradient = {"rtol": 1000 * np.finfo(dtype).eps, "atol": 1000 * np.finfo(dtype).eps}
    np.testing.assert_allclose(dx, x.grad, **gradient)
    np.testing.assert_allclose(dgamma, module.weight.grad, **gradient)
    np.testing.assert_allclose(dbeta, module.bias.grad, **gradient)


def test_a_result_over_the_input_changes_no_statistics():
    x = np.random.default_rng(8).normal(3, 2, (2, 3, 4))
    expected, found = (np.zeros(3), np.ones(3)), (np.zeros(3), np.ones(3))
    y = numnorm.instance_norm(x, running_mean=expected[0], running_var=expected[1])
    assert numnorm.instance_norm(x, running_mean=found[0], running_var=found[1], out=x) is x
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(found, expected)
