"""What pages of the gallery say about norms comes out, with the pages' own functions and seeds."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import correlate

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"


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


@pytest.mark.slow
def test_last_batch_of_one_is_an_error(averages):
    page, *_ = averages
    with pytest.raises(ValueError, match="at least 2 values"):
        page.learned(0, page.FULL + 1)
