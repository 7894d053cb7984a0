"""Steps of recurrent cells inside compiled functions: the bytes of the public functions."""

import concurrent.futures
import pickle

import numba
import numpy as np
import pytest
from every_call import in_new_process
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from nopython import compiled, same
from numba.core.errors import TypingError

from numnorm import rnn

pytestmark = compiled
UNITS = 5
LSTM, GRU, RNN = "lstm", "gru", "rnn"
CELLS = {
    "lstm": (LSTM, {}),
    "lstm-normalized": (LSTM, {"variant": "normalized_cell"}),
    "lstm-per-gate-rms": (LSTM, {"variant": "per_gate", "norm": "rms"}),
    "lstm-cell-only-ada": (LSTM, {"variant": "cell_only", "norm": "ada"}),
    "lstm-none": (LSTM, {"norm": None}),
    "lstm-projected": (LSTM, {"projection": 3}),
    "gru": (GRU, {}),
    "gru-reset-before": (GRU, {"reset_after": False}),
    "gru-ada": (GRU, {"norm": "ada"}),
    "rnn": (RNN, {}),
    "rnn-relu-rms": (RNN, {"norm": "rms", "nonlinearity": "relu"}),
    "rnn-none": (RNN, {"norm": None}),
}
USUAL = ["lstm", "gru", "rnn"]
FEW = [*USUAL, "lstm-projected", "gru-ada", "rnn-none"]


def packed(name, dtype=np.float32, inputs=4, units=UNITS):
    kind, options = CELLS[name]
    rng, options = np.random.default_rng(3), dict(options)
    of_init = {key: options[key] for key in ("norm", "variant") if key in options}
    projection = options.pop("projection", 0)
    parameters = getattr(rnn, f"{kind}_init")(inputs, units, rng=rng, **of_init)
    if projection:
        weights = rng.standard_normal((projection, units))
        of_h = parameters.weight_h[:, :projection]
        given = parameters._asdict() | {"weight_h": of_h, "projection": weights}
        parameters = rnn.ProjectedLSTMParameters(**given)
    moved = (None if a is None else a + 0.1 * rng.standard_normal(a.shape) for a in parameters)
    return getattr(rnn, f"{kind}_pack")(type(parameters)(*moved), dtype=dtype, **options)


def steps_of(name):
    """A function of several steps: the states after each of them."""
    kind, options = CELLS[name]
    states = "h, c" if kind == LSTM else "h"
    given = "".join(f", {k}={v!r}" for k, v in options.items() if k != "projection")
    names = {"rnn": rnn}
    exec(
        f"def steps(xs, p, {states}, eps):\n"
        "    kept = []\n"
        "    for t in range(len(xs)):\n"
        f"        {states} = rnn.{kind}_cell(xs[t], p, {states}{given}, eps=eps)\n"
        f"        kept.append(({states}, xs[t]))\n"
        "    return kept\n",
        names,
    )
    return names["steps"]


def arrays_of(parameters, batch, dtype=np.float32, steps=4, seed=8):
    """Inputs of several steps, and the states before them."""
    rng, shape = np.random.default_rng(seed), () if batch is None else (batch,)
    outputs, inputs = parameters.given.weight_h.shape[1], parameters.given.weight_x.shape[1]
    widths = [outputs, parameters.weights.h.shape[0] // 4][: len(parameters.kind.states)]
    xs = rng.standard_normal((steps, *shape, inputs)).astype(dtype)
    return xs, [rng.standard_normal((*shape, width)).astype(dtype) for width in widths]


def check(steps, function, xs, parameters, states, eps=1e-5):
    got, expected = (f(xs, parameters, *states, eps) for f in (steps, function))
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.full) for n in CELLS]
)
def test_steps_of_every_cell(name, dtype):
    parameters, function = packed(name, dtype), steps_of(name)
    steps = numba.njit(function)
    for batch in (1, 3, 17, 0):
        xs, states = arrays_of(parameters, batch, dtype)
        check(steps, function, xs, parameters, states)


