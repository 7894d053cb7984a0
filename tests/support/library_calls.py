"""Calls of every function, on arrays that `make` makes of NumPy arrays: of any library.

The results must be arrays of the library of x, with the bytes that NumPy arrays give.
"""

import functools

import numpy as np
from norm_cases import FEW, NORMS
from norm_checks import draw_all

import numnorm
from numnorm import rnn
from numnorm.rnn.cells import CELLS

F32, F64 = np.float32, np.float64


def draw(*shape, dtype=F32, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, shape).astype(dtype)


def norm(name, make):
    """The three functions of a norm."""
    case = NORMS[name]
    arrays = [None if a is None else make(a) for a in draw_all(case, F32, "both")]
    x, dy, *parameters = arrays
    y, *saved = case.forward(x, *parameters)
    return case.plain(x, *parameters), y, *saved, case.backward(dy, x, saved, *parameters[:1])


def broadcast_gain(make):
    """A gain for each row."""
    x, dy, gamma = make(draw(4, 9)), make(draw(4, 9, seed=1)), make(draw(4, 1, seed=2))
    y, mean, rstd = numnorm.layer_norm_forward(x, gamma)
    return y, numnorm.layer_norm_backward(dy, x, mean, rstd, gamma)


def frozen(name, shape, make):
    """A norm in inference, whose running statistics are only read."""
    x, dy, mean = make(draw(*shape)), make(draw(*shape, seed=1)), make(draw(shape[1], seed=2))
    running = {"running_mean": mean, "running_var": make(draw(shape[1], seed=3) ** 2)}
    y, *saved = getattr(numnorm, f"{name}_forward")(x, **running, training=False)
    backward = getattr(numnorm, f"{name}_backward")
    return y, *saved, backward(dy, x, *saved, training=False)


def two_channel_axes(make):
    x, dy = make(draw(6, 5, 3)), make(draw(6, 5, 3, seed=1))
    gamma = make(draw(6, 3, seed=2))
    y, mean, rstd = numnorm.batch_norm_forward(x, gamma, gamma, channel_axis=(0, 2))
    gradients = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, channel_axis=(0, 2))
    return y, mean, rstd, gradients


def moments(make, channel_axis=1):
    """The moments of chunks and what is computed from them."""
    chunks = make(draw(6, 5, 3)), make(draw(6, 5, 3, seed=1))
    one, other = (numnorm.batch_moments(x, channel_axis=channel_axis) for x in chunks)
    both = numnorm.batch_moments(chunks[1], channel_axis=channel_axis, after=one)
    return one[1:], both[1:], one.merge(other)[1:], both.var(ddof=1), both.std()


def moving(name, number, make):
    """The four functions of a norm along an axis."""
    x, dy = make(draw(2, 12, 3, dtype=F64)), make(draw(2, 12, 3, dtype=F64, seed=1))
    plain, forward, backward, step = (
        getattr(numnorm, f"{name}{suffix}") for suffix in ("", "_forward", "_backward", "_step")
    )
    y, mean, rstd = forward(x, number, axis=1)
    first, state = step(x, number, axis=1)
    again = step(x, number, state, axis=1)[0]
    return (
        plain(x, number, axis=1),
        y,
        mean,
        rstd,
        first,
        again,
        backward(dy, x, mean, rstd, number, axis=1),
    )


def parameters_of(cell, make, dtype):
    initial = cell.init(3, 4, rng=np.random.default_rng(0), dtype=dtype)
    return type(initial)(*(make(array) for array in initial))


def sequences(name, dtype, shape, make, **options):
    """Both passes of a cell over sequences."""
    cell = CELLS[name]
    x, parameters = make(draw(*shape, dtype=dtype)), parameters_of(cell, make, dtype)
    *states, saved = cell.forward(x, parameters, **options)
    dy = make(draw(*states[0].shape, dtype=dtype, seed=1))
    gradients = cell.backward(dy, saved)
    return cell.call(x, parameters, **options), states, gradients


