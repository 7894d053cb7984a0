"""``numnorm demo``: the gradients are right, the network learns, the report says what it saw."""

import sys
from pathlib import Path

import kernels
import numpy as np
import pytest

import numnorm
from numnorm.__main__ import main
from numnorm.commands.demo import classifier, classifier_report
from numnorm.commands.demo import command as demo
from numnorm.commands.demo.classifier import Classifier
from numnorm.commands.demo.layers import BatchNorm, LayerNorm

NORMS = list(classifier.NORMS)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Run the demo on a few images with a small network, in an empty directory."""
    training, validation = demo.digits(0)
    subset = tuple(array[:120] for array in training), tuple(array[:50] for array in validation)
    monkeypatch.setattr(demo, "digits", lambda seed: subset)
    monkeypatch.setattr(classifier, "HIDDEN", (12, 8))
    monkeypatch.chdir(tmp_path)
    return subset


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("columns", ["80", "100"])
def test_demo(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["demo", "--epochs", "2", "--output", "curves.png"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert max(map(len, lines)) <= int(columns)
    for heading in ("epoch", *NORMS, "batch size 128", "batch size 4"):
        assert heading in out
    # The two tables stand side by side: the second epoch has an error for each norm in each.
    assert sum(len(line.split()) == 12 and line.split()[0] == "2" for line in lines) == 1
    assert lines[-1] == "The picture is curves.png."
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == ["curves.png"]


def test_same_seed_same_results(small):
    first, again, other = (classifier.compare(small, 2, seed, [16]) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_every_norm_learns(small):
    errors = classifier.compare(small, 40, 0, [8])[8]
    assert {name: values[-1] < values[0] / 2 for name, values in errors.items()} == dict.fromkeys(
        NORMS, True
    )


def test_digits_are_split_by_the_seed():
    (images, labels), (others, _) = demo.digits(1)
    assert (len(images), len(others)) == (1200, 597)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)
    assert set(labels) == set(range(10))
    assert not np.array_equal(demo.digits(2)[0][0], images)


def test_every_norm_starts_from_the_same_weights():
    networks = [
        Classifier((9, 5, 4), norm, np.random.default_rng(7)) for norm in classifier.NORMS.values()
    ]
    for network in networks:
        for (weight, _), (expected, _) in zip(network.weights, networks[0].weights, strict=True):
            np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[kernels.full] if n == "RMS" else []) for n in NORMS]
)
def test_gradients_of_the_network(monkeypatch, name):
    """By differences; only for this does AdaNorm's gradient go through its factor too."""
    backward = numnorm.ada_norm_backward
    monkeypatch.setattr(
        numnorm, "ada_norm_backward", lambda *args: backward(*args, detach_factor=False)
    )
    rng = np.random.default_rng(0)
    network = Classifier((6, 7, 5, 3), classifier.NORMS[name], rng, np.float64)
    values = network.parameters.values
    values += 0.1 * rng.normal(size=values.shape)
    x, labels = rng.normal(size=(8, 6)), rng.integers(0, 3, 8)
    network.gradients(x, labels)
    gradients = network.parameters.gradients.copy()
    differences = np.zeros_like(gradients)
    step = 1e-5
    for index, value in enumerate(values.copy()):
        values[index] = value + step
        above = network.gradients(x, labels)
        values[index] = value - step
        differences[index] = (above - network.gradients(x, labels)) / (2 * step)
        values[index] = value
    np.testing.assert_allclose(gradients, differences, rtol=0, atol=1e-8)
    assert np.count_nonzero(gradients) > 6 * 7 + 7 * 5


def test_validation_uses_the_running_statistics_and_leaves_them():
    network = Classifier((6, 5, 3), BatchNorm, np.random.default_rng(0))
    x = np.random.default_rng(1).normal(2, 1, (20, 6)).astype(np.float32)
    labels = np.zeros(20, int)
    before = network.logits(x)
    network.gradients(x, labels)
    running = {name: values.copy() for name, values in network.norms[0].running.items()}
    assert not np.array_equal(running["running_mean"], np.zeros(5))
    assert not np.array_equal(network.logits(x), before)
    one_by_one = np.concatenate([network.logits(row[None]) for row in x])
    np.testing.assert_allclose(network.logits(x), one_by_one, rtol=1e-5, atol=1e-6)
    for name, values in network.norms[0].running.items():
        np.testing.assert_array_equal(values, running[name])


def test_logits_are_not_normalized():
    network = Classifier((6, 5, 3), LayerNorm, np.random.default_rng(0))
    assert [type(norm).__name__ for norm in network.norms] == ["LayerNorm", "NoNorm"]


def said_about(capsys, monkeypatch, none, batch, layer):
    errors = {"none": none, "batch": batch, "layer": layer, "RMS": layer, "Ada": layer}
    monkeypatch.setenv("COLUMNS", "1000")
    classifier_report.print_conclusions({4: errors}, 500)
    return capsys.readouterr().out.splitlines()


def test_conclusions_follow_the_numbers(capsys, monkeypatch):
    lines = said_about(
        capsys, monkeypatch, none=[60, 40, 9, 9], batch=[9, 9, 2.1, 2.1], layer=[30, 20, 2, 2]
    )
    assert lines == [
        "Batch size 4: after the first epoch layer norm (30.0 %) is ahead of no norm (60.0 %) and "
        "behind batch norm (9.0 %). Over the last epoch layer norm (2.0 %) is ahead of no norm "
        "(9.0 %) and level with batch norm (2.1 %); the lowest is layer norm (2.0 %).",
        "Level means: no further apart than one standard deviation of such a difference on 500 "
        "images. A single image is 0.2 points.",
    ]


def test_conclusions_that_do_not_favour_layer_norm(capsys, monkeypatch):
    (line, _) = said_about(
        capsys, monkeypatch, none=[8.0] * 5, batch=[7.0] * 5, layer=[30.0] * 4 + [20.0]
    )
    assert line == (
        "Batch size 4: after the first 2 epochs layer norm (30.0 %) is behind no norm (8.0 %) and "
        "batch norm (7.0 %). Over the last 2 epochs layer norm (25.0 %) is behind no norm (8.0 %) "
        "and batch norm (7.0 %); the lowest is batch norm (7.0 %)."
    )


def test_errors_of_zero_can_be_drawn_and_told(capsys, monkeypatch, tmp_path):
    errors = {name: [0.0, 0.0] for name in NORMS}
    with open(tmp_path / "zero.png", "wb") as file:
        classifier_report.draw({128: errors, 4: errors}, file)
    lines = said_about(capsys, monkeypatch, none=[0.0], batch=[0.0], layer=[0.0])
    assert "layer norm (0.0 %) is level with no norm (0.0 %) and batch norm (0.0 %)." in lines[0]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("package", ["rich", "matplotlib", "sklearn", "threadpoolctl"])
def test_missing_extras(capsys, monkeypatch, package):
    monkeypatch.undo()  # the digits come from scikit-learn
    for name in {package, *sys.modules}:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "--epochs", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"numnorm demo: error: {package} cannot be imported (")
    assert err.endswith('): pip install "numnorm[demo]"\n')


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--output", "none/curves.png"], "does not exist"),
        (["--output", "."], "is not a regular file"),
    ],
)
def test_errors_come_before_the_work(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(classifier, "compare", None)
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err, err.count("\n")) == ("", True, 1)
