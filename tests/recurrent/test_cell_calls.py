"""What the calls of all cells accept: no gradient of y, dropout, sequences without a batch."""

import numpy as np
import pytest
from test_recurrent_cells import BEFORE, GRUS, LSTMS, RNNS, ids, problem

from numnorm import rnn

CELLS = [LSTMS[0], GRUS[0], BEFORE[2], RNNS[0]]
CASES = pytest.mark.parametrize("case", CELLS, ids=ids)


def leaves(value):
    """All arrays of nested tuples, in order."""
    if isinstance(value, tuple | list):
        return [leaf for element in value for leaf in leaves(element)]
    return [] if value is None else [value]


def assert_same(found, expected):
    found, expected = leaves(found), leaves(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)


# A loss of the last states alone


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@CASES
def test_gradients_without_that_of_y(case, dtype):
    parameters, x, states = problem(case, batch=3, dtype=np.float64)
    x, *states = (a.astype(dtype) for a in (x, *states))
    for options in ({}, {"lengths": [2, 0, 4], "reverse": True, "batch_first": True}):
        given = x.swapaxes(0, 1) if options else x
        y, *last, saved = case.call("_forward")(
            given, parameters, *states, **case.options, **options
        )
        grads = [np.ones_like(a) for a in last]
        found = case.call("_backward")(None, saved, *grads)
        assert_same(found, case.call("_backward")(np.zeros_like(y), saved, *grads))
        # The state after the last step is a row of y, too.
        if not options:
            of_y = np.zeros_like(y)
            of_y[-1] = 1
            rest = [None, *grads[1:]]
            assert_same(found, case.call("_backward")(of_y, saved, *rest))


def test_gradients_without_that_of_y_with_batch_norm():
    parameters, x, states = problem(LSTMS[0])
    y, *last, saved = rnn.lstm_forward(x, parameters, *states, norm="batch")
    found = rnn.lstm_backward(None, saved, *last)
    assert_same(found, rnn.lstm_backward(np.zeros_like(y), saved, *last))


def test_gradients_of_a_step_without_that_of_the_state():
    parameters, x, states = problem(LSTMS[0])
    h, c, saved = rnn.lstm_cell_forward(x[0], parameters, *states)
    found = rnn.lstm_cell_backward(None, saved, c)
    assert_same(found, rnn.lstm_cell_backward(np.zeros_like(h), saved, c))


def test_gradients_of_layers_without_that_of_y():
    rng = np.random.default_rng(0)
    layers = [
        (rnn.lstm_init(3, 2, rng=rng), rnn.lstm_init(3, 2, rng=rng)),
        (rnn.gru_init(4, 3, rng=rng), rnn.gru_init(4, 3, rng=rng)),
    ]
    y, states, saved = rnn.stacked_forward(rng.normal(size=(4, 2, 3)), layers, dropout=0.5, rng=rng)
    found = rnn.stacked_backward(None, saved, states)
    assert_same(found, rnn.stacked_backward(np.zeros_like(y), saved, states))


# Dropout of inputs and states


@CASES
def test_one_mask_for_all_steps(case):
    parameters, x, states = problem(case, time=6, batch=40, hidden=24, inputs=16)
    y, *_, saved = case.call("_forward")(
        x, parameters, *states, **case.options, dropout=0.25, rng=np.random.default_rng(0)
    )
    zeros = case.call("_backward")(y, saved).dx == 0
    assert (zeros == zeros[0]).all()
    # 640 draws: a deviation of 0.017.
    assert abs(zeros[0].mean() - 0.25) < 0.07
    kept = np.random.default_rng(0).random((40, 16), np.float32) >= 0.25
    np.testing.assert_array_equal(zeros[0], ~kept)
    expected = case.call()(x * (kept / 0.75), parameters, *states, **case.options)
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@CASES
def test_dropout_of_other_dtypes(case, dtype):
    parameters, x, states = problem(case, batch=5)
    arrays = [a.astype(dtype) for a in (x, *states)]
    found, expected = (
        case.call("_forward")(
            *(arrays[0].astype(kind), parameters, *(a.astype(kind) for a in arrays[1:])),
            **case.options, dropout=0.25, recurrent_dropout=0.5, rng=np.random.default_rng(0),
            lengths=[2, 0, 4, 1, 3],
        )
        for kind in (dtype, np.float64)
    )  # fmt: skip
    back, exact = (case.call("_backward")(a.y, a.saved) for a in (found, expected))
    # float16 rounds the results, float32 a few dozen products and their sums.
    tolerance = 1e-3 if dtype == np.float16 else 1e-5
    for one, other in zip(
        leaves((found[:-1], back[:-1])), leaves((expected[:-1], exact[:-1])), strict=True
    ):
        assert one.dtype == dtype
        assert np.abs(one - other).max() < tolerance * max(1, np.abs(other).max())


