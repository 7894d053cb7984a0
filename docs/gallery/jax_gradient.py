"""A gradient of JAX through a norm
================================

The functions of ``numnorm.jax`` stand in a jitted function, and JAX differentiates through them.

A small network learns to tell two spirals apart. Its layer norm is once that of numnorm, and once
written in JAX.

:doc:`/jax` says how it works.

To run it, in the folder of the sources: ``pip install '.[demo,jax]'``, then
``python docs/gallery/jax_gradient.py``
"""

import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import numnorm.jax

# %%
# Two spirals
# -----------

rng = np.random.default_rng(0)
count = 400
radii = rng.uniform(0.3, 3, count)
labels = np.arange(count) % 2
angles = 2 * radii + np.pi * labels
points = np.column_stack((radii * np.cos(angles), radii * np.sin(angles)))
points = (points + rng.normal(0, 0.05, points.shape)).astype(np.float32)

# %%
# A network, with a norm as an argument
# -------------------------------------


def by_jax(x, gamma, beta):
    """Return the layer norm as JAX computes and differentiates it."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return gamma * (x - mean) / jnp.sqrt(var + 1e-5) + beta


def scores(parameters, x, norm):
    """Return a number for each point, positive for the second spiral."""
    for weight, bias, gamma, beta in parameters[:-1]:
        x = jnp.tanh(norm(x @ weight + bias, gamma, beta))
    weight, bias = parameters[-1]
    return (x @ weight + bias)[:, 0]


def loss(parameters, x, norm):
    """Return the mean cross-entropy."""
    return jnp.logaddexp(0, (1 - 2 * labels) * scores(parameters, x, norm)).mean()


def initial(widths=(2, 32, 32)):
    """Return parameters to begin with, as a list that JAX takes as it is."""
    rng = np.random.default_rng(1)
    layers = []
    for fan_in, width in itertools.pairwise(widths):
        weight = rng.normal(0, fan_in**-0.5, (fan_in, width))
        layers.append([weight, rng.normal(0, 1, width), np.ones(width), np.zeros(width)])
    layers.append([rng.normal(0, widths[-1] ** -0.5, (widths[-1], 1)), np.zeros(1)])
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), layers)


# %%
# Equal gradients
# ---------------

parameters = initial()
ours = jax.grad(loss)(parameters, points, numnorm.jax.layer_norm)
theirs = jax.grad(loss)(parameters, points, by_jax)
largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(theirs))
differences = jax.tree.map(lambda one, two: float(abs(one - two).max()), ours, theirs)
off = max(jax.tree.leaves(differences)) / largest
print(f"gradients differ by at most {off:.0e} of the largest")
assert off < 1e-5

# %%
# Training
# --------


@jax.jit
def step(parameters, momentum):
    """Return parameters and momentum after a step of gradient descent, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(parameters, points, numnorm.jax.layer_norm)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momentum), momentum, value


losses, momentum = [], jax.tree.map(jnp.zeros_like, parameters)
for _ in range(600):
    parameters, momentum, value = step(parameters, momentum)
    losses.append(float(value))
right = ((scores(parameters, points, numnorm.jax.layer_norm) > 0) == labels).mean()
print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.4f}; {right:.1%} are right")

# %%

side = np.linspace(-3.3, 3.3, 150, dtype=np.float32)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
field = np.asarray(scores(parameters, grid, numnorm.jax.layer_norm)).reshape(150, 150)

figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.9))
axes[0].semilogy(losses)
axes[0].set(xlabel="step", ylabel="mean cross-entropy", title="training")
axes[1].contour(side, side, field, [0], colors="C4", linewidths=1.5)
for label, marker in ((0, "o"), (1, "s")):
    axes[1].plot(*points[labels == label].T, marker, markersize=2.5)
axes[1].set(title="spirals and border", xlabel="x₁", ylabel="x₂", aspect="equal")
plt.show()
