"""Single steps with packed parameters, which go straight to the kernel from the second call on."""

import concurrent.futures

import numpy as np
import pytest
from layouts import LAYOUTS

from numnorm import rnn
from numnorm.rnn import passes

INPUTS, HIDDEN = 4, 5
CELLS = {
    "lstm": ("lstm", {}),
    "lstm-normalized": ("lstm", {"variant": "normalized_cell"}),
    "lstm-per-gate-rms": ("lstm", {"variant": "per_gate", "norm": "rms"}),
    "lstm-cell-only": ("lstm", {"variant": "cell_only"}),
    "lstm-none": ("lstm", {"norm": None}),
    "gru": ("gru", {}),
    "gru-ada": ("gru", {"norm": "ada"}),
    "gru-none": ("gru", {"norm": None}),
    "rnn": ("rnn", {}),
    "rnn-relu": ("rnn", {"norm": "rms", "nonlinearity": "relu"}),
}
USUAL = ["lstm", "gru", "rnn"]


def made(name, dtype=np.float32, inputs=INPUTS, **changes):
    """Return the cell, its sequence function, packed parameters and options."""
    kind, options = CELLS[name]
    rng, options = np.random.default_rng(3), {**options, **changes}
    of_init = {key: options[key] for key in ("norm", "variant") if key in options}
    parameters = getattr(rnn, f"{kind}_init")(max(inputs, 1), HIDDEN, rng=rng, **of_init)
    parameters = type(parameters)(
        *(
            None if a is None else (a + 0.1 * rng.standard_normal(a.shape)).astype(dtype)
            for a in parameters
        )
    )
    if not inputs:
        parameters = parameters._replace(weight_x=parameters.weight_x[:, :0])
    choices = {key: value for key, value in options.items() if key != "eps"}
    packed = getattr(rnn, f"{kind}_pack")(parameters, dtype=dtype, **choices)
    return getattr(rnn, f"{kind}_cell"), getattr(rnn, kind), packed, options


def as_states(result):
    """Return the result of a step as the states for the next one."""
    return result if isinstance(result, tuple) else (result,)


def run(cell, xs, packed, options):
    """Return the states after each step, all kept until the end."""
    kept, states = [], ()
    for x in xs:
        states = as_states(cell(x, packed, *states, **options))
        kept.append(states)
    return kept


def sequence(batch, dtype=np.float32, inputs=INPUTS, steps=6):
    return np.random.default_rng(8).standard_normal((steps, batch, inputs)).astype(dtype)


@pytest.fixture
def straight(monkeypatch):
    """Return a function after which the way of other calls raises."""

    def begin():
        monkeypatch.setattr(passes, "sequence_layout", None)

    return begin


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name",
    [n if n in USUAL else pytest.param(n, marks=pytest.mark.full) for n in CELLS],
)
def test_second_call_goes_straight_with_same_bytes(name, dtype, straight):
    cell, whole, packed, options = made(name, dtype)
    xs = sequence(3, dtype)
    expected = whole(xs, packed, **options)
    cell(xs[0], packed, **options)
    straight()
    kept = run(cell, xs, packed, options)
    np.testing.assert_array_equal(np.array([states[0] for states in kept]), expected.y)
    for last, exact in zip(kept[-1], expected[1:], strict=True):
        np.testing.assert_array_equal(last, exact)
        assert last.flags.owndata and last.flags.writeable and last.dtype == dtype


@pytest.mark.parametrize("inputs", [0, 1, INPUTS])
@pytest.mark.parametrize("batch", [0, 1, 7, 8])
@pytest.mark.parametrize("name", USUAL)
def test_batches_and_inputs_of_every_size(name, batch, inputs):
    cell, whole, packed, options = made(name, inputs=inputs)
    xs = sequence(batch, inputs=inputs)
    expected = whole(xs, packed, **options)
    for _ in range(2):
        kept = run(cell, xs, packed, options)
        np.testing.assert_array_equal(np.array([states[0] for states in kept]), expected.y)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_goes_straight(layout, straight):
    cell, _, packed, options = made("lstm")
    x, h, c = (np.random.default_rng(n).random((2, n), np.float32) for n in (INPUTS, HIDDEN, 5))
    x, h, c = (layout(array) for array in (x, h, c))
    before = cell(x, packed, h, c, **options)
    straight()
    for one, other in zip(before, cell(x, packed, h, c, **options), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.ones((2, 3), np.float32)},
        {"x": np.ones((2, 2, 4), np.float32)},
        {"x": np.ones((2, 4))},
        {"x": np.ma.masked_array(np.ones((2, 4), np.float32))},
        {"h": np.ones((1, 5), np.float32)},
        {"h": np.ones((2, 5), complex)},
        {"c": "state"},
        {"eps": -1.0},
        {"eps": "small"},
        {"norm": ["layer"]},
        {"norm": "rms"},
        {"variant": None},
        {"zoneout": 2.0},
        {"zoneout": (0.0,)},
        {"dropout": False},
        {"recurrent_dropout": False},
        {"rng": 3},
        {"parameters": None},
    ],
)
def test_wrong_arguments_raise_the_same_error_after_a_good_call(change):
    cell, _, packed, _ = made("lstm")
    h = np.ones((2, HIDDEN), np.float32)
    good = {"x": np.ones((2, INPUTS), np.float32), "parameters": packed, "h": h, "c": h}
    with pytest.raises((TypeError, ValueError)) as first:
        cell(**good | change)
    cell(**good)
    cell(**good)
    with pytest.raises((TypeError, ValueError)) as second:
        cell(**good | change)
    assert (second.type, str(second.value)) == (first.type, str(first.value))


def test_parameters_of_another_cell_raise():
    cell, _, packed, _ = made("lstm")
    x = np.ones((2, INPUTS), np.float32)
    cell(x, packed)
    with pytest.raises(TypeError, match="parameters must be packed for gru"):
        rnn.gru_cell(x, packed)


def test_every_epsilon_and_batch_has_its_own_result():
    cell, whole, packed, _ = made("gru")
    for _ in range(2):
        for eps in (1e-5, 0.1, 10.0):
            for batch in range(1, 6):
                x = sequence(batch, steps=1)
                expected = whole(x, packed, eps=eps).h
                np.testing.assert_array_equal(cell(x[0], packed, eps=eps), expected)


def test_threads_share_packed_parameters():
    cell, whole, packed, options = made("lstm")
    inputs = [sequence(2, steps=40) + n for n in range(8)]

    def last(xs):
        return run(cell, xs, packed, options)[-1]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for xs, states in zip(inputs, pool.map(last, inputs), strict=True):
            for state, exact in zip(states, whole(xs, packed, **options)[1:], strict=True):
                np.testing.assert_array_equal(state, exact)