@CASES
def test_dropout_in_steps_is_that_of_generators_in_the_same_state(case):
    parameters, x, states = problem(case, batch=9, hidden=11)
    options = {**case.options, "dropout": 0.25, "recurrent_dropout": 0.5}
    packed = case.call("_pack")(parameters, dtype=x.dtype, **case.options)
    whole = case.call()(x, parameters, *states, **options, rng=np.random.default_rng(0))
    now = states
    for t in range(x.shape[0]):
        now = case.call("_cell")(x[t], packed, *now, **options, rng=np.random.default_rng(0))
        now = now if case.states > 1 else (now,)
        np.testing.assert_array_equal(now[0], whole[0][t])
    assert_same(now, whole[1:])


def test_dropout_of_inputs_with_batch_norm():
    parameters, x, states = problem(LSTMS[0])
    options = {"norm": "batch", "dropout": 0.5}
    y, h, c, saved = rnn.lstm_forward(
        x, parameters, *states, **options, rng=np.random.default_rng(0)
    )
    kept = np.random.default_rng(0).random(x.shape[1:], np.float32) >= 0.5
    expected = rnn.lstm_forward(2 * kept * x, parameters, *states, norm="batch")
    assert_same((y, h, c), expected[:-1])
    back, exact = rnn.lstm_backward(y, saved), rnn.lstm_backward(y, expected.saved)
    assert_same(back.dx, 2 * kept * exact.dx)
    assert_same(back[1:], exact[1:])
    with pytest.raises(ValueError, match=r"^recurrent_dropout must be 0 with batch norm$"):
        rnn.lstm(x, parameters, norm="batch", recurrent_dropout=0.5, rng=np.random.default_rng(0))


def test_dropout_of_states_in_layers():
    rng = np.random.default_rng(0)
    layers = [rnn.gru_init(3, 2, rng=rng), rnn.gru_init(2, 4, rng=rng)]
    x = rng.normal(size=(5, 3, 3))
    y, _, saved = rnn.stacked_forward(
        x, layers, recurrent_dropout=0.5, rng=np.random.default_rng(1)
    )
    seeds, cells, below = np.random.default_rng(1), [], x
    for layer in layers:
        spawned = np.random.default_rng(seeds.integers(2**63))
        cells.append(rnn.gru_forward(below, layer, recurrent_dropout=0.5, rng=spawned))
        below = cells[-1].y
    assert_same(y, below)
    above = rnn.gru_backward(y, cells[1].saved)
    assert_same(rnn.stacked_backward(y, saved).dx, rnn.gru_backward(above.dx, cells[0].saved).dx)


@pytest.mark.parametrize("name", ["dropout", "recurrent_dropout"])
@CASES
def test_errors_of_dropout(case, name):
    parameters, x, _ = problem(case)
    rng = np.random.default_rng(0)
    messages = {
        f"rng must be a numpy.random.Generator if {name} is not 0, got None": (0.5, None),
        f"{name} must be at least 0 and less than 1, got 1": (1, rng),
        f"{name} must be at least 0 and less than 1, got -0.5": (-0.5, rng),
        f"{name} must be a number, got 'a'": ("a", rng),
        "rng must be a numpy.random.Generator, got int": (0.5, 3),
    }
    for message, (probability, generator) in messages.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            case.call()(x, parameters, **case.options, **{name: probability}, rng=generator)
        assert str(caught.value) == message


# One sequence without a batch


