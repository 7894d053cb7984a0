"""What pages of the gallery say of their experiments, with the functions and seeds of the pages.

Rounding differs between processors, and training makes it larger: the bounds leave room for it.
"""

import ast
import functools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import correlate

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"), reason="slow when uncompiled"
)


@functools.cache
def definitions(page):
    """What a page defines, without running it: imports, functions, classes and constants."""
    path = GALLERY / f"{page}.py"
    tree = ast.parse(path.read_text("utf-8"))
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper())
    ]
    names = {"__name__": page}
    exec(compile(tree, path, "exec"), names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def errors():
    """Percent of wrong digits: a row for each seed, learned and held out."""
    train = definitions("detached_depths").train

    @functools.cache
    def of(norm, depth):
        return np.array([train(norm, depth, seed) for seed in range(4)])[:, :, 1]

    return of


@compiled
@pytest.mark.slow
def test_deep_networks_with_a_detached_scale_are_worse_than_without_a_norm(errors):
    none = errors("none", 12).mean(axis=0)
    # Found: 24 and 54 % of learned digits, and 4 % without a norm.
    assert (errors("scale detached", 12).mean(axis=0) > 2 * none).all()
    assert (errors("both detached", 12).mean(axis=0) > 3 * none).all()


@compiled
@pytest.mark.slow
def test_deep_networks_with_a_detached_mean_are_as_good_as_with_nothing_detached(errors):
    detached, none = errors("mean detached", 12), errors("none", 12)
    nothing = errors("LayerNorm-simple", 12)
    assert (detached.mean(axis=0) < none.mean(axis=0) + none.std(axis=0)).all()
    apart = detached.std(axis=0) + nothing.std(axis=0)
    assert (abs(detached.mean(axis=0) - nothing.mean(axis=0)) < apart).all()


@compiled
@pytest.mark.slow
def test_deep_networks_with_a_detached_scale_learn_at_a_larger_rate():
    train = definitions("detached_depths").train
    detached, nothing = (
        np.array([train(name, 12, seed, rate=0.1)[1][1] for seed in range(10)])
        for name in ("scale detached", "LayerNorm-simple")
    )
    # Found: 6 and 5 % of held-out digits; at the page's rate 27 and 6 %.
    assert abs(detached.mean() - nothing.mean()) < detached.std() + nothing.std()
    assert detached.mean() < 15


@compiled
def test_shallow_networks_with_a_detached_scale_are_as_bad_as_without_a_norm(errors):
    none = errors("none", 2)
    for name in ("scale detached", "both detached"):
        detached = errors(name, 2)
        apart = none.std(axis=0) + detached.std(axis=0)
        assert (abs(detached.mean(axis=0) - none.mean(axis=0)) < apart).all()
        # In every network, while layer norms are better.
        assert (detached[:, 0] > errors("LayerNorm-simple", 2)[:, 0] + 1).all()
    assert (none[:, 0] > errors("LayerNorm-simple", 2)[:, 0] + 1).all()


@compiled
@pytest.mark.parametrize("depth", [2, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["AdaNorm", "LayerNorm-simple"])
def test_no_layer_norm_is_better_than_another(errors, name, depth):
    one, other = errors("layer norm", depth)[:, 1], errors(name, depth)[:, 1]
    assert abs(one.mean() - other.mean()) < one.std() + other.std()


@compiled
def test_gain_and_bias_learn_more_and_are_not_worse_on_held_out_digits():
    page = definitions("detached_depths")
    options = {"rate": 0.1, "epochs": 60, "learned": page.LEARNED[:256]}
    with_both, without = (
        np.array([page.train(name, 2, seed, **options) for seed in range(10)])
        for name in ("layer norm", "LayerNorm-simple")
    )
    more = without - with_both
    assert (with_both[:, 0, 1] == 0).all() and (without[:, 0, 1] == 0).all()  # learned by heart
    assert (more[:, 0, 0] > 0).all()  # the loss on learned digits, in every network
    assert more[:, 1, 0].mean() > 0  # the loss on held-out digits
    wrong = more[:, 1, 1]
    assert abs(wrong.mean()) < wrong.std()


@pytest.mark.parametrize("prenorm", [True, False])
def test_gradients_of_the_transformer_are_the_numerical_ones(prenorm):
    page = definitions("transformer_block")
    rng = np.random.default_rng(0)
    weights = page.transformer(2, rng, width=6)
    tokens, targets = rng.integers(page.TOKENS, size=(2, 2, 3))
    loss = functools.partial(page.loss_and_gradients, weights, tokens, targets, prenorm)
    _, (dembedding, dsublayers, dreadout) = loss()
    embedding, sublayers, readout = weights
    matrices = [embedding, *(matrix for each in sublayers for matrix in each), readout]
    gradients = [dembedding, *(gradient for each in dsublayers for gradient in each), dreadout]
    for matrix, gradient in zip(matrices, gradients, strict=True):
        # Along a random direction, which all elements of the matrix are part of.
        direction, start = rng.normal(size=matrix.shape), matrix.copy()
        matrix += 1e-5 * direction
        above = loss()[0]
        matrix[:] = start - 1e-5 * direction
        below = loss()[0]
        matrix[:] = start
        # Errors of central differences are of the order of the step's square, and of the rounding
        # of the loss divided by the step: both about 1e-10, and here times a direction.
        assert (above - below) / 2e-5 == pytest.approx((gradient * direction).sum(), abs=1e-8)


@compiled
def test_gradients_by_depth_with_the_norm_after_and_before_sublayers():
    sizes = definitions("transformer_block").gradient_sizes
    post, pre = (
        {
            depth: np.mean([sizes(depth, prenorm, seed) for seed in range(10)], axis=0)
            for depth in (2, 4, 8, 16, 32)
        }
        for prenorm in (False, True)
    )
    assert post[16][-1] > 1.5 * post[16][0]
    assert min(post[depth][-1] for depth in (4, 8, 16, 32)) >= post[2][-1]
    # Smaller with every doubling of the depth, and at every depth than with post-norm.
    assert (np.diff([pre[depth][-1] for depth in pre]) < 0).all()
    assert pre[32][-1] < 0.6 * pre[2][-1]
    assert all(pre[depth][-1] < post[depth][-1] for depth in pre)
    assert pre[16][-1] < 0.5 * pre[16][0]


def test_convolution_is_a_correlation():
    page, rng = definitions("digits_convolutions"), np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 8, 8)), rng.normal(size=(4, 3, 3, 3))
    expected = [[correlate(image, w, mode="valid")[0] for w in weight] for image in x]
    np.testing.assert_allclose(page.convolved(x, weight), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "norm",
    ["none", *(pytest.param(n, marks=pytest.mark.full) for n in ("layer", "group", "instance"))],
)
def test_step_of_the_convolutions_follows_the_gradient(norm):
    page = definitions("digits_convolutions")
    network = page.Network(norm, np.random.default_rng(0))
    network.p = before = {name: value.astype("f8") for name, value in network.p.items()}
    x, labels = page.IMAGES[:5].astype("f8"), page.CLASSES[:5]

    def loss():
        scores = network.scores(x)
        chosen = scores[np.arange(len(labels)), labels]
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - chosen)

    found = {}
    for name, value in before.items():
        direction, step = np.random.default_rng(1).normal(size=value.shape), 1e-6
        value += step * direction
        above = loss()
        value -= 2 * step * direction
        below = loss()
        value += step * direction
        found[name] = (above - below) / (2 * step), direction
    at_first = {name: value.copy() for name, value in before.items()}
    network.step(x, labels)
    for name, (slope, direction) in found.items():
        gradient = (at_first[name] - network.p[name]) / np.float32(page.RATE)
        # Central differences have a relative error of about 1e-10 / 1e-6, except at a ReLU's bend.
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_layer_norm_is_between_batch_norm_and_none_in_convolutions():
    page = definitions("digits_convolutions")
    found = {n: [page.learned(n, seed) for seed in range(page.SEEDS)] for n in page.NORMS}
    errors = {norm: np.mean(runs, axis=0) for norm, runs in found.items()}
    assert (errors["batch"] < errors["layer"]).all()  # after every epoch
    assert (errors["layer"] < errors["none"]).all()
    assert max(errors[norm].mean() for norm in ("batch", "group", "instance")) < (
        errors["layer"].mean()
    )


