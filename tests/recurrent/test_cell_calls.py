"""What the calls of all cells accept: no gradient of y, and sequences without a batch."""

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
