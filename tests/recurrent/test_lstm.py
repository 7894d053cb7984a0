"""LSTM: the definition, its gradients, and that rows, steps and threads change no bit."""

import kernels
import numba
import numpy as np
import pytest
import recurrent_reference as recurrent
from every_call import COMPILED
from gradients import STEP, TOLERANCE, numerical_gradient

from numnorm import rnn

NORMS = ["layer", "rms", "ada", None]
VARIANTS = ["paper", "normalized_cell", "per_gate", "cell_only"]
SOME_SPECS = [("layer", "paper"), ("rms", "per_gate"), (None, "paper")]
SPECS = [(norm, variant) for norm in NORMS for variant in VARIANTS if norm or variant == "paper"]
if COMPILED:
    SPECS = kernels.LSTMS


def problem(norm, variant, *, time=4, batch=3, inputs=5, hidden=6, dtype=np.float64, seed=0):
    """Parameters, input and states of a small LSTM, none of them special."""
    rng = np.random.default_rng(seed)
    parameters = rnn.lstm_init(inputs, hidden, rng=rng, norm=norm, variant=variant, dtype=dtype)
    parameters = rnn.LSTMParameters(
        *(
            p if p is None else (p + rng.normal(size=p.shape) * 0.3).astype(dtype)
            for p in parameters
        )
    )
    x = rng.normal(size=(time, batch, inputs)).astype(dtype)
    h, c = (rng.normal(size=(batch, hidden)).astype(dtype) for _ in range(2))
    return parameters, x, h, c


def by_definition(norm, variant, parameters, x, h, c, **options):
    exact = {
        name: None if p is None else np.array(p, np.longdouble)
        for name, p in parameters._asdict().items()
    }
    arrays = (np.array(a, np.longdouble) for a in (x, h, c))
    return recurrent.lstm(recurrent.Norm(norm, 1e-5), variant, exact, *arrays, **options)


def largest_difference(left, right):
    return max(float(np.abs(a - b).max(initial=0)) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("lengths", [None, [2, 4, 1], [0, 3, 3]], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("norm", "variant"), SPECS)
def test_definition(norm, variant, reverse, lengths):
    parameters, x, h, c = problem(norm, variant)
    options = {"lengths": lengths, "reverse": reverse}
    expected = by_definition(norm, variant, parameters, x, h, c, **options)
    found = rnn.lstm(x, parameters, h, c, norm=norm, variant=variant, **options)
    # States are of size 1; four steps of sums of a dozen products add a few dozen roundings.
    assert largest_difference(found, expected) < 1e-14
    saving = rnn.lstm_forward(x, parameters, h, c, norm=norm, variant=variant, **options)
    assert all(np.array_equal(a, b) for a, b in zip(found, saving[:3], strict=True))


# Wider than lanes, and no multiple of them; of lanes and a few; one.
@pytest.mark.parametrize("hidden", [1, 7, 16, 33, 50])
@pytest.mark.parametrize("batch", [1, 5, 17, 30])
@pytest.mark.parametrize(
    ("norm", "variant"), [("layer", "paper"), ("rms", "per_gate"), (None, "paper")]
)
def test_definition_at_any_size(norm, variant, batch, hidden):
    parameters, x, h, c = problem(norm, variant, time=3, batch=batch, inputs=9, hidden=hidden)
    expected = by_definition(norm, variant, parameters, x, h, c)
    # A layer norm of one element is 0 and its slope 1 / sqrt(eps): roundings grow by 300.
    tolerance = 1e-13 if hidden > 1 else 1e-11
    assert (
        largest_difference(rnn.lstm(x, parameters, h, c, norm=norm, variant=variant), expected)
        < tolerance
    )


@pytest.mark.parametrize(
    ("norm", "variant", "dtype"), kernels.lstms(SOME_SPECS, [np.float32, np.float16])
)
def test_narrower_dtypes(norm, variant, dtype):
    tolerance = 4e-6 if dtype == np.float32 else 2e-3
    # float32's and float16's own rounding, 6e-8 and 5e-4 of states below 1, and of the input.
    parameters, x, h, c = problem(norm, variant, inputs=20, hidden=24, dtype=np.float32)
    x, h, c = (a.astype(dtype) for a in (x, h, c))
    found = rnn.lstm(x, parameters, h, c, norm=norm, variant=variant)
    assert {a.dtype for a in found} == {np.dtype(dtype)}
    assert largest_difference(found, by_definition(norm, variant, parameters, x, h, c)) < tolerance


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("norm", "variant"), SPECS)
def test_gradients(norm, variant, reverse, lengths):
    options = {"lengths": lengths, "reverse": reverse}
    parameters, x, h, c = problem(norm, variant, time=3, inputs=2, hidden=3)
    rng = np.random.default_rng(5)
    y, _, _, saved = rnn.lstm_forward(x, parameters, h, c, norm=norm, variant=variant, **options)
    dy, dh, dc = rng.normal(size=y.shape), rng.normal(size=h.shape), rng.normal(size=c.shape)
    found = rnn.lstm_backward(dy, saved, dh, dc)

    exact = {
        name: None if p is None else np.array(p, np.longdouble)
        for name, p in parameters._asdict().items()
    }
    x, h, c = (np.array(a, np.longdouble) for a in (x, h, c))
    definition = recurrent.Norm(norm, 1e-5)
    recurrent.lstm(definition, variant, exact, x, h, c, **options)

    def loss():
        definition.rerun()
        states = recurrent.lstm(definition, variant, exact, x, h, c, **options)
        return sum(np.sum(a * b) for a, b in zip(states, (dy, dh, dc), strict=True))

    def check(gradient, array):
        expected = numerical_gradient(loss, array)
        # Of up to 50 terms of size 1, through 3 steps.
        assert np.abs(gradient - expected).max() < 20 * TOLERANCE * max(1, np.abs(expected).max())

    for gradient, array in zip(found[:3], (x, h, c), strict=True):
        check(gradient, array)
    for name, array in exact.items():
        gradient = getattr(found.parameters, name)
        assert (gradient is None) == (array is None)
        if array is not None:
            check(gradient, array)