@pytest.fixture(scope="module")
def characters():
    """The bits per character in the end, of each seed, by norm, batch size and multiple of rate."""
    page = definitions("lstm_characters")
    chosen = [(norm, size, 1) for norm in page.NORMS for size in page.UPDATES]
    chosen += [(norm, size, 3) for norm in ("none", "layer") for size in page.UPDATES]
    return {
        (norm, size, times): np.array(
            [page.learned(norm, size, seed, times * page.RATE)[-1] for seed in range(page.SEEDS)]
        )
        for norm, size, times in chosen
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "order, size",
    [(("layer", "batch", "none"), 128), (("layer", "none", "batch"), 4)],
)
def test_layer_norm_reads_characters_best_and_batch_norm_needs_a_large_batch(
    characters, order, size
):
    best, middle, worst = (characters[norm, size, 1] for norm in order)
    assert best.max() < middle.min()  # with all seeds
    assert middle.max() < worst.min()


@pytest.mark.slow
def test_at_three_times_the_rate_layer_norm_gains_less(characters):
    def gain(size, times):
        return (characters["none", size, times] - characters["layer", size, times]).mean()

    assert 0.2 * gain(128, 1) < gain(128, 3) < 0.5 * gain(128, 1)
    assert gain(4, 3) < 0.1 < gain(4, 1)
    for size in (128, 4):
        change = {
            n: abs(np.subtract(*(characters[n, size, t].mean() for t in (1, 3))))
            for n in ("none", "layer")
        }
        assert change["layer"] < change["none"] / 2


