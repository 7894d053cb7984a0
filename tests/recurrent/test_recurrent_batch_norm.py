"""Recurrent batch norm: the definition, its gradients, its running statistics."""

import numpy as np
import pytest
import recurrent_reference as recurrent
import reference
from gradients import TOLERANCE, numerical_gradient

from numnorm import rnn

VARIANTS = ["paper", "normalized_cell", "per_gate", "cell_only"]
# In the second, two sequences share a step that others lack, and one takes two steps alone.
LENGTHS = [None, [2, 4, 2, 0, 1]]


def run(x, parameters, h, c, *, grads=None, **options):
    """The states (y, h, c) and, for their slopes, the gradients (dx, dh, dc, parameters)."""
    if grads is None:
        return rnn.lstm(x, parameters, h, c, **options), None
    *states, saved = rnn.lstm_forward(x, parameters, h, c, **options)
    return states, rnn.lstm_backward(grads[0], saved, *grads[1:])


def problem(variant, *, time=4, batch=5, inputs=4, hidden=3, dtype=np.float64, seed=0):
    """Parameters, input and states of a small LSTM, none of them special."""
    rng = np.random.default_rng(seed)
    parameters = rnn.lstm_init(inputs, hidden, rng=rng, variant=variant, dtype=dtype)
    parameters = rnn.LSTMParameters(
        *(
            p if p is None else (p + rng.normal(size=p.shape) * 0.3).astype(dtype)
            for p in parameters
        )
    )
    x = rng.normal(size=(time, batch, inputs)).astype(dtype)
    h, c = (rng.normal(size=(batch, hidden)).astype(dtype) for _ in range(2))
    return parameters, x, h, c


def some_statistics(variant, steps, hidden=3, dtype=np.float64):
    """Running statistics, none of them special."""
    rng = np.random.default_rng(3)
    fresh = rnn.lstm_statistics_init(steps, hidden, variant=variant, dtype=dtype)
    return rnn.LSTMStatistics(
        *(s if s is None else (s + rng.uniform(0, 0.5, s.shape)).astype(dtype) for s in fresh)
    )


def copied(statistics):
    return rnn.LSTMStatistics(*(None if s is None else s.copy() for s in statistics))


def by_place(statistics):
    pairs = zip(statistics[::2], statistics[1::2], strict=True)
    return {place: pair for place, pair in zip("xhc", pairs, strict=True) if pair[0] is not None}


def exact(parameters):
    return {
        name: None if p is None else np.array(p, np.longdouble)
        for name, p in parameters._asdict().items()
    }


def by_definition(norm, variant, parameters, x, h, c, **options):
    arrays = (np.array(a, np.longdouble) for a in (x, h, c))
    return recurrent.batch_lstm(norm, variant, exact(parameters), *arrays, **options)


def largest_difference(left, right):
    return max(float(np.abs(a - b).max(initial=0)) for a, b in zip(left, right, strict=True))