def steps(name, dtype, make):
    """Both passes of one step of a cell, and steps with packed parameters."""
    cell = CELLS[name]
    x, parameters = make(draw(2, 3, dtype=dtype)), parameters_of(cell, make, dtype)
    states = [make(draw(2, 4, dtype=dtype, seed=i)) for i in range(len(cell.kind.states))]
    packed = cell.pack(parameters, dtype=dtype)
    taken = [cell.step(x, packed, *states) for _ in range(3)]
    *last, saved = cell.step_forward(x, parameters, *states)
    return taken, last, cell.step_backward(states[0], saved, *states[1:])


def stacked(make):
    """Two layers, the first of both directions, with dropout."""
    rng = np.random.default_rng(0)
    layers = [(rnn.lstm_init(3, 4, rng=rng), rnn.lstm_init(3, 4, rng=rng))]
    layers.append(rnn.lstm_init(8, 4, rng=rng))
    options = {"dropout": 0.5, "batch_first": True, "lengths": [5, 2], "rng": rng}
    y, states, saved = rnn.stacked_forward(make(draw(2, 5, 3)), layers, **options)
    return y, states, rnn.stacked_backward(make(draw(2, 5, 4, seed=1)), saved)


def batch_lstm(make):
    """An LSTM with batch norm in inference."""
    given = rnn.LSTMStatistics(*(make(array) for array in rnn.lstm_statistics_init(5, 4)))
    parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0), norm="batch")
    norm = rnn.RecurrentBatchNorm(given, training=False)
    return rnn.lstm(make(draw(5, 2, 3)), parameters, norm=norm)


CALLS = {
    **{name: functools.partial(norm, name) for name in FEW},
    "standard-normal-variate": lambda make: numnorm.standard_normal_variate(make(draw(4, 9))),
    "gain-of-rows": broadcast_gain,
    "batch-frozen": functools.partial(frozen, "batch_norm", (6, 5)),
    "instance-frozen": functools.partial(frozen, "instance_norm", (6, 5, 4)),
    "batch-two-axes": two_channel_axes,
    "empty": lambda make: numnorm.layer_norm_forward(make(draw(0, 9))),
    "empty-rows": lambda make: numnorm.batch_norm_forward(make(draw(0, 5))),
    "moments": moments,
    "moments-two-axes": functools.partial(moments, channel_axis=(0, 2)),
    "moving": functools.partial(moving, "moving_norm", 4),
    "exponential": functools.partial(moving, "exponential_norm", 0.2),
    # Cells and dtypes whose kernels the tests of the cells compile by default.
    "lstm": functools.partial(sequences, "lstm", F32, (5, 2, 3), lengths=[3, 5]),
    "lstm-batch-first": functools.partial(sequences, "lstm", F32, (2, 5, 3), batch_first=True),
    "lstm-one-sequence": functools.partial(sequences, "lstm", F32, (5, 3)),
    "gru": functools.partial(sequences, "gru", F64, (5, 2, 3)),
    "rnn": functools.partial(sequences, "rnn", F64, (5, 2, 3), reverse=True),
    "lstm-steps": functools.partial(steps, "lstm", F32),
    "gru-steps": functools.partial(steps, "gru", F64),
    "rnn-steps": functools.partial(steps, "rnn", F64),
    "stacked": stacked,
    "batch-lstm": batch_lstm,
}


def leaves(results):
    """All arrays of nested tuples and lists, in order."""
    if isinstance(results, tuple | list):
        return [leaf for each in results for leaf in leaves(each)]
    return [results]


def check_call(call, make, kind, as_numpy):
    """Check that a call's results are of a kind, and the bytes of NumPy's."""
    for mine, expected in zip(leaves(call(make)), leaves(call(np.array)), strict=True):
        assert type(mine) is kind
        array = as_numpy(mine)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes()