@pytest.mark.parametrize("options", [{}, {"reverse": True, "batch_first": True}], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@CASES
def test_a_sequence_without_a_batch(case, dtype, options):
    parameters, x, states = problem(case, batch=1)
    x, *states = (a.astype(dtype) for a in (x, *states))
    rng = np.random.default_rng(1)
    drawn = [{**options, "zoneout": 0.3, "rng": np.random.default_rng(2)} for _ in range(3)]
    one = [s[0] for s in states]
    given = x.swapaxes(0, 1) if options else x
    expected = case.call("_forward")(given, parameters, *states, **case.options, **drawn[0])
    found = case.call("_forward")(x[:, 0], parameters, *one, **case.options, **drawn[1])
    of_batch = [expected.y[0] if options else expected.y[:, 0], *(s[0] for s in expected[1:-1])]
    assert_same(found[:-1], of_batch)
    assert_same(case.call()(x[:, 0], parameters, *one, **case.options, **drawn[2]), of_batch)
    dy, *grads = (rng.normal(size=a.shape).astype(dtype) for a in expected[:-1])
    back = case.call("_backward")(dy, expected.saved, *grads)
    one = case.call("_backward")(
        dy[0] if options else dy[:, 0], found.saved, *(g[0] for g in grads)
    )
    assert_same(one.dx, back.dx[0] if options else back.dx[:, 0])
    assert_same(one[1:-1], [g[0] for g in back[1:-1]])
    assert_same(one.parameters, back.parameters)
    empty = case.call()(x[:0, 0], parameters, *(s[0] for s in states), **case.options)
    assert_same(empty, (np.zeros((0, 6), dtype), *(s[0] for s in states)))


@CASES
def test_a_step_without_a_batch(case):
    parameters, x, states = problem(case, batch=1)
    one = [s[0] for s in states]
    *expected, kept = case.call("_cell_forward")(x[0], parameters, *states, **case.options)
    *found, saved = case.call("_cell_forward")(x[0, 0], parameters, *one, **case.options)
    assert_same(found, [a[0] for a in expected])
    assert_same(leaves(case.call("_cell")(x[0, 0], parameters, *one, **case.options)), found)
    back = case.call("_cell_backward")(expected[0], kept, *expected[1:])
    gradients = case.call("_cell_backward")(found[0], saved, *found[1:])
    assert_same(gradients[:-1], [a[0] for a in back[:-1]])
    assert_same(gradients.parameters, back.parameters)


def test_layers_without_a_batch():
    rng = np.random.default_rng(0)
    layers = [
        (rnn.lstm_init(3, 2, rng=rng), rnn.lstm_init(3, 2, rng=rng)),
        rnn.gru_init(4, 3, rng=rng),
    ]
    x = rng.normal(size=(5, 1, 3))
    results = []
    for given in (x, x[:, 0]):
        options = {"dropout": 0.5, "rng": np.random.default_rng(1), "batch_first": False}
        y, states, saved = rnn.stacked_forward(given, layers, lengths=[4], **options)
        back = rnn.stacked_backward(y, saved, states)
        results.append([y, *leaves(states), back.dx, *leaves(back.states), *leaves(back.layers)])
    batch, one = results
    assert one[0].shape == (5, 3)
    assert_same([a.squeeze() for a in one], [a.squeeze() for a in batch])


@CASES
def test_shapes_beside_a_sequence_without_a_batch(case):
    parameters, x, states = problem(case, batch=1)
    with pytest.raises(ValueError, match=r"h must have shape \(6,\), that of the units, got"):
        case.call()(x[:, 0], parameters, *states, **case.options)
    y, *_, saved = case.call("_forward")(x[:, 0], parameters, **case.options)
    with pytest.raises(ValueError, match=r"dy must have shape \(4, 6\)"):
        case.call("_backward")(y[:, None], saved)
    with pytest.raises(ValueError, match=r"x must have 3 axes, .* or 2 without the batch, got 1"):
        case.call()(x[0, 0], parameters, **case.options)
    with pytest.raises(ValueError, match=r"x must have 2 axes, .* or 1 without the batch, got 3"):
        case.call("_cell")(x, parameters, **case.options)
