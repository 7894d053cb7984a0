"""Layers of recurrent cells on device arrays of every library, beside the host's."""

import cell_cases as cells
import ml_dtypes
import numpy as np
import pytest
from cell_calls import projected
from cell_steps import assert_close
from fake_libraries import STREAMS

from numnorm import rnn
from numnorm.backends import cuda as backend
from numnorm.rnn.parameters import GRU, LSTM, RNN

LENGTHS = [2, 4, 0, 3]
UNITS = 3
LSTMS = rnn.LSTMParameters, rnn.ProjectedLSTMParameters


def lstm(inputs, seed):
    return cells.parameters(cells.spec_of(LSTM), UNITS, inputs, seed=seed)


def gru(inputs, seed):
    return cells.parameters(cells.spec_of(GRU), UNITS, inputs, seed=seed)


def elman(inputs, seed, norm="layer"):
    return cells.parameters(cells.spec_of(RNN, norm=norm), UNITS, inputs, seed=seed)


def problem(layers=None, *, time=4, batch=4):
    """x, layers and states: both directions below one, of all kinds."""
    rng = np.random.default_rng(0)
    layers = layers or [(lstm(3, 0), elman(3, 1)), gru(2 * UNITS, 2), lstm(UNITS, 3)]

    def of(parameters):
        count = 2 if isinstance(parameters, LSTMS) else 1
        return tuple(rng.normal(size=(batch, UNITS)) for _ in range(count))

    states = [tuple(map(of, layer)) if type(layer) is tuple else of(layer) for layer in layers]
    return rng.normal(size=(time, batch, 3)), layers, states