@pytest.mark.parametrize("hidden", [8, 21])
@pytest.mark.parametrize(("norm", "variant"), SOME_SPECS)
def test_gradients_of_wider_cells(norm, variant, hidden):
    # Along one direction for all arrays at once: each alone is in `test_gradients`.
    parameters, *arrays = problem(norm, variant, time=3, batch=6, inputs=9, hidden=hidden)
    rng = np.random.default_rng(6)
    y, h, c, saved = rnn.lstm_forward(
        arrays[0], parameters, *arrays[1:], norm=norm, variant=variant
    )
    grads = [rng.normal(size=a.shape) for a in (y, h, c)]
    found = rnn.lstm_backward(grads[0], saved, *grads[1:])
    values = [*arrays, *(p for p in parameters if p is not None)]
    gradients = [*found[:3], *(p for p in found.parameters if p is not None)]
    directions = [rng.normal(size=value.shape) for value in values]

    def loss(step):
        moved = [
            np.array(v, np.longdouble) + step * d for v, d in zip(values, directions, strict=True)
        ]
        rest = iter(moved[3:])
        there = rnn.LSTMParameters(*(p if p is None else next(rest) for p in parameters))
        states = by_definition(norm, variant, there, *moved[:3])
        return sum(np.sum(a * b) for a, b in zip(states, grads, strict=True))

    expected = (loss(STEP) - loss(-STEP)) / (2 * STEP)
    along = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    # Hundreds of terms of size 1.
    assert abs(along - expected) < 1000 * TOLERANCE * max(1, abs(expected))


@pytest.mark.parametrize(
    ("norm", "variant", "dtype"), kernels.lstms(SOME_SPECS, [np.float32, np.float64])
)
def test_each_sequence_alone_gives_the_same_bytes(norm, variant, dtype):
    lengths = [3, 9, 1, 9, 4, 0, 7, 2, 5, 6, 8, 3, 9, 9, 1]
    parameters, x, h, c = problem(
        norm, variant, time=9, batch=len(lengths), inputs=19, hidden=21, dtype=dtype
    )
    options = {"norm": norm, "variant": variant}
    together = rnn.lstm_forward(x, parameters, h, c, lengths=lengths, **options)
    dy = np.random.default_rng(1).normal(size=together.y.shape).astype(dtype)
    gradients = rnn.lstm_backward(dy, together.saved)
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        alone = rnn.lstm_forward(x[:length, one], parameters, h[one], c[one], **options)
        np.testing.assert_array_equal(together.y[:length, one], alone.y)
        assert not together.y[length:, b].any()
        np.testing.assert_array_equal(together.h[one], alone.h)
        np.testing.assert_array_equal(together.c[one], alone.c)
        back = rnn.lstm_backward(dy[:length, one], alone.saved)
        np.testing.assert_array_equal(gradients.dx[:length, one], back.dx)
        np.testing.assert_array_equal(gradients.dh[one], back.dh)
        np.testing.assert_array_equal(gradients.dc[one], back.dc)