@pytest.mark.parametrize("name", USUAL)
def test_random_sizes_and_layouts(name):
    function = steps_of(name)
    steps = numba.njit(function)
    layouts = [
        np.ascontiguousarray,
        *(f for f in LAYOUTS if f.__name__ in ("strided", "backwards")),
    ]

    @settings(max_examples=500, deadline=None, database=None)
    @given(
        st.integers(0, 20), st.integers(0, 40), st.integers(1, 40), st.sampled_from(layouts),
        st.sampled_from([0.0, 1e-5, 1, 1e30]), st.integers(0, 3),
    )  # fmt: skip
    def check_one(batch, inputs, units, layout, eps, seed):
        parameters = packed(name, inputs=max(inputs, 1), units=units)
        xs, states = arrays_of(parameters, batch, seed=seed, steps=1)
        check(steps, function, layout(xs), parameters, list(map(layout, states)), float(eps))

    check_one()


@pytest.mark.parametrize("name", USUAL)
def test_one_sequence_without_a_batch(name):
    parameters, function = packed(name), steps_of(name)
    xs, states = arrays_of(parameters, None)
    check(numba.njit(function), function, xs, parameters, states)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout):
    def step(x, p, h):
        return rnn.gru_cell(x, p, h)

    parameters = packed("gru")
    xs, (h,) = arrays_of(parameters, 3)
    x, h = layout(xs[0]), layout(h)
    same(numba.njit(step)(x, parameters, h), step(x, parameters, h))


def test_states_of_another_dtype():
    def step(x, p, h, c):
        return rnn.lstm_cell(x, p, h, c)

    parameters = packed("lstm")
    xs, (h, c) = arrays_of(parameters, 3)
    arguments = xs[0], parameters, h.astype(np.float64) / 3, c * 1e38
    same(numba.njit(step)(*arguments), step(*arguments))


@pytest.mark.parametrize("batch", [None, 2])
def test_a_loop_may_begin_with_none(batch):
    def last(xs, p):
        h = c = None
        for t in range(len(xs)):
            h, c = rnn.lstm_cell(xs[t], p, h, c)
        return h, c

    parameters = packed("lstm")
    xs, _ = arrays_of(parameters, batch)
    same(numba.njit(last)(xs, parameters), last(xs, parameters))
    assert numba.njit(last)(xs[:0], parameters) == (None, None)


def test_arguments_are_left_as_they_are():
    parameters = packed("lstm")
    xs, states = arrays_of(parameters, 3)
    before = [array.copy() for array in (xs, *states)]
    numba.njit(steps_of("lstm"))(xs, parameters, *states, 1e-5)
    same(tuple(before), (xs, *states))


def test_parallel_streams():
    def streams(xs, p, hs):
        result = np.empty_like(hs)
        for i in numba.prange(len(xs)):
            h = hs[i]
            for t in range(xs.shape[1]):
                h = rnn.gru_cell(xs[i, t], p, h)
            result[i] = h
        return result

    parameters = packed("gru")
    xs, (hs,) = arrays_of(parameters, 6, steps=20)
    xs = np.ascontiguousarray(xs.swapaxes(0, 1))
    expected = streams(xs, parameters, hs)
    same(numba.njit(streams, parallel=True)(xs, parameters, hs), expected)
    alone = numba.njit(streams, nogil=True)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: alone(xs, parameters, hs), range(16)):
            same(result, expected)


def test_several_layers_in_a_tuple():
    def step(x, layers, hs):
        return rnn.gru_cell(rnn.gru_cell(x, layers[0], hs[0]), layers[1], hs[1])

    layers = packed("gru"), packed("gru", inputs=UNITS)
    xs, hs = arrays_of(layers[0], 3, steps=2)
    same(numba.njit(step)(xs[0], layers, (*hs, *hs)), step(xs[0], layers, (*hs, *hs)))


def test_parameters_live_as_long_as_compiled_code_uses_them():
    @numba.njit
    def states(x, p, h):
        while True:
            h = rnn.rnn_cell(x, p, h)
            yield h

    xs, (h,) = arrays_of(packed("rnn"), 2)
    expected = rnn.rnn_cell(xs[0], packed("rnn"), h)
    generator = states(xs[0], packed("rnn"), h)  # which alone keeps them
    np.full(1 << 12, np.nan)
    same(next(generator), expected)


