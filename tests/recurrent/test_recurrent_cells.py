"""GRU, RNN and what all cells share: definitions, gradients, bytes, zoneout, single steps."""

import functools
from typing import Any, NamedTuple

import kernels
import numba
import numpy as np
import pytest
import recurrent_reference as recurrent
from every_call import COMPILED
from gradients import TOLERANCE, numerical_gradient

from numnorm import rnn
from numnorm.backends.cpu.recurrent import cells


class Case(NamedTuple):
    """A cell with its arguments, and the functions of numnorm for it."""

    name: str
    options: dict[str, Any]
    states: int

    def call(self, suffix=""):
        return getattr(rnn, self.name + suffix)

    def step(self, norm, exact):
        """One step by definition."""
        if self.name == "lstm":
            step = functools.partial(recurrent.lstm_step, norm, self.options["variant"], exact)
            return lambda x, h, c, operand=None: step(x, h if operand is None else operand, c)
        if self.name == "gru":
            reset_after = self.options.get("reset_after", True)
            step = functools.partial(recurrent.gru_step, norm, exact)
            return lambda x, h, operand=None: (step(x, h, reset_after, operand),)
        nonlinearity = self.options.get("nonlinearity", "tanh")
        step = functools.partial(recurrent.rnn_step, norm, exact)
        return lambda x, h, operand=None: (
            step(x, h if operand is None else operand, nonlinearity),
        )


NORMS = ["layer", "rms", "ada", None]
GRUS = [Case("gru", {"norm": norm}, 1) for norm in NORMS]
# The reset gate scales the state before the product.
BEFORE = [Case("gru", {"norm": norm, "reset_after": False}, 1) for norm in NORMS]
RNNS = [Case("rnn", {"norm": norm}, 1) for norm in NORMS]
RELU = Case("rnn", {"norm": "layer", "nonlinearity": "relu"}, 1)
LSTMS = [
    Case("lstm", {"norm": norm, "variant": variant}, 2)
    for norm, variant in [("layer", "paper"), ("layer", "normalized_cell"), (None, "paper")]
]
NEW = [*GRUS, *BEFORE, *RNNS, RELU]
if COMPILED:
    NEW = [*(case for case in GRUS if case.options["norm"] in kernels.GRUS)]
    NEW += [*(case for case in RNNS if case.options["norm"] in kernels.RNNS), RELU, BEFORE[0]]
SOME = [GRUS[0], BEFORE[0], RNNS[0]]


def ids(case):
    return "-".join([case.name, *(str(value) for value in case.options.values())])


def problem(case, *, time=4, batch=3, inputs=5, hidden=6, dtype=np.float64, seed=0):
    """Parameters, input and states of a small cell, none of them special."""
    rng = np.random.default_rng(seed)
    options = {k: v for k, v in case.options.items() if k in ("norm", "variant")}
    parameters = case.call("_init")(inputs, hidden, rng=rng, dtype=dtype, **options)
    parameters = type(parameters)(
        *(
            p if p is None else (p + rng.normal(size=p.shape) * 0.3).astype(dtype)
            for p in parameters
        )
    )
    x = rng.normal(size=(time, batch, inputs)).astype(dtype)
    states = [rng.normal(size=(batch, hidden)).astype(dtype) for _ in range(case.states)]
    return parameters, x, states


def as_exact(parameters):
    return {
        name: None if p is None else np.array(p, np.longdouble)
        for name, p in parameters._asdict().items()
    }


def by_definition(case, parameters, x, states, **options):
    norm = recurrent.Norm(case.options["norm"], 1e-5)
    arrays = [np.array(a, np.longdouble) for a in (x, *states)]
    return recurrent.sequences(
        case.step(norm, as_exact(parameters)), arrays[0], arrays[1:], **options
    )