@pytest.mark.parametrize(
    ("norm", "variant", "dtype"), kernels.lstms(SOME_SPECS, [np.float32, np.float64])
)
def test_step_by_step_gives_the_same_bytes(norm, variant, dtype):
    parameters, x, h, c = problem(norm, variant, batch=13, inputs=19, hidden=21, dtype=dtype)
    options = {"norm": norm, "variant": variant}
    y, last_h, last_c = rnn.lstm(x, parameters, h, c, **options)
    for t in range(x.shape[0]):
        step, h, c = rnn.lstm(x[t : t + 1], parameters, h, c, **options)
        np.testing.assert_array_equal(step[0], y[t])
    np.testing.assert_array_equal(h, last_h)
    np.testing.assert_array_equal(c, last_c)


@pytest.mark.parametrize(("norm", "variant", "dtype"), kernels.lstms(SOME_SPECS, [np.float32]))
@pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_threads_give_the_same_bytes(norm, variant, dtype):
    parameters, x, h, c = problem(
        norm, variant, time=20, batch=24, inputs=40, hidden=64, dtype=dtype
    )
    results = []
    before = numba.get_num_threads()
    for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        y, *last, saved = rnn.lstm_forward(x, parameters, h, c, norm=norm, variant=variant)
        gradients = rnn.lstm_backward(y, saved, *last)
        arrays = [y, *last, *gradients[:3], *(p for p in gradients.parameters if p is not None)]
        results.append([a.tobytes() for a in arrays])
    numba.set_num_threads(before)
    assert results[0] == results[1]


def test_batch_first():
    parameters, x, h, c = problem("layer", "paper")
    expected = rnn.lstm_forward(x, parameters, h, c)
    found = rnn.lstm_forward(x.swapaxes(0, 1), parameters, h, c, batch_first=True)
    np.testing.assert_array_equal(found.y, expected.y.swapaxes(0, 1))
    dx = rnn.lstm_backward(expected.y, expected.saved).dx
    np.testing.assert_array_equal(rnn.lstm_backward(found.y, found.saved).dx, dx.swapaxes(0, 1))


def test_backward_pass_may_be_taken_twice():
    parameters, x, h, c = problem("layer", "paper")
    y, _, _, saved = rnn.lstm_forward(x, parameters, h, c)
    first, second = rnn.lstm_backward(y, saved), rnn.lstm_backward(y, saved)
    np.testing.assert_array_equal(first.dx, second.dx)
    np.testing.assert_array_equal(first.parameters.weight_h, second.parameters.weight_h)


def test_gains_and_biases_that_are_missing_are_1_and_0():
    parameters, x, h, c = problem("layer", "paper")
    bare = rnn.LSTMParameters(parameters.weight_x, parameters.weight_h)
    ones, zeros = np.ones(24), np.zeros(24)
    full = rnn.LSTMParameters(*bare[:2], zeros, ones, zeros, ones, zeros, ones[:6], zeros[:6])
    found, expected = rnn.lstm(x, bare, h, c), rnn.lstm(x, full, h, c)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("time", "batch"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_do(time, batch):
    parameters, x, h, c = problem("layer", "paper", time=time, batch=batch)
    y, last_h, last_c, saved = rnn.lstm_forward(x, parameters, h, c)
    assert y.shape == (time, batch, 6)
    np.testing.assert_array_equal(last_h, h)
    np.testing.assert_array_equal(last_c, c)
    gradients = rnn.lstm_backward(y, saved, h, c)
    assert gradients.dx.shape == x.shape
    np.testing.assert_array_equal(gradients.dh, h)
    assert not gradients.parameters.weight_x.any()


MESSAGES = {
    "x must have 3 axes": {"x": np.zeros(5)},
    "lengths must be between 0 and 4, the length of x, got 5": {"lengths": [5, 1, 1]},
    "lengths must be between 0 and 4, the length of x, got -1": {"lengths": [-1, 1, 1]},
    "lengths must be integers, got dtype float64": {"lengths": [1.0, 1.0, 1.0]},
    "lengths must have shape (3,), one for each sequence, got (2,)": {"lengths": [1, 1]},
    "norm must be 'layer', 'rms', 'ada', 'batch' or None, got 'group'": {"norm": "group"},
    "variant must be 'paper', 'normalized_cell', 'per_gate' or 'cell_only', got 'new'": {
        "variant": "new"
    },
    "gamma_x must be None": {"variant": "per_gate"},
    "beta_x must be None": {"norm": "rms"},
    "h must have shape (3, 6)": {"h": np.zeros((3, 5))},
    "weight_x must have shape (24, 4)": {"x": np.zeros((4, 3, 4))},
    "batch_first must be True or False": {"batch_first": 1},
    "eps must be at least 0, got -1": {"eps": -1.0},
    "parameters must be an LSTMParameters": {"parameters": None},
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    parameters, x, h, c = problem("layer", "paper")
    arguments = {"x": x, "parameters": parameters, "h": h, "c": c} | MESSAGES[message]
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.lstm(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
