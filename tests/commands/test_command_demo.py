"""``numnorm demo``: the gradients are right, the network learns, the report says what it saw."""

import statistics
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest
from scipy import stats

import numnorm
from numnorm.__main__ import main
from numnorm.commands.demo import classifier, classifier_report, report
from numnorm.commands.demo import command as demo
from numnorm.commands.demo.classifier import Classifier
from numnorm.commands.demo.layers import BatchNorm, LayerNorm
from numnorm.commands.demo.training import Result, Task, compare

NORMS = list(classifier.NORMS)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Run the demo on a few images with a small network, in an empty directory."""
    every = demo.digits

    def few(seed):
        training, validation = every(seed)
        return tuple(array[:120] for array in training), tuple(array[:50] for array in validation)

    monkeypatch.setattr(demo, "digits", few)
    monkeypatch.setattr(classifier, "HIDDEN", (12, 8))
    monkeypatch.chdir(tmp_path)
    return few(0)


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


@pytest.mark.usefixtures("small")
def test_seeds(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    runs = []
    monkeypatch.setattr(classifier_report, "draw", lambda found, file: runs.extend(found))
    assert main(["demo", "--epochs", "2", "--seed", "5", "--seeds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    alone = [errors(demo.digits(seed), 2, seed) for seed in (5, 6, 7)]
    for run, expected in zip(runs, alone, strict=True):
        for task, found in run:
            for name in NORMS:
                of_seed = expected[task.batch_size][name]
                np.testing.assert_array_equal(found[name].errors, of_seed)
    # Batches of 4, last row: the epoch, then the mean, ± and the deviation of each norm.
    row = [line.split() for line in lines if line.split()[:1] == ["2"]][-1]
    last = {name: [run[4][name][-1].mean() for run in alone] for name in NORMS}
    assert row[1:] == [
        word
        for values in last.values()
        for word in (f"{statistics.mean(values):.1f}", "±", f"{statistics.stdev(values):.1f}")
    ]
    assert any("means over 3 seeds ± the standard deviation" in line for line in lines)


def errors(data, epochs, seed):
    """Return the errors of each sample for each batch size and norm."""
    run = compare(classifier.tasks(data, epochs), NORMS, seed)
    return {task.batch_size: {n: r.errors for n, r in found.items()} for task, found in run}


def test_same_seed_same_results(small):
    first, again, other = (errors(small, 2, seed)[4] for seed in (3, 3, 4))
    for name in NORMS:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_every_norm_learns(small):
    found = errors(small, 20, 0)[4]
    halved = {name: values[-1].mean() < values[0].mean() / 2 for name, values in found.items()}
    assert halved == dict.fromkeys(NORMS, True)


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


def a_run(**percent):
    """Return a run in which these percentages of 1000 images were wrong, the first ones of all."""
    percent = {"RMS": percent["layer"], "Ada": percent["layer"], **percent}
    results = {
        name: Result(np.where(np.arange(1000) < 10 * np.array(of_norm)[:, None], 100.0, 0.0), None)
        for name, of_norm in percent.items()
    }
    epochs = len(percent["layer"])
    samples = (np.zeros((1000, 1)), np.zeros(1000))
    task = Task("digits", "batch size 4", samples, samples, 4, epochs, None)
    return [(task, {name: results[name] for name in NORMS})]


def said_about(capsys, monkeypatch, *runs):
    monkeypatch.setenv("COLUMNS", "1000")
    classifier_report.print_report(list(runs))
    return capsys.readouterr().out.splitlines()[-2:]


def test_conclusions_follow_the_numbers(capsys, monkeypatch):
    # Of 1000 images 21 and 20 are wrong: one differs, which is as far from 0 as its deviation.
    run = a_run(none=[60, 40, 9, 9], batch=[9, 9, 2.1, 2.1], layer=[30, 20, 2, 2])
    assert said_about(capsys, monkeypatch, run) == [
        "Batch size 4: after the first epoch layer norm (30.0 %) is ahead of no norm (60.0 %) and "
        "behind batch norm (9.0 %). Over the last epoch layer norm (2.0 %) is ahead of no norm "
        "(9.0 %) and level with batch norm (2.1 %); the lowest is layer norm (2.0 %).",
        "Level means: a paired t test, sample by sample, finds no difference. It finds one in 5 % "
        "of comparisons of equals. A single image is 0.1 points.",
    ]


def test_conclusions_that_do_not_favour_layer_norm(capsys, monkeypatch):
    run = a_run(none=[8] * 5, batch=[7] * 5, layer=[30] * 4 + [20])
    assert said_about(capsys, monkeypatch, run)[0] == (
        "Batch size 4: after the first 2 epochs layer norm (30.0 %) is behind no norm (8.0 %) and "
        "batch norm (7.0 %). Over the last 2 epochs layer norm (25.0 %) is behind no norm (8.0 %) "
        "and batch norm (7.0 %); the lowest is batch norm (7.0 %)."
    )


def test_conclusions_of_several_seeds(capsys, monkeypatch):
    shifts = (-1, 0, 1)
    runs = [a_run(none=[7 + shift], batch=[4 + shift], layer=[3]) for shift in shifts]
    further, closer = (stats.ttest_1samp([m + s for s in shifts], 0).pvalue for m in (4, 1))
    assert further < report.CHANCE < closer
    assert said_about(capsys, monkeypatch, *runs) == [
        "Batch size 4: after the first epoch layer norm (3.0 ± 0.0 %) is ahead of no norm "
        "(7.0 ± 1.0 %) and level with batch norm (4.0 ± 1.0 %). Over the last epoch layer norm "
        "(3.0 ± 0.0 %) is ahead of no norm (7.0 ± 1.0 %) and level with batch norm (4.0 ± 1.0 %); "
        "the lowest is layer norm (3.0 ± 0.0 %).",
        "The numbers are means over 3 seeds ± the standard deviation. Level means: a paired t "
        "test, seed by seed, finds no difference. It finds one in 5 % of comparisons of equals, "
        "and of few seeds only a large one. A single image is 0.1 points.",
    ]


def test_errors_that_are_not_numbers_are_not_compared():
    values = {"none": [np.nan, 1], "batch": [4, 4], "layer": [3, 3]}
    errors = {name: np.array(of_norm, float)[None, None] for name, of_norm in values.items()}
    task = Task("corners", "16 at a time", (), (), 16, 1, None)
    assert "is not comparable with no norm" in report.conclusion("Corners", task, errors)


@pytest.mark.parametrize("seeds", [1, 2])
def test_errors_of_zero_can_be_drawn_and_told(capsys, monkeypatch, tmp_path, seeds):
    runs = [a_run(none=[0], batch=[0], layer=[0])] * seeds
    with open(tmp_path / "zero.png", "wb") as file:
        classifier_report.draw(runs, file)
    line, _ = said_about(capsys, monkeypatch, *runs)
    assert line.count("is level with no norm (0.0") == 2


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
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--output", "none/curves.png"], "does not exist"),
        (["--output", "."], "is not a regular file"),
    ],
)
def test_errors_come_before_the_work(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(demo, "compare", None)
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err, err.count("\n")) == ("", True, 1)
