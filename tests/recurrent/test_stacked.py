"""Stacks of recurrent layers: the composition of single calls, gradients, masks, structure."""

import importlib
import sys
import types

import numpy as np
import pytest
import recurrent_reference as recurrent
from gradients import TOLERANCE, numerical_gradient

from numnorm import rnn

LENGTHS = [2, 0, 3]


def some_lstm(rng, inputs, hidden):
    """Parameters none of which is special."""
    parameters = rnn.lstm_init(inputs, hidden, rng=rng, dtype=np.float64)
    return rnn.LSTMParameters(*(p + rng.normal(size=p.shape) * 0.3 for p in parameters))


def some_states(rng, batch, hidden):
    return rng.normal(size=(batch, hidden)), rng.normal(size=(batch, hidden))


def problem(time=3, batch=3):
    """A layer of both directions below one of one direction below one of both."""
    rng = np.random.default_rng(0)
    layers = [
        (some_lstm(rng, 2, 3), some_lstm(rng, 2, 4)),
        some_lstm(rng, 7, 3),
        [some_lstm(rng, 3, 2), some_lstm(rng, 3, 3)],
    ]
    states = [
        (some_states(rng, batch, 3), some_states(rng, batch, 4)),
        some_states(rng, batch, 3),
        [some_states(rng, batch, 2), some_states(rng, batch, 3)],
    ]
    return rng.normal(size=(time, batch, 2)), layers, states


def one_direction(batch=3):
    rng = np.random.default_rng(1)
    layers = [some_lstm(rng, 2, 5), some_lstm(rng, 5, 3)]
    return rng.normal(size=(9, batch, 2)), layers


def leaves(structure):
    """All arrays of nested tuples and lists, in order."""
    if isinstance(structure, tuple | list):
        return [leaf for element in structure for leaf in leaves(element)]
    return [structure]