@pytest.fixture(scope="module")
def averages():
    """The page of averages, its runs with full batches, and those with a last batch of two."""
    page = definitions("batch_norm_averages")
    counts = page.FULL, page.FULL + 2
    return page, *([page.learned(seed, n) for seed in range(page.SEEDS)] for n in counts)


@pytest.mark.slow
def test_momentum_and_cumulative_averages(averages):
    page, runs, _ = averages
    factors = {name: np.mean([f[name] for *_, f in runs], axis=0) for name in page.AVERAGES}
    assert factors["0.1"][0] > 5 and factors["0.1"][50:].max() < 1.1
    assert factors["0.01"].min() > 2.5
    assert factors["cumulative"].max() < 1.2
    errors = {name: found.mean(axis=0) for name, found in page.table(runs).items()}
    assert errors["0.01"][0] > 1.5 * errors["exact"][0]
    for name in ("0.1", "cumulative"):
        assert abs(errors[name][0] - errors["exact"][0]) < 1  # %
    assert errors["cumulative"][-1] > errors["exact"][-1] + 0.3
    for name in ("0.1", "0.01"):
        assert abs(errors[name][-1] - errors["exact"][-1]) < 0.3


@pytest.mark.slow
def test_after_a_last_batch_of_two_no_average_is_right(averages):
    page, runs, small = averages
    full, two = (
        {n: e[:, 2:].max(axis=1).mean() for n, e in page.table(found).items()}
        for found in (runs, small)
    )
    for name in page.AVERAGES:
        assert two[name] > 2 * two["exact"]
        assert two[name] > 1.8 * full[name]


@pytest.mark.slow
def test_training_mode_in_the_place_of_inference(averages):
    page, runs, _ = averages
    rest = page.ORDER[page.FULL :]

    def error(size):
        starts = range(0, len(rest) - size + 1, size)
        return np.mean([n.error(rest[s : s + size]) for n, *_ in runs for s in starts])

    errors = [error(size) for size in (1, 2, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)
    inference = [n.error(rest, training=False, **n.running["0.1"]) for n, *_ in runs]
    assert errors[-1] > np.mean(inference)
    # Alone, every digit gets the answer of one class.
    shares = np.bincount(page.CLASSES[rest]) / len(rest)
    for network, *_ in runs:
        alone = np.mean([network.error(rest[s : s + 1]) for s in range(len(rest))])
        assert np.isclose(100 - alone, 100 * shares, rtol=1e-12).any()


def test_last_batch_of_one_is_an_error():
    page = definitions("batch_norm_averages")
    with pytest.raises(ValueError, match="at least 2 values"):
        page.learned(0, page.FULL + 1)