def norms(variant, running):
    """A norm as it is given to the LSTM and as the definition has it."""
    if not running:
        return "batch", recurrent.BatchNorm(1e-5)
    statistics = some_statistics(variant, steps=3)
    norm = rnn.RecurrentBatchNorm(statistics, training=False)
    return norm, recurrent.BatchNorm(1e-5, by_place(statistics))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("running", [False, True], ids=["batch", "running"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_definition(variant, running, reverse, lengths):
    parameters, x, h, c = problem(variant)
    options = {"lengths": lengths, "reverse": reverse}
    norm, definition = norms(variant, running)
    expected = by_definition(definition, variant, parameters, x, h, c, **options)
    found, _ = run(x, parameters, h, c, norm=norm, variant=variant, **options)
    # States are of size 1; four steps of sums of a dozen products add a few dozen roundings.
    assert largest_difference(found, expected) < 1e-14
    zeros = [np.zeros_like(a) for a in found]
    saving, _ = run(x, parameters, h, c, norm=norm, variant=variant, grads=zeros, **options)
    assert all(np.array_equal(a, b) for a, b in zip(found, saving, strict=True))


@pytest.mark.parametrize(
    ("running", "lengths", "reverse"),
    [
        (False, None, False),
        (False, [2, 3, 2, 0, 1], True),
        (False, [2, 4, 2, 0, 1], False),
        (True, [2, 4, 2, 0, 1], False),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients(variant, running, reverse, lengths):
    options = {"lengths": lengths, "reverse": reverse}
    parameters, x, h, c = problem(variant, inputs=2)
    norm, definition = norms(variant, running)
    rng = np.random.default_rng(5)
    grads = [rng.normal(size=shape) for shape in ((4, 5, 3), h.shape, c.shape)]
    _, found = run(x, parameters, h, c, norm=norm, variant=variant, grads=grads, **options)
    arrays = [np.array(a, np.longdouble) for a in (x, h, c)]
    weights = exact(parameters)

    def loss():
        states = recurrent.batch_lstm(definition, variant, weights, *arrays, **options)
        return sum(np.sum(a * b) for a, b in zip(states, grads, strict=True))

    def check(gradient, array):
        expected = numerical_gradient(loss, array)
        # Of up to 100 terms of size 1, through 4 steps.
        assert np.abs(gradient - expected).max() < 20 * TOLERANCE * max(1, np.abs(expected).max())

    for gradient, array in zip(found[:3], arrays, strict=True):
        check(gradient, array)
    for name, array in weights.items():
        gradient = getattr(found[3], name)
        assert (gradient is None) == (array is None)
        if array is not None:
            check(gradient, array)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.3, "unbiased": False},
        {"convention": "keras", "momentum": 0.9},
        {"first_step": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("variant", ["paper", "per_gate"])
def test_running_statistics(variant, lengths, options):
    parameters, x, h, c = problem(variant)
    before = some_statistics(variant, steps=3)
    statistics = copied(before)
    norm = rnn.RecurrentBatchNorm(statistics, **options)
    found, _ = run(x, parameters, h, c, norm=norm, variant=variant, lengths=lengths)
    alike, _ = run(x, parameters, h, c, norm="batch", variant=variant, lengths=lengths)
    assert all(np.array_equal(a, b) for a, b in zip(found, alike, strict=True))

    definition = recurrent.BatchNorm(1e-5)
    by_definition(definition, variant, parameters, x, h, c, lengths=lengths)
    convention = options.get("convention", "torch")
    kept = reference.kept_share(convention, options.get("momentum", 0.1))
    ddof = int(options.get("unbiased", convention == "torch"))
    after = by_place(statistics)
    for place, (mean, variance) in by_place(before).items():
        expected = [np.array(mean, np.longdouble), np.array(variance, np.longdouble)]
        for t in range(4):
            row = t + options.get("first_step", 0)
            seen = definition.seen[t, place]
            if row < 3 and len(seen) > 1:
                moved = reference.running_statistics(seen, mean[row], variance[row], kept, ddof)
                expected[0][row], expected[1][row] = moved
        # As the states: the values that the statistics are of have their roundings.
        assert largest_difference(after[place], expected) < 1e-14


def test_statistics_of_a_step_that_one_sequence_takes_stay():
    parameters, x, h, c = problem("paper")
    before = some_statistics("paper", steps=4)
    statistics = copied(before)
    norm = rnn.RecurrentBatchNorm(statistics)
    run(x, parameters, h, c, norm=norm, variant="paper", lengths=[2, 4, 2, 0, 1])
    for old, new in zip(before, statistics, strict=True):
        assert (old[:2] != new[:2]).all()
        np.testing.assert_array_equal(old[2:], new[2:])


def test_beyond_the_last_step_the_last_statistics_are_used():
    parameters, x, h, c = problem("paper", time=6)
    short = some_statistics("paper", steps=2)
    repeated = rnn.LSTMStatistics(*(s[[0, 1, 1, 1, 1, 1]] for s in short))
    found = [
        run(x, parameters, h, c, variant="paper", norm=rnn.RecurrentBatchNorm(s, training=False))
        for s in (short, repeated)
    ]
    assert all(np.array_equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


# More rows than a tile of a product has, and wider than a register.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", ["paper", "cell_only"])
def test_in_inference_each_sequence_alone_gives_the_same_bytes(variant, dtype):
    lengths = [3, 6, 1, 6, 4, 0, 6, 2, 5, 6, 3, 3, 6, 6, 1]
    parameters, x, h, c = problem(
        variant, time=6, batch=len(lengths), inputs=19, hidden=21, dtype=dtype
    )
    statistics = some_statistics(variant, 4, 21, np.float32)
    options = {"norm": rnn.RecurrentBatchNorm(statistics, training=False), "variant": variant}
    grads = [np.random.default_rng(1).normal(size=s) for s in ((6, 15, 21), h.shape, c.shape)]
    together = run(x, parameters, h, c, lengths=lengths, grads=grads, **options)
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        cut = [grads[0][:length, one], grads[1][one], grads[2][one]]
        alone = run(x[:length, one], parameters, h[one], c[one], grads=cut, **options)
        for states, gradients in zip(together, alone, strict=True):
            np.testing.assert_array_equal(states[0][:length, one], gradients[0])
            np.testing.assert_array_equal(states[1][one], gradients[1])
            np.testing.assert_array_equal(states[2][one], gradients[2])


def test_in_inference_steps_in_two_calls_give_the_same_bytes():
    parameters, x, h, c = problem("paper", time=6)
    statistics = some_statistics("paper", steps=4)

    def states(steps, h, c, first):
        norm = rnn.RecurrentBatchNorm(statistics, training=False, first_step=first)
        return run(x[steps], parameters, h, c, norm=norm, variant="paper")[0]

    whole = states(slice(None), h, c, 0)
    head = states(slice(3), h, c, 0)
    tail = states(slice(3, None), *head[1:], 3)
    np.testing.assert_array_equal(np.concatenate([head[0], tail[0]]), whole[0])
    np.testing.assert_array_equal(tail[2], whole[2])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 4e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("running", [False, True], ids=["batch", "running"])
def test_narrower_dtypes(running, dtype, tolerance):
    # float32's and float16's own rounding, 6e-8 and 5e-4 of states below 1, and of the input.
    parameters, x, h, c = problem("paper", batch=8, dtype=np.float32)
    x, h, c = (a.astype(dtype) for a in (x, h, c))
    norm, definition = norms("paper", running)
    found, _ = run(x, parameters, h, c, norm=norm, variant="paper")
    assert {a.dtype for a in found} == {np.dtype(dtype)}
    expected = by_definition(definition, "paper", parameters, x, h, c)
    assert largest_difference(found, expected) < tolerance


@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_a_single_sequence_is_normalized_to_0(eps):
    parameters, x, h, c = problem("paper", batch=1)
    grads = [np.ones((4, 1, 3)), np.ones((1, 3)), np.ones((1, 3))]
    states, gradients = run(
        x, parameters, h, c, norm="batch", variant="paper", eps=eps, grads=grads
    )
    changed, _ = run(x + 1, parameters, h, c, norm="batch", variant="paper", eps=eps)
    np.testing.assert_array_equal(states[0], changed[0])
    assert np.isfinite(states[0]).all()
    # A difference of equal numbers of size 1, times 1 / sqrt(eps) in up to four norms of a step.
    assert np.abs(gradients[0]).max() < 1e-11
    assert all(np.isfinite(g).all() for g in (*gradients[1:3], *gradients[3]))


def test_unspoiled_by_what_is_infinite_or_nan():
    parameters, x, h, c = problem("paper")
    norm, _ = norms("paper", running=True)
    expected, _ = run(x, parameters, h, c, norm=norm, variant="paper")
    x[0, 1, 0], x[1, 3, 2] = np.nan, np.inf
    found, _ = run(x, parameters, h, c, norm=norm, variant="paper")
    np.testing.assert_array_equal(found[0][:, [0, 2, 4]], expected[0][:, [0, 2, 4]])
    assert np.isnan(found[0][:, 1]).all()


@pytest.mark.parametrize(("time", "batch"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_do(time, batch):
    parameters, x, h, c = problem("paper", time=time, batch=batch)
    statistics = rnn.lstm_statistics_init(2, 3)
    norm = rnn.RecurrentBatchNorm(statistics)
    grads = [np.zeros((time, batch, 3)), h, c]
    states, gradients = run(x, parameters, h, c, norm=norm, variant="paper", grads=grads)
    np.testing.assert_array_equal(states[1], h)
    np.testing.assert_array_equal(gradients[2], c)
    assert not gradients[3].weight_x.any()
    assert not statistics.mean_c.any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_fresh_statistics(variant):
    statistics = rnn.lstm_statistics_init(2, 3, variant=variant, dtype=np.float64)
    shapes = {"x": (2, 12), "h": (2, 12), "c": (2, 3)}
    names = {"per_gate": "hc", "cell_only": "c"}.get(variant, "xhc")
    assert set(by_place(statistics)) == set(names)
    for place, (mean, variance) in by_place(statistics).items():
        assert mean.shape == variance.shape == shapes[place]
        assert mean.dtype == variance.dtype == np.float64
        assert not mean.any() and (variance == 1).all()


def read_only(array):
    array.flags.writeable = False
    return array


SHARED = np.ones((3, 12))
STATISTICS = {
    "norm.statistics.mean_h must be an array to be updated, got NoneType": {"mean_h": None},
    "norm.statistics.mean_x must have shape (3, 12), that of the steps and units, got (3, 8)": {
        "mean_x": np.zeros((3, 8))
    },
    "norm.statistics.mean_x must have shape (S, 12) with S at least 1, got (0, 12)": {
        "mean_x": np.zeros((0, 12))
    },
    "norm.statistics.var_c must have shape (3, 3), that of the steps and units, got (2, 3)": {
        "var_c": np.ones((2, 3))
    },
    "norm.statistics.mean_c must have a float dtype to be updated, got int64": {
        "mean_c": np.zeros((3, 3), np.int64)
    },
    "norm.statistics.var_h must be writable to be updated, got a read-only array": {
        "var_h": read_only(np.ones((3, 12)))
    },
    "norm.statistics.var_h must not share memory with mean_h, got such an array": {
        "mean_h": SHARED,
        "var_h": SHARED,
    },
}
OPTIONS = {
    "norm.momentum must be between 0 and 1, got 2": {"momentum": 2.0},
    "norm.momentum must be a number, got (1,)": {"momentum": (1,)},
    "norm.momentum must be a number or None, got 'cumulative'": {"momentum": "cumulative"},
    "norm.training must be True or False, got 1": {"training": 1},
    "norm.unbiased must be True or False, got 'no'": {"unbiased": "no"},
    "norm.first_step must be at least 0, got -1": {"first_step": -1},
    "norm.convention must be 'torch' or 'keras', got 'jax'": {"convention": "jax"},
    "norm.statistics must be an LSTMStatistics, got an object of type tuple": {"statistics": ()},
    "x must have at least 2 sequences that have a step to update norm.statistics, got 1": {
        "lengths": [0, 4, 0, 0, 0]
    },
    "norm.statistics.mean_x must be None, as this variant does not use it": {"variant": "per_gate"},
}


@pytest.mark.parametrize("message", [*STATISTICS, *OPTIONS])
def test_errors(message):
    options = dict(OPTIONS.get(message, {}))
    variant, lengths = options.pop("variant", "paper"), options.pop("lengths", None)
    parameters, x, h, c = problem(variant)
    statistics = some_statistics("paper", steps=3)._replace(**STATISTICS.get(message, {}))
    before = [None if s is None else s.copy() for s in statistics]
    norm = rnn.RecurrentBatchNorm(**{"statistics": statistics} | options)
    with pytest.raises((TypeError, ValueError)) as caught:
        run(x, parameters, h, c, norm=norm, variant=variant, lengths=lengths)
    assert str(caught.value) == message
    for old, new in zip(before, statistics, strict=True):
        np.testing.assert_array_equal(old, new)
