"""``numnorm demo lstm``: its gradients and data are right, and the report says what it saw."""

import sys
from pathlib import Path

import numpy as np
import pytest

from numnorm.__main__ import main
from numnorm.commands.demo import command as demo
from numnorm.commands.demo import lstm, lstm_report, report
from numnorm.commands.demo.layers import Parameters
from numnorm.commands.demo.lstm import NORMS, ROWS, Lstm, Reader, Walker, walks
from numnorm.commands.demo.lstm_report import of_the_reader
from numnorm.commands.demo.training import Task, compare


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Run the demo on a few images and walks with small networks, in an empty directory."""
    every = demo.digits

    def few(seed):
        training, validation = every(seed)
        return tuple(array[:40] for array in training), tuple(array[:20] for array in validation)

    monkeypatch.setattr(demo, "digits", few)
    monkeypatch.setattr(lstm, "DIGITS_HIDDEN", 6)
    monkeypatch.setattr(lstm, "CORNERS_HIDDEN", 6)
    monkeypatch.setattr(lstm, "CORNERS_WIDTH", 5)
    monkeypatch.setattr(lstm, "TRAINING_WALKS", (16, 13))
    monkeypatch.setattr(lstm, "VALIDATION_WALKS", (8, 17))
    monkeypatch.chdir(tmp_path)
    return few(0)


@pytest.mark.usefixtures("small")
def test_demo(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "lstm", "--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert max(map(len, lines)) <= 80
    # Two tables: a name of two words, and an error for each task, the corners' with four digits.
    rows = [line.split() for line in lines if line.startswith(("no norm ", "batch norm ", "layer"))]
    rows = [row for row in rows if len(row) == 2 + 5]
    assert [row[0] for row in rows] == ["no", "batch", "layer"] * 2
    assert all(len(row[-1].partition(".")[2]) == 4 for row in rows)
    assert lines[-1] == "The picture is numnorm-demo-lstm.png."
    assert Path("numnorm-demo-lstm.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == ["numnorm-demo-lstm.png"]


@pytest.mark.usefixtures("small")
def test_seeds(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    runs = []
    monkeypatch.setattr(lstm_report, "own_statistics", lambda found: runs.extend(found) or "")
    assert main(["demo", "lstm", "--epochs", "1", "--seed", "4", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "The picture is numnorm-demo-lstm.png."
    row = next(line for line in lines if line.startswith("layer norm")).split()[2:]
    means = [[found["layer"].errors[0].mean() for _, found in run] for run in runs]
    assert row[:3] == [
        f"{(means[0][0] + means[1][0]) / 2:.1f}",
        "±",
        # The deviation of two numbers.
        f"{abs(means[0][0] - means[1][0]) / 2**0.5:.1f}",
    ]
    assert all(len(word.partition(".")[2]) == 4 for word in (row[-3], row[-1]))
    first, second = (run[2][0].training for run in runs)
    assert not np.array_equal(first[0], second[0])  # other images
    assert not np.array_equal(first[2], second[2])  # cut short otherwise


def test_same_seed_same_results(small):
    def errors(seed):
        *_, cut_short, _, walks = lstm.tasks(small, 1, seed)
        results = compare([cut_short, walks], NORMS, seed)
        return np.concatenate([r.errors.ravel() for _, found in results for r in found.values()])

    first, again, other = (errors(seed) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_with_every_norm_the_weights_begin_alike():
    networks = [Reader(norm, 5, np.random.default_rng(7)) for norm in NORMS]
    for network in networks:
        for name in ("weight_x", "weight_h", "bias"):
            found, expected = (getattr(n.cell.parameters, name) for n in (network, networks[0]))
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(network.classifier.weight, networks[0].classifier.weight)


def by_differences(network, *batch):
    """Compare the gradients of a network with differences in some directions, in float64."""
    parameters, rng = network.parameters, np.random.default_rng(2)
    parameters.values += 0.1 * rng.normal(size=parameters.values.shape)
    values = parameters.values.copy()
    network.gradients(*batch)
    gradients = parameters.gradients.copy()
    step = 2e-6
    for _ in range(3):
        # A wrong gradient of a single parameter would show in every one.
        direction = rng.normal(size=values.shape)
        losses = []
        for sign in (1, -1):
            parameters.values[:] = values + sign * step * direction
            losses.append(network.gradients(*batch))
        # The error of a central difference is of the order of step² = 4e-12, times third
        # derivatives in a direction of length 15; a rounding of the loss is 1e-10 in it.
        expected = (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(gradients @ direction, expected, rtol=0, atol=1e-7)
    return gradients


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_the_reader(norm):
    rng = np.random.default_rng(0)
    network = Reader(norm, 2, rng, np.float64)
    images, lengths = rng.normal(size=(6, ROWS * ROWS)), np.array([8, 3, 5, 8, 3, 7])
    gradients = by_differences(network, images, rng.integers(0, 10, 6), lengths)
    assert np.count_nonzero(gradients) > 8 * (8 + 2 + 1) + 20


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_the_walker(norm):
    network = Walker(norm, 3, 2, np.random.default_rng(0), np.float64)
    gradients = by_differences(network, walks(7, 1).astype(np.float64))
    assert np.count_nonzero(gradients) > 2 * 8 * (3 + 2 + 1) + 6


def test_walks():
    made = walks(500, 13)
    nearest = np.sign(made)
    assert np.abs(made - nearest).max() < 6 * lstm.NOISE
    assert abs((made - nearest).std() / lstm.NOISE - 1) < 0.1
    steps = np.diff(nearest, axis=1)
    assert set(np.abs(steps).sum(axis=2).ravel()) == {2}  # along one side
    assert (nearest[:, 2] == -nearest[:, 0]).all()  # and on, not back
    assert {tuple(corner) for corner in nearest[:, 0]} == {(-1, -1), (-1, 1), (1, 1), (1, -1)}
    turns = steps[:, 0, 0] * steps[:, 1, 1] - steps[:, 0, 1] * steps[:, 1, 0]
    assert 0.4 < (turns > 0).mean() < 0.6


def test_the_first_walk_is_the_published_one():
    # Printed to four digits, of 128 walks with the seed 13.
    printed = [[1.0349, 0.9661], [0.8055, -0.9169]]
    # Half a digit; float32 rounds to 6e-8.
    np.testing.assert_allclose(walks(128, 13)[0, : lstm.GIVEN], printed, rtol=0, atol=0.501e-4)


def test_a_forecast_does_not_look_at_what_it_tells():
    network = Walker("layer", 4, 3, np.random.default_rng(0))
    points = walks(9, 2)
    changed = points.copy()
    changed[:, lstm.GIVEN :] += 5
    told = [network.told(p.swapaxes(0, 1)[: lstm.GIVEN]) for p in (points, changed)]
    np.testing.assert_array_equal(*told)
    # The second point told follows from the first one told, not from the true one.
    known = np.concatenate([points.swapaxes(0, 1)[: lstm.GIVEN], told[0]])
    second = network.told(known)[1]
    expected = ((np.stack([told[0][0], second]) - points.swapaxes(0, 1)[2:]) ** 2).mean((0, 2))
    np.testing.assert_allclose(network.error(points), expected, rtol=1e-6)


def small_cell():
    parameters = Parameters(Lstm.room(3, 4), np.float32)
    return Lstm("batch", 3, 4, 5, parameters, np.random.default_rng(0))


def test_validation_uses_the_running_statistics_and_leaves_them():
    cell, rng = small_cell(), np.random.default_rng(1)
    x = rng.normal(2, 1, (5, 20, 3)).astype(np.float32)
    cell.forward(x, training=True)
    followed = [statistic.copy() for statistic in cell.statistics]
    assert all(mean.any(axis=1).all() for mean in (cell.statistics.mean_x, cell.statistics.mean_c))
    together, _, _ = cell.forward(x)
    alone = [cell.forward(x[:, i : i + 1])[0] for i in range(20)]
    np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))
    for found, expected in zip(cell.statistics, followed, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_trained_with_a_single_sequence_batch_norm_sees_nothing():
    cell = small_cell()
    began = [statistic.copy() for statistic in cell.statistics]
    x = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)
    first, second = (cell.forward(x[:, i : i + 1], training=True)[0] for i in range(2))
    np.testing.assert_array_equal(first, second)
    for found, expected in zip(cell.statistics, began, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_values_before_and_after():
    network = Reader("layer", 6, np.random.default_rng(0))
    images = np.random.default_rng(1).uniform(0, 1, (7, ROWS * ROWS)).astype(np.float32)
    pairs = of_the_reader(network, images)
    assert [before.shape for before, _ in pairs.values()] == [(8, 7, 24), (7, 7, 24), (8, 7, 6)]
    for before, after in pairs.values():
        np.testing.assert_allclose(after.mean(axis=-1), 0, atol=1e-6)
        # The epsilon of 1e-5 is not small beside every variance.
        expected = np.sqrt(before.var(axis=-1) / (before.var(axis=-1) + 1e-5))
        np.testing.assert_allclose(after.std(axis=-1), expected, rtol=1e-4)


def test_images_are_cut_short_to_every_length():
    lengths = lstm.shortened(500, np.random.default_rng(0))
    assert set(lengths) == set(range(lstm.SHORTEST, ROWS + 1))


TASK = Task("digits", "4 at a time", (), (), 4, 4, None)


def test_conclusions_follow_the_numbers():
    layer = np.repeat([[[30.0], [20.0], [2.0], [2.0]]], 50, axis=2)
    batch = layer + np.tile([1.0, -1.0], 25)
    errors = {"none": layer + 10, "batch": batch, "layer": layer}
    assert report.conclusion("Digits", TASK, errors) == (
        "Digits: after the first epoch layer norm (30.0 %) is ahead of no norm (40.0 %) and level "
        "with batch norm (30.0 %). Over the last epoch layer norm (2.0 %) is ahead of no norm "
        "(12.0 %) and level with batch norm (2.0 %)"
    )


def test_conclusions_that_do_not_favour_layer_norm():
    layer = np.full((1, 5, 50), 0.5)
    errors = {"none": layer - 0.1, "batch": layer / 2, "layer": layer}
    assert report.conclusion("Corners", TASK._replace(data="corners"), errors) == (
        "Corners: after the first 2 epochs layer norm (0.5000) is behind no norm (0.4000) and "
        "batch norm (0.2500). Over the last 2 epochs layer norm (0.5000) is behind no norm "
        "(0.4000) and batch norm (0.2500)"
    )


def test_errors_of_zero_can_be_drawn(small, tmp_path):
    ((task, found),) = compare(lstm.tasks(small, 1, 0)[:1], NORMS, 0)
    found = {name: r._replace(errors=np.zeros_like(r.errors)) for name, r in found.items()}
    with open(tmp_path / "zero.png", "wb") as file:
        lstm_report.draw([[(task, found)]], file)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("package", ["rich", "matplotlib", "sklearn", "threadpoolctl"])
def test_missing_extras(capsys, monkeypatch, package):
    monkeypatch.undo()  # the digits come from scikit-learn
    for name in {package, *sys.modules}:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "lstm", "--epochs", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"numnorm demo: error: {package} cannot be imported (")
    assert err.endswith('): pip install "numnorm[demo]"\n')


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lstm", "--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["lstm", "--seeds", "-1"], "--seeds must be at least 1, got -1"),
        (["--seed", "-1", "lstm"], "--seed must not be negative, got -1"),
        (["lstm", "--output", "none/curves.png"], "does not exist"),
    ],
)
def test_errors_come_before_the_work(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(demo, "compare", None)
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err, err.count("\n")) == ("", True, 1)


def test_a_demo_that_does_not_exist(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "gru"])
    err = capsys.readouterr().err
    assert err.startswith("numnorm demo: error: argument network: invalid choice: 'gru'")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("small")
def test_interrupted(capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Reader, "error", interrupt)
    assert main(["demo", "lstm"]) == 130
    assert capsys.readouterr() == ("", "numnorm demo: interrupted\n")
    assert list(Path().iterdir()) == []
