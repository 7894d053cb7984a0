"""Gradients through a norm, a model and `denormalize`, as autograd has them for arithmetic."""

import numpy as np
import pytest

autograd = pytest.importorskip("autograd")
import autograd.numpy as anp  # noqa: E402

import numnorm  # noqa: E402
import numnorm.autograd  # noqa: E402

RNG = np.random.default_rng(17)


def test_all_arrays():
    y, weight = RNG.normal(size=(2, 4, 3))
    mean, rstd, gamma, beta = RNG.uniform(1, 2, (4, 4))[:, :3]

    def loss(arrays):
        x = numnorm.autograd.denormalize(*arrays, channel_axis=1)
        return anp.sum(weight * anp.sin(x))

    def plain(arrays):
        y, mean, rstd, gamma, beta = arrays
        return anp.sum(weight * anp.sin((y - beta) / gamma / rstd + mean))

    arrays = y, mean, rstd, gamma, beta
    found, wanted = autograd.grad(loss)(arrays), autograd.grad(plain)(arrays)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
    without_mean = autograd.grad(
        lambda rstd: anp.sum(numnorm.autograd.denormalize(y, None, rstd, channel_axis=1))
    )(rstd)
    np.testing.assert_allclose(without_mean, -y.sum(0) / rstd**2)


def test_a_model_between_a_norm_and_its_inverse():
    window, target, weight = (
        RNG.normal(5, 2, (6, 8)),
        RNG.normal(size=(6, 2)),
        RNG.normal(size=(8, 2)),
    )

    def loss(gamma, beta, weight):
        y = numnorm.autograd.layer_norm(window, anp.ones(8) * gamma, anp.ones(8) * beta)
        _, mean, rstd = numnorm.layer_norm_forward(window)
        both = anp.ones(2) * gamma, anp.ones(2) * beta
        x = numnorm.autograd.denormalize(anp.dot(y, weight), mean, rstd, *both)
        return anp.mean((x - target) ** 2)

    def plain(gamma, beta, weight):
        mean, variance = window.mean(1, keepdims=True), window.var(1, keepdims=True)
        deviation = np.sqrt(variance + 1e-5)
        y = anp.dot((window - mean) / deviation * gamma + beta, weight)
        return anp.mean(((y - beta) / gamma * deviation + mean - target) ** 2)

    for argument in range(3):
        got = autograd.grad(loss, argument)(1.5, 0.3, weight)
        np.testing.assert_allclose(
            got, autograd.grad(plain, argument)(1.5, 0.3, weight), rtol=1e-10
        )
