"""What a norm does to gradients
=============================

The derivatives of mean and variance re-center and re-scale the gradients of layer norm. Leave them
out, one by one.

J. Xu, X. Sun, Z. Zhang, G. Zhao, J. Lin, `Understanding and Improving Layer Normalization
<https://arxiv.org/abs/1911.07013>`_, 2019.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/detach_gradients.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import numnorm

# %%
# The theorem
# -----------
#
# A row with the deviation σ is normalized without gain and bias. The gradient of the output has
# the mean ḡ and the variance D. What are mean and variance of the gradient of the row? DetachNorm
# treats the mean, the deviation or both as constants:
#
# ============ ========= ============
# detached     mean      variance
# ============ ========= ============
# nothing      0         ≤ D / σ²
# the mean     ḡ / σ     ≤ D / σ²
# the scale    0         = D / σ²
# both         ḡ / σ     = D / σ²
# ============ ========= ============
#
# Rows of different scales, and gradients that go along with the row to different degrees:

rng = np.random.default_rng(0)
x = rng.normal(size=(300, 64)) * rng.uniform(0.3, 3, (300, 1))
xhat, mean, rstd = numnorm.layer_norm_forward(x, eps=0)
along = rng.uniform(-2, 2, (300, 1))
g = rng.normal(0, 1, (300, 1)) + along * xhat + rng.normal(size=x.shape)

# The theorem's terms for each row.
sigma, average, variance = x.std(axis=1), g.mean(axis=1), g.var(axis=1)

# %%
# Measured
# --------

figure, axes = plt.subplots(2, 4, figsize=(5.6, 3.6), sharex="row", sharey="row")
for column, detach in enumerate((None, "mean", "scale", "both")):
    dx = numnorm.layer_norm_backward(g, x, mean, rstd, detach=detach).dx
    scaled_mean, scaled_variance = dx.mean(axis=1) * sigma, dx.var(axis=1) * sigma**2
    expected = average if detach in ("mean", "both") else 0 * average
    print(
        f"detach={detach!s:>5}: mean off by {abs(scaled_mean - expected).max():.0e}, "
        f"variance / bound {(scaled_variance / variance).min():.3f} to "
        f"{(scaled_variance / variance).max():.3f}"
    )
    assert np.allclose(scaled_mean, expected, atol=1e-12)
    assert (scaled_variance <= variance * (1 + 1e-12)).all()
    if detach in ("scale", "both"):
        assert np.allclose(scaled_variance, variance)
    above, below = axes[:, column]
    above.plot(average, scaled_mean, ".", markersize=3)
    below.plot(variance, variance, color="C4", linewidth=1)
    below.plot(variance, scaled_variance, ".", markersize=3, color="C1")
    above.set(title={None: "nothing"}.get(detach, detach))
axes[0, 0].set(ylabel="mean of dx · σ")
axes[1, 0].set(ylabel="variance of dx · σ²")
for panel, label in ((axes[0], "ḡ"), (axes[1], "D")):
    for each in panel:
        each.set(xlabel=label)
figure.suptitle("detached", fontsize="medium")
plt.show()

# %%
# On the line the variance is D / σ²; below it the derivative of the deviation has made it smaller.
# This happens to gradients that go along with the row:

dx = numnorm.layer_norm_backward(g, x, mean, rstd).dx
share = dx.var(axis=1) * sigma**2 / variance
correlation = (g * xhat).mean(axis=1) / np.sqrt(variance)

figure, panel = plt.subplots(figsize=(5.6, 2.9))
panel.plot(correlation, share, "o", markersize=4, label="rows")
curve = np.linspace(-1, 1, 200)
panel.plot(curve, 1 - curve**2, color="C1", label="1 − correlation²")
panel.set(xlabel="correlation of g with the normalized row", ylabel="variance of dx / (D / σ²)")
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %%
# AdaNorm
# -------
#
# AdaNorm has no gain. It multiplies the normalized row by :math:`C (1 - k \hat x)`, a factor that
# is a constant for the gradient. So the theorem holds with the gradient times this factor in place
# of g.

SCALE, K = 1.5, 0.1
y, mean, rstd = numnorm.ada_norm_forward(x, scale=SCALE, k=K, eps=0)
dx = numnorm.ada_norm_backward(g, x, mean, rstd, scale=SCALE, k=K)
inner = SCALE * (1 - K * xhat) * g
share = dx.var(axis=1) * sigma**2 / inner.var(axis=1)
print(f"AdaNorm: mean {abs(dx.mean(axis=1)).max():.0e}, variance / bound at most {share.max():.3f}")
assert (share <= 1 + 1e-12).all()
