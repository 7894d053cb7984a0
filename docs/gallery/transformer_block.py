"""A Transformer, normalized before or after its sublayers
=======================================================

A Transformer in NumPy, forward and backward. Where its layer norms stand decides how large the
gradients are before the first step of training.

The norm stands after each sublayer (post-norm, as in the first Transformer) or before it (pre-norm,
with one more norm at the end).

R. Xiong et al., `On Layer Normalization in the Transformer Architecture
<https://arxiv.org/abs/2002.04745>`_, 2020.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/transformer_block.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import numnorm

LENGTH, WIDTH, TOKENS = 16, 32, 20  # positions, width of the embeddings, different tokens


def random_matrix(rng, inputs, outputs):
    """Return a matrix of weights, as Glorot and Bengio draw them."""
    return rng.normal(0, (2 / (inputs + outputs)) ** 0.5, (inputs, outputs))


def softmax(scores):
    """Return the softmax over the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def product(a, b):
    """Return the gradient of a matrix of weights: the sum over all rows of a and b."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def attention(x, query, key, value, output):
    """Return self-attention of one head, and its backward function."""
    queries, keys, values = x @ query, x @ key, x @ value
    scale = queries.shape[-1] ** -0.5
    shares = softmax(queries @ keys.swapaxes(1, 2) * scale)
    mixed = shares @ values

    def backward(dy):
        dmixed = dy @ output.T
        dvalues, dshares = shares.swapaxes(1, 2) @ dmixed, dmixed @ values.swapaxes(1, 2)
        dscores = shares * (dshares - (dshares * shares).sum(axis=-1, keepdims=True)) * scale
        dqueries, dkeys = dscores @ keys, dscores.swapaxes(1, 2) @ queries
        dx = dqueries @ query.T + dkeys @ key.T + dvalues @ value.T
        return dx, (
            *(product(x, gradient) for gradient in (dqueries, dkeys, dvalues)),
            product(mixed, dy),
        )

    return mixed @ output, backward


def feed_forward(x, first, second):
    """Return two linear layers with a ReLU between them, and their backward function."""
    hidden = np.maximum(x @ first, 0)

    def backward(dy):
        dhidden = dy @ second.T * (hidden > 0)
        return dhidden @ first.T, (product(x, dhidden), product(hidden, dy))

    return hidden @ second, backward


def transformer(depth, rng, width=WIDTH):
    """Return the weights: of the embedding, of each sublayer, and of the scores of tokens."""
    sublayers = []
    for _ in range(depth):
        sublayers.append([random_matrix(rng, width, width) for _ in range(4)])
        sublayers.append(
            [random_matrix(rng, width, 4 * width), random_matrix(rng, 4 * width, width)]
        )
    return rng.normal(size=(TOKENS, width)), sublayers, random_matrix(rng, width, TOKENS)


def loss_and_gradients(weights, tokens, targets, prenorm):
    """Return the mean cross-entropy of the targets, and its gradients, in the form of the weights.

    `add_layer_norm_forward` returns the norm of y + residual, the sum, and its statistics. The next
    sublayer takes the norm. The next residual is the sum (pre-norm) or the norm (post-norm).
    """
    embedding, sublayers, readout = weights
    x = embedding[tokens] + numnorm.positional_encoding(*tokens.shape[1:], embedding.shape[1])
    if prenorm:
        normed, first_mean, first_rstd = numnorm.layer_norm_forward(x)
    else:
        normed = x
    residual, saved = x, []
    for index, parameters in enumerate(sublayers):
        y, backward = (feed_forward if index % 2 else attention)(normed, *parameters)
        normed, *sum_and_statistics = numnorm.add_layer_norm_forward(y, residual)
        residual = sum_and_statistics[0] if prenorm else normed
        saved.append((backward, sum_and_statistics))

    shares = softmax(normed @ readout)
    at_targets = np.take_along_axis(shares, targets[..., None], axis=-1)
    dscores = shares.copy()
    np.put_along_axis(dscores, targets[..., None], at_targets - 1, axis=-1)
    dscores /= targets.size

    dnormed, dresidual, dsublayers = dscores @ readout.T, 0 * x, []
    for backward, (total, mean, rstd) in reversed(saved):
        if prenorm:
            gradients = numnorm.add_layer_norm_backward(
                dnormed, total, mean, rstd, dtotal=dresidual
            )
        else:
            gradients = numnorm.add_layer_norm_backward(dnormed + dresidual, total, mean, rstd)
        dresidual = gradients.dx
        dnormed, dparameters = backward(dresidual)
        dsublayers.insert(0, dparameters)
    if prenorm:
        dnormed = numnorm.layer_norm_backward(dnormed, x, first_mean, first_rstd).dx
    dembedding = np.zeros_like(embedding)
    np.add.at(dembedding, tokens, dnormed + dresidual)
    return -np.log(at_targets).mean(), (dembedding, dsublayers, product(normed, dscores))


def gradient_sizes(depth, prenorm, seed):
    """Return for each layer the norm of the gradient of its last matrix, in a fresh network."""
    rng = np.random.default_rng(seed)
    weights = transformer(depth, rng)
    tokens = rng.integers(TOKENS, size=(8, LENGTH))
    # The task: to say the sequence backwards, which takes positions and attention.
    _, (_, dsublayers, _) = loss_and_gradients(weights, tokens, tokens[:, ::-1], prenorm)
    return [np.linalg.norm(second) for _, second in dsublayers[1::2]]


# %%
# Gradients before the first step
# -------------------------------
#
# Ten networks each, with random weights. Left, the gradients in the layers of networks with 16
# layers; right, in the last layer of networks with 2 to 32 layers.

SEEDS, DEPTHS, PLACES = 10, (2, 4, 8, 16, 32), {"post-norm": False, "pre-norm": True}
sizes = {
    (place, depth): np.array([gradient_sizes(depth, prenorm, seed) for seed in range(SEEDS)])
    for place, prenorm in PLACES.items()
    for depth in DEPTHS
}

figure, (of_layers, of_depths) = plt.subplots(1, 2, figsize=(5.6, 3.0), sharey=True)
for place, marker in zip(PLACES, "so", strict=True):
    options = {"label": place, "marker": marker, "markersize": 4, "capsize": 2}
    found = sizes[place, 16]
    of_layers.errorbar(np.arange(1, 17), found.mean(axis=0), found.std(axis=0, ddof=1), **options)
    last = np.array([sizes[place, depth][:, -1] for depth in DEPTHS])
    of_depths.errorbar(DEPTHS, last.mean(axis=1), last.std(axis=1, ddof=1), **options)
of_layers.set(title="16 layers", xlabel="layer", ylabel="norm of the gradient", ylim=(0, None))
of_depths.set(title="the last layer", xlabel="layers of the network", xscale="log")
of_depths.set_xticks(DEPTHS, DEPTHS)
of_depths.minorticks_off()
figure.legend(*of_layers.get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

print(f"gradient of the last matrix of a layer, mean and deviation of {SEEDS} networks")
print(f"{'layers':>10} {'post-norm: first':>17} {'last':>12} {'pre-norm: first':>17} {'last':>12}")
for depth in DEPTHS:
    ends = [sizes[place, depth][:, layer] for place in PLACES for layer in (0, -1)]
    cells = [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" for values in ends]
    print(f"{depth:>10} {cells[0]:>17} {cells[1]:>12} {cells[2]:>17} {cells[3]:>12}")

# %%
# Post-norm: in deep networks the last layers have the largest gradients, and that of the last layer
# does not become smaller in deeper networks. The paper explains by these large gradients why
# post-norm needs a warm-up of the learning rate. Nothing is trained here.
#
# Pre-norm: gradients become smaller towards the output, and that of the last layer becomes smaller
# in deeper networks. Each sublayer adds to the residual, and the norm at the end divides by the
# deviation of the whole sum. :doc:`/norms/layer` has the functions.