def test_copies_and_pickles_of_parameters():
    @numba.njit
    def step(x, p):
        return rnn.gru_cell(x, p)

    parameters = packed("gru")
    (x, *_), _ = arrays_of(parameters, 2)
    expected = step(x, parameters)
    same(step(x, pickle.loads(pickle.dumps(parameters))), expected)
    assert len(step.signatures) == 1


CALLER = """
import sys
import numba, numpy as np
from numnorm import rnn
import numnorm._numba
numnorm._numba.init()

@numba.njit(cache=True)
def inner(x, p, h):
    return rnn.gru_cell(x, p, h)

@numba.njit(cache=True)
def last(xs, p, h):
    for t in range(len(xs)):
        h = inner(xs[t], p, h)
    return h

def main():
    p = rnn.gru_pack(rnn.gru_init(4, 5, rng=np.random.default_rng(0)))
    xs, h = np.random.default_rng(1).random((6, 3, 4), np.float32), np.zeros((3, 5), np.float32)
    assert last(xs, p, h).tobytes() == last.py_func(xs, p, h).tobytes()
    print(sum(last.stats.cache_hits.values()), sum(last.stats.cache_misses.values()))
"""


def test_cached_callers_in_other_processes(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import caller; caller.main()"
    printed = [in_new_process("-c", program, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [text.split() for text in printed] == [["0", "1"], ["1", "0"]]


WRONG = {
    "gru_cell(x, (x, x))": "parameters must be what gru_pack returned, got UniTuple",
    "lstm_cell(x, p)": "parameters must be what lstm_pack returned, got Packed",
    "gru_cell(x, p, norm='rms')": "parameters must be packed for the same norm and reset_after",
    "gru_cell(x, p, norm='batch')": "norm must be the literal 'layer', 'rms', 'ada' or None, got",
    "gru_cell(x, p, norm=text)": "norm must be the literal 'layer', 'rms', 'ada' or None, got",
    "gru_cell(x * 1.0j, p)": "x must be an array (B, I) or (I,) of float32, as packed, got array",
    "gru_cell(x.astype(np.float64), p)": "x must be an array (B, I) or (I,) of float32, as packed",
    "gru_cell(x, p, x[0])": "h must be an array with 2 axes, as x has, got one with 1 axis",
    "gru_cell(x, p, np.ones((2, 5), np.int64))": "h must be an array of float32 or float64, got",
    "gru_cell(x, p, 0.0)": "h must be an array",
    "gru_cell(x, p, eps='a')": "eps must be a number, got",
    "gru_cell(x, p, zoneout=0.1)": "zoneout must be left out in compiled code, got float64",
    "gru_cell(x, p, dropout=0.1)": "dropout must be left out in compiled code, got float64",
    "gru_cell(x, p, rng=x)": "rng must be left out in compiled code, got array",
    "gru_cell(x, kept)": "parameters must be an argument of the compiled function, not a global",
}


@pytest.mark.parametrize("call", WRONG)
def test_errors_of_types(call):
    parameters = packed("gru")
    names = {"rnn": rnn, "np": np, "kept": parameters}
    exec(f"def step(x, p, text):\n    return rnn.{call}\n", names)
    x = np.ones((2, 4), np.float32)
    with pytest.raises(TypingError) as raised:
        numba.njit(names["step"])(x, parameters, "layer")
    # Numba adds lines of its own, but none about a step of numnorm.
    assert any(WRONG[call] in line for line in str(raised.value).splitlines())
    assert "Traceback" not in str(raised.value)


def test_errors_of_values():
    @numba.njit
    def step(x, p, h, eps):
        return rnn.gru_cell(x, p, h, eps=eps)

    parameters = packed("gru")
    (x, *_), (h,) = arrays_of(parameters, 2)
    step(x, parameters, h, 0.1)
    with pytest.raises(ValueError, match="x must have as many inputs as weight_x"):
        step(x[:, :-1].copy(), parameters, h, 0.1)
    with pytest.raises(ValueError, match="h must have the shape of the batch and the units"):
        step(x, parameters, h[:1], 0.1)
    for eps in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="eps must be finite and at least 0"):
            step(x, parameters, h, eps)