def everywhere(function, value):
    """The same structure with a function of every array."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        found = [everywhere(function, element) for element in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return function(value)


def taken(library, dtype, *values):
    return everywhere(lambda a: library.take(np.array(a, dtype, order="C")), values)


def run(x, layers, states, dy, **options):
    y, last, saved = rnn.stacked_forward(x, layers, states, **options)
    return y, last, *rnn.stacked_backward(dy, saved, last)


def assert_same(found, expected, dtype, scale=5):
    if isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, dtype, scale)
    elif expected is None:
        assert found is None
    else:
        assert found.host.dtype == dtype
        if expected.size:
            assert_close(found.host, expected, np.dtype(dtype).name, scale=scale)
        else:
            assert found.host.shape == expected.shape


def check(library, dtype="float64", layers=None, *, sizes=None, swapped=False, **options):
    x, layers, states = problem(layers, **(sizes or {}))
    width = 2 * UNITS if type(layers[-1]) is tuple else UNITS
    dy = np.random.default_rng(1).normal(size=(*x.shape[:2], width))
    if swapped:
        x, dy, options["batch_first"] = x.swapaxes(0, 1), dy.swapaxes(0, 1), True

    def drawing():
        drops = options.keys() & {"dropout", "recurrent_dropout"}
        return {"rng": np.random.default_rng(5)} if drops else {}

    expected = run(x, layers, states, dy, **options, **drawing())
    on_device = taken(library, dtype, x, layers, states, dy)
    found = run(*on_device, **options, **drawing())
    assert_same(found, expected, dtype)
    assert type(found[0]) is type(found[2]) is type(on_device[0])
    return on_device, found


def test_libraries(products):
    check(products, lengths=LENGTHS)


def test_dropout(products):
    check(products, "float32", lengths=LENGTHS, dropout=0.4)


def test_projections(products):
    below, beside = (projected(lstm(3, seed), np.random.default_rng(seed)) for seed in range(2))
    check(products, layers=[(below, beside), gru(2 * UNITS, 2)], lengths=LENGTHS)


def test_both_directions_on_top(products):
    layers = [elman(3, 0), (elman(UNITS, 1), elman(UNITS, 2))]
    check(products, "float32", layers, dropout=0.25, swapped=True, lengths=LENGTHS)


@pytest.mark.parametrize("options", [
    {},
    {"zoneout": 0.25},
    {"zoneout": 0.25, "dropout": 0.5},
    {"zoneout": 0.25, "dropout": 0.5, "recurrent_dropout": 0.25},
    {"norm": "rms", "layers": [elman(3, 0, "rms")]},
    {"reset_after": False, "layers": [(gru(3, 0), gru(3, 1)), gru(2 * UNITS, 2)]},
    {"nonlinearity": "relu", "layers": [elman(3, 0), elman(UNITS, 1)]},
    {"sizes": {"time": 0}},
    {"sizes": {"batch": 0}},
    {"sizes": {"batch": 0}, "dropout": 0.5, "layers": [(elman(3, 0), elman(3, 1)), elman(6, 1)]},
], ids=lambda options: "-".join(options) or "none")  # fmt: skip
def test_options(imported, options):
    check(imported("torch"), **options)


def test_any_order_of_threads(imported, order):
    check(imported("torch"), "float32", lengths=LENGTHS, dropout=0.4)


def test_without_saving(products):
    x, layers, states = taken(products, "float32", *problem())
    options = {"lengths": LENGTHS, "dropout": 0.5}
    plain = rnn.stacked(x, layers, states, rng=np.random.default_rng(2), **options)
    saved = rnn.stacked_forward(x, layers, states, rng=np.random.default_rng(2), **options)
    assert plain.y.host.tobytes() == saved.y.host.tobytes()
    assert_same(plain.states, everywhere(lambda a: a.host, saved.states), "float32", 0)


def test_packed(imported):
    library = imported("torch")
    x, layers, states = taken(library, "float32", *problem())
    pack = {kind.parameters: getattr(rnn, f"{kind.name}_pack") for kind in (LSTM, GRU, RNN)}
    (one, other), *rest = layers
    packed = [(pack[type(one)](one), pack[type(other)](other))]
    packed += [pack[type(layer)](layer) for layer in rest]
    found, expected = rnn.stacked(x, packed, states), rnn.stacked(x, layers, states)
    assert found.y.host.tobytes() == expected.y.host.tobytes()


def test_no_states(imported):
    x, layers, _ = problem()
    library = imported("torch")
    expected = rnn.stacked_forward(x, layers)
    found = rnn.stacked_forward(*taken(library, "float64", x, layers))
    assert_same(found[:2], expected[:2], "float64")
    (dy,) = taken(library, "float64", expected.y)
    assert_same(
        rnn.stacked_backward(dy, found.saved),
        rnn.stacked_backward(expected.y, expected.saved),
        "float64",
    )


# Between the layers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_between_layers_gives_the_bytes_of_the_host(imported, dtype):
    from numnorm.backends import cpu as host

    library, rng = imported("torch"), np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    one, other = rng.normal(size=(2, 5, 7, 9)).astype(kind)
    one[0, 0, :2] = np.nan, np.inf
    mask, gain = rng.random(one.shape) < 0.5, 1 / 0.7
    a, b = library.take(one), library.take(other)
    with np.errstate(invalid="ignore"):
        pairs = [
            (backend.add(a, b), host.add(one, other)),
            (
                backend.apply_mask(a, backend.as_mask(mask, a), gain),
                host.apply_mask(one, mask, gain),
            ),
            (backend.concatenate([a, b]), host.concatenate([one, other])),
            *zip(backend.split(a, (2, 7)), host.split(one, (2, 7)), strict=True),
        ]
    transposed = library.take(np.ascontiguousarray(one.swapaxes(0, 1))).permute((1, 0, 2))
    pairs += zip(backend.split(transposed, (4, 5)), host.split(one, (4, 5)), strict=True)
    pairs += [(backend.add(b, transposed), host.add(other, one))]
    for found, expected in pairs:
        assert found.host.dtype == kind and found.host.shape == expected.shape
        np.testing.assert_array_equal(found.host.astype(float), expected.astype(float))
    assert backend.split(a, (9,))[0] is a


def test_everything_is_queued_on_the_streams_of_the_library(imported, monkeypatch):
    import simulated_target

    library, streams = imported("torch"), set()
    launch = simulated_target.Kernel.launch

    def seen(self, blocks, stream, *arguments):
        streams.add(stream)
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(simulated_target.Kernel, "launch", seen)
    check(library, "float32", dropout=0.5)
    assert streams == {STREAMS["torch"]}


# Errors


def test_host_and_device_do_not_mix(products):
    x, layers, states = problem()
    on_device, of_device, states_there = taken(products, "float32", x, layers, states)
    _, _, saved = rnn.stacked_forward(x, layers)
    y, _, saved_there = rnn.stacked_forward(on_device, of_device)
    blend = [of_device[0], layers[1], of_device[2]]
    calls = {
        r"layers\[0\]\[0\]: weight_h must be a .* on device 0": lambda: rnn.stacked(
            on_device, layers
        ),
        r"layers\[1\]: weight_h must be a .* on device 0": lambda: rnn.stacked(on_device, blend),
        r"layers\[0\]\[0\]: weight_h must lie on the host": lambda: rnn.stacked(x, of_device),
        r"layers\[0\]\[0\]: h must lie on the host": lambda: rnn.stacked(x, layers, states_there),
        "dy must lie on the host": lambda: rnn.stacked_backward(y, saved),
        "dy must be a .* on device 0, as x is": lambda: rnn.stacked_backward(x, saved_there),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=f"^{message}"):
            call()


def test_what_is_refused_draws_nothing(products):
    x, layers, _ = taken(products, "float32", *problem())
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    (wrong,) = taken(products, "float32", lstm(UNITS + 1, 0))
    with pytest.raises(ValueError, match=r"layers\[2\]: weight_x must have"):
        rnn.stacked(x, [*layers[:2], wrong], dropout=0.5, rng=rng)
    assert rng.bit_generator.state == before
    with pytest.raises(ValueError, match="x must have 3 axes"):
        rnn.stacked(layers[1].bias, layers)