def assert_same(left, right):
    for a, b in zip(leaves(left), leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def masks_as_documented(rng, time, batch, widths, dropout):
    """The factors of each layer's output but the last."""
    return [
        (np.random.default_rng(rng.integers(2**63)).random((time, batch, width)) >= dropout)
        / (1 - np.longdouble(dropout))
        for width in widths
    ]


def by_definition(x, layers, states, factors, lengths):
    """What `stacked` returns, of arrays of longdouble."""
    last = []
    for n, (layer, before) in enumerate(zip(layers, states, strict=True)):
        pair = not isinstance(layer, rnn.LSTMParameters)
        directions = zip(layer, before, strict=True) if pair else [(layer, before)]
        outputs = [
            recurrent.lstm(
                recurrent.Norm("layer", 1e-5), "paper", parameters._asdict(), x, *given,
                lengths=lengths, reverse=k == 1,
            )
            for k, (parameters, given) in enumerate(directions)
        ]  # fmt: skip
        last.append([state for y, *state in outputs] if pair else outputs[0][1:])
        x = np.concatenate([y for y, *_ in outputs], axis=-1)
        if n < len(factors):
            x = x * factors[n]
    return x, last


def in_longdouble(structure):
    if isinstance(structure, rnn.LSTMParameters):
        return rnn.LSTMParameters(*map(in_longdouble, structure))
    if isinstance(structure, tuple | list):
        return [in_longdouble(element) for element in structure]
    return np.array(structure, np.longdouble)


def test_is_the_composition_of_single_calls():
    x, layers, states = problem()
    options = {"lengths": LENGTHS, "eps": 1e-3}
    found = rnn.stacked(x, layers, states, **options)

    below = rnn.lstm(x, layers[0][0], *states[0][0], **options)
    beside = rnn.lstm(x, layers[0][1], *states[0][1], reverse=True, **options)
    y = np.concatenate([below.y, beside.y], axis=2)
    middle = rnn.lstm(y, layers[1], *states[1], **options)
    above = [
        rnn.lstm(middle.y, layers[2][k], *states[2][k], reverse=k == 1, **options) for k in range(2)
    ]
    assert_same(found.y, np.concatenate([above[0].y, above[1].y], axis=2))
    assert_same(found.states, [below[1:], beside[1:], middle[1:], above[0][1:], above[1][1:]])
    saving = rnn.stacked_forward(x, layers, states, **options)
    assert_same(found, saving[:2])


def test_states_that_are_missing_are_zeros():
    x, layers, states = problem()
    (h, c), _ = states[0]
    zeros = np.zeros_like(c)
    some = [((h, None), None), None, states[2]]
    full = [
        ((h, zeros), (np.zeros((3, 4)), np.zeros((3, 4)))), (zeros, zeros), states[2]
    ]  # fmt: skip
    assert_same(rnn.stacked(x, layers, some), rnn.stacked(x, layers, full))


def test_definition_and_gradients_with_dropout():
    x, layers, states = problem()
    p, seed = 0.4, 3
    y, last, saved = rnn.stacked_forward(
        x, layers, states, lengths=LENGTHS, dropout=p, rng=np.random.default_rng(seed)
    )
    rng = np.random.default_rng(4)
    dy = rng.normal(size=y.shape)
    dstates = [
        [[rng.normal(size=s.shape) for s in d] for d in last[0]],
        [rng.normal(size=s.shape) for s in last[1]],
        [[rng.normal(size=s.shape) for s in d] for d in last[2]],
    ]
    found = rnn.stacked_backward(dy, saved, dstates)

    factors = masks_as_documented(np.random.default_rng(seed), 3, 3, (7, 3), p)
    assert all((f == 0).any() and (f > 0).any() for f in factors)
    exact = x, layers, states = in_longdouble((x, layers, states))
    expected = by_definition(x, layers, states, factors, LENGTHS)
    # As for one LSTM: states of size 1, sums of a dozen products, here through three layers.
    for a, b in zip(leaves((y, last)), leaves(expected), strict=True):
        assert np.abs(a - b).max() < 1e-13

    grads = leaves((dy, dstates))

    def loss():
        outputs = leaves(by_definition(x, layers, states, factors, LENGTHS))
        return sum(np.sum(a * b) for a, b in zip(outputs, grads, strict=True))

    gradients = leaves((found.dx, found.layers, found.states))
    for gradient, array in zip(gradients, leaves(exact), strict=True):
        numerical = numerical_gradient(loss, array)
        # As for one LSTM, of up to 50 terms, and dropout makes them larger by 1.7 a layer.
        limit = 100 * TOLERANCE * max(1, np.abs(numerical).max())
        assert np.abs(gradient - numerical).max() < limit


def test_gradients_have_the_structure_of_what_they_belong_to():
    x, layers, states = problem()
    y, last, saved = rnn.stacked_forward(x, layers, states)
    gradients = rnn.stacked_backward(y, saved)
    assert_same([a.shape for a in leaves(gradients.layers)], [a.shape for a in leaves(layers)])
    assert_same([a.shape for a in leaves(gradients.states)], [a.shape for a in leaves(states)])
    assert isinstance(gradients.layers[1], rnn.LSTMParameters)
    assert isinstance(gradients.layers[0][1], rnn.LSTMParameters)
    assert_same(gradients, rnn.stacked_backward(y, saved, [None] * 3))  # and again
    zeros = [[np.zeros_like(a) for a in last[1]] if n == 1 else None for n in range(3)]
    assert_same(gradients, rnn.stacked_backward(y, saved, zeros))


def test_each_sequence_alone_gives_the_same_bytes():
    lengths = [3, 7, 1, 0, 5]
    x, layers, states = problem(time=7, batch=len(lengths))
    together = rnn.stacked_forward(x, layers, states, lengths=lengths)
    dy = np.random.default_rng(1).normal(size=together.y.shape)
    dx = rnn.stacked_backward(dy, together.saved).dx
    for b, length in enumerate(lengths):

        def own(structure):
            if isinstance(structure, tuple | list):
                return [own(element) for element in structure]
            return structure[b : b + 1]

        one = slice(b, b + 1)
        alone = rnn.stacked_forward(x[:length, one], layers, own(states))
        assert_same(together.y[:length, one], alone.y)
        assert not together.y[length:, b].any()
        assert_same(own(together.states), alone.states)
        back = rnn.stacked_backward(dy[:length, one], alone.saved)
        assert_same(dx[:length, one], back.dx)


def test_chunk_by_chunk_gives_the_same_bytes():
    x, layers = one_direction()
    y, last = rnn.stacked(x, layers)
    packed = [rnn.lstm_pack(parameters, dtype=np.float64) for parameters in layers]
    states, chunks = None, []
    for begin, end in [(0, 4), (4, 5), (5, 9)]:
        chunk, states = rnn.stacked(x[begin:end], packed, states)
        chunks.append(chunk)
    assert_same(np.concatenate(chunks), y)
    assert_same(states, last)


def test_batch_first_gives_the_same_bytes():
    x, layers, states = problem()
    options = {"lengths": LENGTHS, "dropout": 0.5}
    expected = rnn.stacked_forward(x, layers, states, rng=np.random.default_rng(2), **options)
    found = rnn.stacked_forward(
        x.swapaxes(0, 1), layers, states, batch_first=True, rng=np.random.default_rng(2), **options
    )
    assert_same(found.y.swapaxes(0, 1), expected.y)
    assert_same(found.states, expected.states)
    mine = rnn.stacked_backward(found.y, found.saved)
    theirs = rnn.stacked_backward(expected.y, expected.saved)
    assert_same(mine.dx.swapaxes(0, 1), theirs.dx)
    assert_same(mine[1:], theirs[1:])


def test_any_layout_and_integers():
    x, layers, states = problem()
    whole = np.round(x).astype(np.int16)
    expected = rnn.stacked(whole.astype(np.float64), layers, states)
    assert_same(rnn.stacked(np.asfortranarray(whole), layers, states), expected)
    assert_same(rnn.stacked(whole.tolist(), tuple(layers), tuple(states)), expected)


# Dropout


class Identity:
    """Stands for the parameters of a cell that hands its input on."""


@pytest.fixture
def identities(monkeypatch):
    """Layers that show what dropout does to the values between them."""
    module = importlib.import_module("numnorm.rnn.stacked")
    cell = types.SimpleNamespace(
        kind=types.SimpleNamespace(states=()),
        call=lambda x, _, **options: (x,),
        forward=lambda x, _, **options: (x, None),
        backward=lambda dy, saved: (dy, None),
    )
    monkeypatch.setitem(module._CELLS, Identity, cell)
    return [Identity(), Identity()]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_as_many_as_it_says_and_makes_up_for_the_others(identities, p, dtype):
    rng = np.random.default_rng(5)
    x = rng.uniform(1, 2, size=(50, 20, 30)).astype(dtype)
    y, _, saved = rnn.stacked_forward(x, identities, dropout=p, rng=rng)
    assert y.dtype == dtype
    kept = y != 0
    # Five standard deviations of a binomial distribution.
    assert abs(kept.sum() - (1 - p) * x.size) < 5 * np.sqrt(p * (1 - p) * x.size)
    # Rounded once in half precision; else 1 / (1 - p) and the product.
    expected = (x.astype(np.longdouble) / (1 - np.longdouble(p)))[kept]
    error = np.abs(y[kept] - expected) / expected
    assert error.max() <= (0.501 if dtype == np.float16 else 1.5) * np.finfo(dtype).eps
    assert_same(rnn.stacked_backward(x, saved).dx, y)


def test_same_seed_same_bytes(identities):
    x = np.ones((6, 5, 8))

    def masks(seed, steps=6, layers=identities):
        rng = np.random.default_rng(seed)
        return rnn.stacked(x[:steps], layers, dropout=0.5, rng=rng).y

    assert_same(masks(0), masks(0))
    assert not np.array_equal(masks(0), masks(1))
    # Padding at the end is no part of what the others get, in no layer.
    three = [*identities, Identity()]
    assert_same(masks(0, 4, three), masks(0, 6, three)[:4])
    assert not np.array_equal(masks(0), masks(0, layers=three))


def test_nothing_is_dropped_from_the_last_layer_or_with_0(identities):
    x = np.ones((6, 5, 8))
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert_same(rnn.stacked(x, identities[:1], dropout=0.9, rng=rng).y, x)
    assert_same(rnn.stacked(x, identities, rng=rng).y, x)
    assert rng.bit_generator.state == before


def gated_layers():
    rng = np.random.default_rng(4)
    sizes = [[(2, 3), (2, 4)], [(7, 3)]]
    first, (second,) = (
        [rnn.gru_init(*size, rng=rng, dtype=np.float64) for size in layer] for layer in sizes
    )
    return rng.normal(size=(5, 3, 2)), [first, second]


def test_zoneout_draws_from_a_generator_for_each_direction():
    x, layers = gated_layers()
    y, states, _ = rnn.stacked_forward(
        x, layers, zoneout=0.4, dropout=0.3, lengths=LENGTHS, rng=np.random.default_rng(6)
    )
    rng = np.random.default_rng(6)

    def call(x, parameters, **options):
        own = np.random.default_rng(rng.integers(2**63))
        return rnn.gru(x, parameters, zoneout=0.4, lengths=LENGTHS, rng=own, **options)

    below, beside = call(x, layers[0][0]), call(x, layers[0][1], reverse=True)
    (factors,) = masks_as_documented(rng, 5, 3, [7], 0.3)
    # The factor, its product and the gates of the layer above round.
    above = call(np.concatenate([below.y, beside.y], axis=2) * factors.astype(float), layers[1])
    assert_same(states[0], [below.h, beside.h])
    np.testing.assert_allclose(y, above.y, rtol=0, atol=1e-14)


def test_zoneout_does_not_depend_on_padding():
    x, layers = gated_layers()
    options = {"zoneout": 0.4, "dropout": 0.3, "lengths": LENGTHS}
    longer = rnn.stacked(x, layers, **options, rng=np.random.default_rng(6))
    found = rnn.stacked(x[:3], layers, **options, rng=np.random.default_rng(6))
    assert_same(longer.y[:3], found.y)
    assert_same(longer.states, found.states)


@pytest.mark.parametrize("options", [{"zoneout": 0.4}, {"dropout": 0.3}], ids=str)
def test_what_is_refused_draws_nothing(options):
    x, (first, second) = gated_layers()
    rng = np.random.default_rng(6)
    before = rng.bit_generator.state
    for layers, given in [
        ([first, second._replace(bias=np.zeros(2))], None),
        ([first, second], [None, (np.zeros((3, 2)),)]),
    ]:
        with pytest.raises(ValueError, match=r"layers\[1\]: (bias|h) must have shape"):
            rnn.stacked(x, layers, given, **options, rng=rng)
        assert rng.bit_generator.state == before


# Errors

PARAMETERS = "LSTMParameters, ProjectedLSTMParameters, GRUParameters, RNNParameters or Packed"
X, LAYERS, STATES = problem()
H, C = STATES[1]
MESSAGES = {
    "layers must have at least 1 element, got none": {"layers": []},
    "layers must be a list or tuple with the parameters of each layer, got an object of": {
        "layers": LAYERS[1]
    },
    f"layers[1] must be one of {PARAMETERS}, or a pair of them, got an object of": {
        "layers": [LAYERS[0], None]
    },
    f"layers[0] must be one of {PARAMETERS}, or a pair of them, got 3 elements": {
        "layers": [[LAYERS[1]] * 3]
    },
    f"layers[0][1] must be one of {PARAMETERS}, got an object of type int": {
        "layers": [(LAYERS[1], 1)]
    },
    "layers[1]: weight_x must have shape (12, 2), that of the units and inputs, got (12, 7)": {
        "layers": [LAYERS[2][0]._replace(weight_x=np.zeros((8, 2))), LAYERS[1]],
        "states": None,
        "x": np.zeros((3, 3, 2)),
    },
    "layers[0][0]: weight_x must have shape (12, 5)": {"x": np.zeros((3, 3, 5))},
    "layers[0][0]: norm must be 'layer'": {"norm": "group"},
    "layers[1]: h must have shape (3, 3)": {"states": [None, (H[:2], C), None]},
    "states must be None or a tuple with 3 elements, one for each layer, got 2": {
        "states": STATES[:2]
    },
    "states must be None or a tuple with 3 elements, one for each layer, got an object of": {
        "states": H
    },
    "states[0] must be None or a tuple with 2 elements, one for each direction, got 1": {
        "states": [STATES[0][:1], None, None]
    },
    "states[0][0] must be None or a tuple with 2 elements, h and c, got an object of": {
        "states": [(H, C), None, None]
    },
    "states[1] must be None or a tuple with 2 elements, h and c, got 1": {
        "states": [None, (H,), None]
    },
    "x must have 3 axes, of time, batch and inputs, or 2 without": {"x": np.zeros(5)},
    "lengths must be between 0 and 3": {"lengths": [5, 1, 1]},
    "batch_first must be True or False": {"batch_first": 1},
    "eps must be at least 0, got -1": {"eps": -1.0},
    "zoneout must be between 0 and 1, got 2": {"zoneout": 2},
    "layers[0][0]: zoneout must be a number, or one for each of h, c, got 3": {
        "zoneout": [0.1] * 3
    },
    "dropout must be at least 0 and less than 1, got 1": {"dropout": 1},
    "dropout must be at least 0 and less than 1, got -0.5": {"dropout": -0.5},
    "dropout must be a number, got 'half'": {"dropout": "half"},
    "rng must be a numpy.random.Generator if dropout is not 0, got None": {"dropout": 0.5},
    "rng must be a numpy.random.Generator, got int": {"dropout": 0.5, "rng": 1},
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("function", [rnn.stacked, rnn.stacked_forward])
def test_errors(function, message):
    arguments = {"x": X, "layers": LAYERS, "states": STATES} | MESSAGES[message]
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_that_there_are_not():
    with pytest.raises(TypeError, match="unexpected keyword argument 'reverse'"):
        rnn.stacked(X, LAYERS, reverse=True)


BACKWARD_MESSAGES = {
    "saved must be what stacked_forward returned, got an object of type int": {"saved": 1},
    "dy must have shape (3, 3, 5), that of y, got (3, 3, 4)": {"dy": np.zeros((3, 3, 4))},
    "dstates[1] must be None or a tuple with 2 elements": {"dstates": [None, H, None]},
    "layers[1]: dc must have shape (3, 3)": {"dstates": [None, (H, C[1:]), None]},
}


@pytest.mark.parametrize("message", BACKWARD_MESSAGES)
def test_errors_of_the_backward_pass(message):
    y, _, saved = rnn.stacked_forward(X, LAYERS)
    arguments = {"dy": y, "saved": saved} | BACKWARD_MESSAGES[message]
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.stacked_backward(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# All layers of a module of PyTorch, by names; values are compared in test_stacked_torch.py.


def torch_state(**others):
    state = {}
    for place, inputs in (("l0", 2), ("l0_reverse", 2), ("l1", 6), ("l1_reverse", 6)):
        state[f"weight_ih_{place}"] = np.zeros((12, inputs))
        state[f"weight_hh_{place}"] = np.zeros((12, 3))
    return state | others


def test_layers_by_the_names_of_pytorch():
    layers = rnn.layers_from_torch(torch_state(bias_hh_l1=np.ones(12)), rnn.lstm_from_torch)
    assert [[p.weight_x.shape for p in pair] for pair in layers] == [[(12, 2)] * 2, [(12, 6)] * 2]
    assert [[p.bias is None for p in pair] for pair in layers] == [[True, True], [False, True]]


def test_layers_of_a_module_by_its_class(monkeypatch):
    # In the place of PyTorch, which is not imported.
    classes = {
        name: type(name, (), {"state_dict": lambda self: torch_state()})
        for name in ("LSTM", "GRU", "RNN", "Linear")
    }
    monkeypatch.setitem(sys.modules, "torch.nn", types.SimpleNamespace(**classes))
    subclass = type("Mine", (classes["LSTM"],), {})
    for module in (classes["LSTM"](), subclass()):
        layers = rnn.layers_from_torch(module)
        expected = rnn.layers_from_torch(torch_state(), rnn.lstm_from_torch)
        for one, other in zip(layers, expected, strict=True):
            assert all(
                np.array_equal(a.weight_x, b.weight_x) for a, b in zip(one, other, strict=True)
            )
    with pytest.raises(TypeError, match=r"^state must be a torch\.nn\.LSTM, GRU or RNN, or a"):
        rnn.layers_from_torch(classes["Linear"]())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (None, rnn.lstm_from_torch),
            "state must be a torch.nn.LSTM, GRU or RNN, or a state_dict(), got None",
        ),
        ((torch_state(), None), "from_torch must be a function, such as lstm_from_torch, got None"),
    ],
    ids=["state", "from_torch"],
)
def test_layers_by_the_names_of_pytorch_of_something_else(arguments, message):
    with pytest.raises(TypeError) as caught:
        rnn.layers_from_torch(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state must have 'weight_ih_l0', which is missing"),
        (torch_state(weight_ih_l2=np.zeros((12, 6))), "state must have 'weight_hh_l2', which is"),
        (torch_state(weight_hr=1), "state must have nothing but weight_ih, weight_hh, bias_ih"),
        (torch_state(bias_ih_l0=np.ones(3)), "l0: bias_ih must have shape (12,)"),
    ],
    ids=["empty", "missing", "unknown", "shape"],
)
def test_errors_of_layers_by_the_names_of_pytorch(state, message):
    with pytest.raises(ValueError) as caught:
        rnn.layers_from_torch(state, rnn.lstm_from_torch)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