def largest_difference(left, right):
    return max(float(np.abs(a - b).max(initial=0)) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("lengths", [None, [0, 4, 1]], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("case", NEW, ids=ids)
def test_definition(case, reverse, lengths):
    parameters, x, states = problem(case)
    options = {"lengths": lengths, "reverse": reverse}
    expected = by_definition(case, parameters, x, states, **options)
    found = case.call()(x, parameters, *states, **case.options, **options)
    # States are of size 1, of the rectifier's 10; four steps of sums of a dozen products.
    assert largest_difference(found, expected) < 4e-14
    saving = case.call("_forward")(x, parameters, *states, **case.options, **options)
    assert all(np.array_equal(a, b) for a, b in zip(found, saving[:-1], strict=True))


# Wider than lanes, and no multiple of them; of lanes and a few; one.
@pytest.mark.parametrize("hidden", [1, 7, 16, 33])
@pytest.mark.parametrize("batch", [1, 17])
@pytest.mark.parametrize("case", SOME, ids=ids)
def test_definition_at_any_size(case, batch, hidden):
    parameters, x, states = problem(case, time=3, batch=batch, inputs=9, hidden=hidden)
    expected = by_definition(case, parameters, x, states)
    # A layer norm of one element is 0 and its slope 1 / sqrt(eps): roundings grow by 300.
    tolerance = 1e-13 if hidden > 1 else 1e-11
    found = case.call()(x, parameters, *states, **case.options)
    assert largest_difference(found, expected) < tolerance


# Few rows are multiplied by x's weights at once, more step by step.
@pytest.mark.parametrize("batch", [3, 12])
@pytest.mark.parametrize("case", [*SOME, LSTMS[0], LSTMS[2]], ids=ids)
def test_no_features(case, batch):
    parameters, x, states = problem(case, batch=batch, inputs=1, hidden=19)
    empty = x[..., :0], parameters._replace(weight_x=parameters.weight_x[:, :0])
    zeros = np.zeros_like(x), parameters
    left, right = (
        case.call("_forward")(*arguments, *states, **case.options) for arguments in (empty, zeros)
    )
    alone = case.call()(*empty, *states, **case.options)
    for found in (left[:-1], alone):
        assert all(np.array_equal(a, b) for a, b in zip(found, right[:-1], strict=True))
    dy = np.ones_like(left.y)
    gradients = [case.call("_backward")(dy, result.saved) for result in (left, right)]
    for found, expected in zip(*gradients, strict=True):
        if isinstance(found, np.ndarray) and found.shape == expected.shape:
            assert np.array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 4e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("case", SOME, ids=ids)
def test_narrower_dtypes(case, dtype, tolerance):
    # float32's and float16's own rounding, 6e-8 and 5e-4 of states below 1, and of the input.
    parameters, x, states = problem(case, inputs=20, hidden=24, dtype=np.float32)
    x, *states = (a.astype(dtype) for a in (x, *states))
    found = case.call()(x, parameters, *states, **case.options)
    assert {a.dtype for a in found} == {np.dtype(dtype)}
    expected = by_definition(case, parameters, x, states)
    assert largest_difference(found, expected) < tolerance


def check_gradients(case, time, zoneout=0.0, dropout=0.0, recurrent_dropout=0.0, **options):
    """Hold every gradient against a numerical one."""
    parameters, x, states = problem(case, time=time, inputs=2, hidden=3)
    rng, seed = np.random.default_rng(5), 7
    drawn = {"zoneout": zoneout, "dropout": dropout, "recurrent_dropout": recurrent_dropout}
    drawn["rng"] = np.random.default_rng(seed)
    *outputs, saved = case.call("_forward")(
        x, parameters, *states, **case.options, **options, **drawn
    )
    grads = [rng.normal(size=a.shape) for a in outputs]
    found = case.call("_backward")(grads[0], saved, *grads[1:])
    keeps, drops, masks = None, [], np.random.default_rng(seed)
    for probability, width in ((dropout, 2), (recurrent_dropout, 3)):
        factors = np.ones((3, width), np.longdouble)
        if probability:
            kept = masks.random((3, width), np.float32) >= probability
            factors = kept / (1 - np.longdouble(probability))
        drops.append(factors)
    if zoneout:
        drawn = masks.random((x.shape[0], len(states), 3, 3), np.float32)
        keeps = [drawn[:, i] < zoneout for i in range(len(states))]

    exact, definition = as_exact(parameters), recurrent.Norm(case.options["norm"], 1e-5)
    arrays = [np.array(a, np.longdouble) for a in (x, *states)]
    step = case.step(definition, exact)
    expected = recurrent.sequences(step, arrays[0], arrays[1:], keeps, drops, **options)
    assert largest_difference(outputs, expected) < 4e-14  # as in `test_definition`

    def loss():
        definition.rerun()
        new = recurrent.sequences(step, arrays[0], arrays[1:], keeps, drops, **options)
        return sum(np.sum(a * b) for a, b in zip(new, grads, strict=True))

    named = {name: a for name, a in exact.items() if a is not None}
    assert {name for name, g in found.parameters._asdict().items() if g is not None} == set(named)
    gradients = [*found[:-1], *(getattr(found.parameters, name) for name in named)]
    for gradient, array in zip(gradients, [*arrays, *named.values()], strict=True):
        expected = numerical_gradient(loss, array)
        # Of up to 50 terms of size 1, through 3 steps.
        assert np.abs(gradient - expected).max() < 20 * TOLERANCE * max(1, np.abs(expected).max())


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("case", NEW, ids=ids)
def test_gradients(case, reverse, lengths):
    check_gradients(case, 3, lengths=lengths, reverse=reverse)


ZONED = [LSTMS[1], *SOME] if COMPILED else [*LSTMS, *GRUS, *BEFORE, *RNNS, RELU]


@pytest.mark.parametrize("case", ZONED, ids=ids)
def test_zoneout(case):
    check_gradients(case, 3, zoneout=0.4, lengths=[2, 0, 3])


@pytest.mark.parametrize("probabilities", [(0.4, 0.0), (0.0, 0.3), (0.4, 0.3)], ids=str)
@pytest.mark.parametrize("zoneout", [0.0, 0.4])
@pytest.mark.parametrize("case", ZONED, ids=ids)
def test_dropout(case, zoneout, probabilities):
    dropout, recurrent_dropout = probabilities
    check_gradients(
        case, 3, zoneout, dropout, recurrent_dropout, lengths=[2, 0, 3], reverse=zoneout > 0
    )


def test_zoneout_of_the_state_alone():
    case = LSTMS[1]
    parameters, x, states = problem(case)
    found = rnn.lstm(x, parameters, *states, **case.options, zoneout=(0.25, 0.0))
    shares = [np.full((*x.shape[:2], 6), share) for share in (0.25, 0.0)]
    expected = by_definition(case, parameters, x, states, keeps=shares)
    assert largest_difference(found, expected) < 4e-14  # as in `test_definition`


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("case", [LSTMS[1], GRUS[0]], ids=ids)
def test_drawn_zoneout_does_not_depend_on_padding(case, reverse):
    parameters, x, states = problem(case)
    options = {**case.options, "zoneout": 0.4, "lengths": [2, 0, 3], "reverse": reverse}
    found, expected = (
        case.call()(part, parameters, *states, **options, rng=np.random.default_rng(3))
        for part in (x, x[:3])
    )
    assert not found[0][3:].any()
    for a, b in zip((found[0][:3], *found[1:]), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", [LSTMS[1], GRUS[0]], ids=ids)
def test_drawn_zoneout_gives_the_same_bytes_step_by_step_and_in_chunks(case):
    parameters, x, states = problem(case)
    options = {**case.options, "zoneout": (0.4, 0.0) if case.states > 1 else 0.4}
    y, *last = case.call()(x, parameters, *states, **options, rng=np.random.default_rng(3))
    rng, now = np.random.default_rng(3), states
    for t in range(2):
        now = case.call("_cell")(x[t], parameters, *now, **options, rng=rng)
        now = now if case.states > 1 else (now,)
        np.testing.assert_array_equal(now[0], y[t])
    rest, *now = case.call()(x[2:], parameters, *now, **options, rng=rng)
    np.testing.assert_array_equal(rest, y[2:])
    assert all(np.array_equal(a, b) for a, b in zip(now, last, strict=True))


def test_zoneout_keeps_its_share_and_all():
    parameters, x, (h,) = problem(RNNS[0], time=1, batch=50, hidden=200)
    y, _ = rnn.rnn(x, parameters, h, zoneout=0.3, rng=np.random.default_rng(0))
    # 10,000 draws: a deviation of 0.0046.
    assert abs(np.mean(y[0] == h) - 0.3) < 0.02
    y, _ = rnn.rnn(x, parameters, h, zoneout=1.0)
    np.testing.assert_array_equal(y[0], h)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", SOME, ids=ids)
def test_each_sequence_alone_gives_the_same_bytes(case, dtype):
    lengths = [3, 9, 1, 9, 4, 0, 7, 2, 5, 6, 8, 3, 9, 9, 1]
    parameters, x, (h,) = problem(
        case, time=9, batch=len(lengths), inputs=19, hidden=21, dtype=dtype
    )
    together = case.call("_forward")(x, parameters, h, lengths=lengths, **case.options)
    dy = np.random.default_rng(1).normal(size=together.y.shape).astype(dtype)
    gradients = case.call("_backward")(dy, together.saved)
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        alone = case.call("_forward")(x[:length, one], parameters, h[one], **case.options)
        np.testing.assert_array_equal(together.y[:length, one], alone.y)
        assert not together.y[length:, b].any()
        np.testing.assert_array_equal(together.h[one], alone.h)
        back = case.call("_backward")(dy[:length, one], alone.saved)
        np.testing.assert_array_equal(gradients.dx[:length, one], back.dx)
        np.testing.assert_array_equal(gradients.dh[one], back.dh)


@pytest.mark.parametrize("rows", [1, 5, 16, 1000])
@pytest.mark.parametrize("case", [LSTMS[0], *SOME], ids=ids)
def test_gradients_of_the_parameters_are_those_of_all_sequences(case, rows, monkeypatch):
    # In stretches of so many rows: some of them begin with the step in which a sequence is over.
    monkeypatch.setattr(cells, "_CHUNK_ROWS", rows)
    lengths = [3, 9, 1, 9, 4, 0, 7, 2]
    parameters, x, states = problem(case, time=9, batch=len(lengths))
    together = case.call("_forward")(x, parameters, *states, lengths=lengths, **case.options)
    dy = np.random.default_rng(1).normal(size=together.y.shape)
    found = case.call("_backward")(dy, together.saved).parameters
    expected = [np.zeros_like(p) for p in parameters if p is not None]
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        first = [state[one] for state in states]
        alone = case.call("_forward")(x[:length, one], parameters, *first, **case.options)
        gradients = case.call("_backward")(dy[:length, one], alone.saved).parameters
        for total, gradient in zip(expected, [g for g in gradients if g is not None], strict=True):
            total += gradient
    # Sums of 35 rows of float64, in another order.
    for total, gradient in zip(expected, [g for g in found if g is not None], strict=True):
        np.testing.assert_allclose(gradient, total, rtol=0, atol=1e-13 * np.abs(total).max())


@pytest.mark.parametrize("case", [LSTMS[0], *SOME], ids=ids)
def test_single_steps_give_the_same_bytes(case):
    parameters, x, states = problem(case, batch=13, inputs=19, hidden=21)
    packed = case.call("_pack")(parameters, dtype=x.dtype, **case.options)
    y, *last, saved = case.call("_forward")(x, parameters, *states, **case.options)
    grads = np.random.default_rng(2).normal(size=y.shape)
    back = case.call("_backward")(grads, saved)
    steps, now = [], states
    for t in range(x.shape[0]):
        plain = case.call("_cell")(x[t], packed, *now, **case.options)
        *now, saved = case.call("_cell_forward")(x[t], packed, *now, **case.options)
        plain = plain if case.states > 1 else (plain,)
        assert all(np.array_equal(a, b) for a, b in zip(plain, now, strict=True))
        np.testing.assert_array_equal(now[0], y[t])
        steps.append(saved)
    assert all(np.array_equal(a, b) for a, b in zip(now, last, strict=True))
    carried = [np.zeros_like(s) for s in states]
    for t in reversed(range(x.shape[0])):
        dx, *carried, _ = case.call("_cell_backward")(grads[t] + carried[0], steps[t], *carried[1:])
        np.testing.assert_array_equal(dx, back.dx[t])
    np.testing.assert_array_equal(carried[0], back.dh)


@pytest.mark.parametrize("case", SOME, ids=ids)
@pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_threads_give_the_same_bytes(case):
    parameters, x, (h,) = problem(case, time=20, batch=24, inputs=40, hidden=64, dtype=np.float32)
    results = []
    before = numba.get_num_threads()
    for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        y, last, saved = case.call("_forward")(x, parameters, h, **case.options)
        gradients = case.call("_backward")(y, saved, last)
        arrays = [y, last, *gradients[:2], *(p for p in gradients.parameters if p is not None)]
        results.append([a.tobytes() for a in arrays])
    numba.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("case", [LSTMS[0], *SOME], ids=ids)
def test_missing_parameters_are_1_and_0(case):
    parameters, x, states = problem(case)
    full = type(parameters)(
        *parameters[:2],
        *(
            None if p is None else np.full_like(p, 1.0 if name.startswith("gamma") else 0.0)
            for name, p in list(parameters._asdict().items())[2:]
        ),
    )
    found = case.call()(x, type(parameters)(*parameters[:2]), *states, **case.options)
    expected = case.call()(x, full, *states, **case.options)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16])
@pytest.mark.parametrize("case", [LSTMS[0], *SOME], ids=ids)
def test_gradients_of_whole_numbers_are_float64(case, dtype):
    parameters, x, states = problem(case)
    whole = type(parameters)(*(None if p is None else (p > 0).astype(dtype) for p in parameters))
    exact = type(parameters)(*(None if p is None else p.astype(np.float64) for p in whole))
    found, expected = (
        case.call("_backward")(
            np.ones((*x.shape[:2], 6)), case.call("_forward")(x, p, *states, **case.options).saved
        ).parameters
        for p in (whole, exact)
    )
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == np.float64
            np.testing.assert_array_equal(a, b)


def test_saved_states_cannot_be_changed():
    parameters, x, _ = problem(RNNS[0])
    y, h, _ = rnn.rnn_forward(x, parameters)
    with pytest.raises(ValueError, match="read-only"):
        y += 1
    h += 1


MESSAGES = {
    "x must have 3 axes, of time, batch and inputs, or 2 without": {"x": np.zeros(5)},
    "lengths must be between 0 and 4, the length of x, got 5": {"lengths": [5, 1, 1]},
    "norm must be 'layer', 'rms', 'ada' or None, got 'group'": {"norm": "group"},
    "h must have shape (3, 6)": {"h": np.zeros((3, 5))},
    "zoneout must be between 0 and 1, got 1.5": {"zoneout": 1.5},
    "zoneout must be a number, or one for each of h, got 2": {"zoneout": (0.1, 0.1)},
    "zoneout must be a number": {"zoneout": "a"},
    "zoneout must be a number, got True": {"zoneout": True},
    "rng must be a numpy.random.Generator, got int": {"zoneout": 0.5, "rng": 3},
    "beta_x must be None, as this norm": {"norm": "rms"},
    "parameters must be a GRUParameters, got an object of type NoneType": {"parameters": None},
    "parameters must be a GRUParameters, got an object of type RNNParameters": {
        "parameters": rnn.RNNParameters(np.zeros((6, 5)), np.zeros((6, 6)))
    },
    "parameters must be packed for gru, got those for rnn": {
        "parameters": rnn.rnn_pack(rnn.RNNParameters(np.zeros((6, 5)), np.zeros((6, 6))))
    },
    "weight_h must have shape (3H, H) with H at least 1, got (6, 6)": {
        "parameters": rnn.GRUParameters(np.zeros((18, 5)), np.zeros((6, 6)))
    },
    "weight_x must be an array, got None": {
        "parameters": rnn.GRUParameters(None, np.zeros((18, 6)))
    },
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    parameters, x, (h,) = problem(GRUS[0])
    arguments = {"x": x, "parameters": parameters, "h": h} | MESSAGES[message]
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.gru(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


PACK_MESSAGES = {
    "weight_x must have shape (6, I), got (6,)": {"weight_x": np.zeros(6)},
    "weight_x must have shape (6, I), got (5, 3)": {"weight_x": np.zeros((5, 3))},
    "weight_x must not be a masked array": {"weight_x": np.ma.zeros((6, 3))},
    "bias must not be a masked array": {"bias": np.ma.zeros(6)},
    "bias must be rectangular, got a list whose rows differ in length": {"bias": [1.0, [2.0]]},
    "dtype must be float16, bfloat16, float32 or float64, got int64": {"dtype": np.int64},
    "dtype must be float16, bfloat16, float32 or float64, got None": {"dtype": None},
}


@pytest.mark.parametrize("message", PACK_MESSAGES)
def test_errors_of_packing(message):
    options = dict(PACK_MESSAGES[message])
    dtype = options.pop("dtype", np.float64)
    parameters = rnn.GRUParameters(np.zeros((6, 3)), np.zeros((6, 2)))._replace(**options)
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.gru_pack(parameters, dtype=dtype)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "other", "differs"),
    [
        (LSTMS[0], {"variant": "normalized_cell"}, "norm and variant"),
        (GRUS[0], {"norm": "rms"}, "norm and reset_after"),
        (GRUS[0], {"reset_after": False}, "norm and reset_after"),
        (RNNS[0], {"nonlinearity": "relu"}, "norm and nonlinearity"),
    ],
    ids=["lstm", "gru", "gru-reset", "rnn"],
)
def test_packed_for_another_form(case, other, differs):
    parameters, x, _ = problem(case)
    packed = case.call("_pack")(parameters, dtype=x.dtype)
    with pytest.raises(ValueError) as caught:
        case.call()(x, packed, **other)
    assert str(caught.value) == f"parameters must be packed for the same {differs}"


@pytest.mark.parametrize("dtype", [int, None, np.longdouble, "nothing"], ids=str)
def test_dtypes_of_first_parameters(dtype):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    calls = [case.call("_init") for case in (LSTMS[0], *SOME)]
    for call in [*(functools.partial(call, rng=rng) for call in calls), rnn.lstm_statistics_init]:
        with pytest.raises(TypeError, match="dtype must be float16, bfloat16, float32 or float64"):
            call(3, 2, dtype=dtype)
    assert rng.bit_generator.state == before
    for name in ("float16", ">f4", "float64"):
        expected = np.dtype(name).newbyteorder("=")
        assert {p.dtype for p in calls[1](3, 2, rng=rng, dtype=name) if p is not None} == {expected}


def test_no_lengths_of_no_sequences():
    parameters, x, _ = problem(GRUS[0], batch=0)
    assert rnn.gru(x, parameters, lengths=[]).y.shape == (4, 0, 6)


def test_saved_of_another_function():
    parameters, x, _ = problem(GRUS[0])
    *_, saved = rnn.gru_forward(x, parameters)
    for call in (rnn.rnn_backward, rnn.gru_cell_backward):
        with pytest.raises(TypeError, match=r"saved must be what \w+_forward returned, got that"):
            call(x, saved)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        rnn.gru(x, parameters, nonlinearity="relu")
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'elu'"):
        rnn.rnn(x, problem(RNNS[0])[0], nonlinearity="elu")


def held_by(array):
    """How many bytes stay while an array does."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    owner = array.base
    return array.nbytes if owner is None else owner.__array_interface__["shape"][0]


@pytest.mark.parametrize("case", [LSTMS[0], *SOME], ids=ids)
def test_results_hold_no_more_than_they_need(case):
    parameters, x, states = problem(case, time=30, hidden=40)
    found = case.call()(x, parameters, *states, **case.options)
    for state in found[1:]:
        assert held_by(state) <= 2 * state.nbytes


def test_a_large_old_state_leaves_the_new_one_its_digits():
    # z = 1 but for 1e-9: what remains of the old state is 0.1, and the new one 0.76.
    weights = np.zeros((3, 1)), np.zeros((3, 1))
    parameters = rnn.GRUParameters(*weights, np.array([np.log(1e9), 0.0, 1.0]))
    x = np.zeros((1, 1, 1), np.float32)
    y, _ = rnn.gru(x, parameters, [[1e8]], norm=None)
    # The bias, rounded to float32, is 20.7 * 3e-8 off, and so is the share of the old state.
    np.testing.assert_allclose(y[0, 0, 0], 0.1 + np.tanh(1.0), rtol=1e-6)
