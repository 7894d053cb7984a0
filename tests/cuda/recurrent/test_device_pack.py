"""Parameters of recurrent cells packed on a device, for calls with arrays of every library."""

import copy

import numpy as np
import pytest
from cell_calls import KINDS, LENGTHS, Case
from cell_steps import assert_close

from numnorm import rnn
from numnorm.rnn.parameters import RNN


def packed(case, **options):
    """The same case with its parameters packed."""
    other = copy.copy(case)
    other.parameters = getattr(rnn, f"{case.kind.name}_pack")(case.parameters, **options)
    return other


@KINDS
def test_the_same_bytes_as_without(products, kind):
    case = Case(kind).to(products.take, "float32")
    ready, expected = packed(case), case.run(lengths=LENGTHS)
    found = ready.run(lengths=LENGTHS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].host.tobytes() == value.host.tobytes(), name
    states, others = (given.call(lengths=LENGTHS) for given in (ready, case))
    for one, other in zip(states, others, strict=True):
        assert one.host.tobytes() == other.host.tobytes()


@KINDS
def test_cell_step_by_step(imported, kind):
    case, library = Case(kind), imported("torch")
    case.states = ()
    _, *expected = case.call()
    device = packed(case.to(library.take, "float64"), dtype="float64")
    for x in case.x:
        device.x = library.take(x.copy())
        states = device.call("_cell")
        device.states = states if isinstance(states, tuple) else (states,)
    for got, value in zip(device.states, expected, strict=True):
        assert_close(got.host, value, "float64")


@KINDS
def test_they_are_copied(products, kind):
    case = Case(kind).to(products.take, "float32")
    ready = packed(case)
    before = ready.call().y.host.copy()
    for parameter in case.parameters:
        parameter.host[...] = np.nan
    assert (ready.call().y.host == before).all()


@KINDS
def test_gradients_have_the_dtypes_of_what_was_packed(imported, kind):
    case, library = Case(kind), imported("torch")
    expected = case.run()
    found = packed(case.to(library.take, "float16", "float64")).run()
    assert found["y"].host.dtype == found["dx"].host.dtype == np.float16
    for name in (f"d{field}" for field in kind.parameters._fields):
        assert found[name].host.dtype == np.float64
        assert_close(found[name].host, expected[name], "float32", name, 300)  # 2**-11 of x and dy


@KINDS
def test_strided_parameters(imported, kind):
    case, library = Case(kind), imported("torch")
    device = case.to(library.take, "float64")
    transposed = library.take(np.ascontiguousarray(case.parameters.weight_h.T)).permute((1, 0))
    device.parameters = device.parameters._replace(weight_h=transposed)
    found = packed(device, dtype=np.float64).call()
    assert_close(found.y.host, case.call().y, "float64")


def test_another_place(library, imported):
    case = Case()
    device, far = case.to(library.take, "float32"), case.to(lambda a: library.take(a, 1), "float32")
    packed = rnn.lstm_pack(device.parameters)
    other = imported("torch" if library.called != "torch" else "cupy")
    others = case.to(other.take, "float32")
    on_host = rnn.lstm_pack(case.parameters, dtype=np.float64)
    calls = {
        "parameters must lie where x does, got them packed for a device": (case.x, packed),
        "parameters must lie where x does, got them packed for the host": (device.x, on_host),
        "parameters must be packed for .* on device 1, as x is, got .* 0": (far.x, packed),
        "parameters must be packed for .* on device 0, as x is, got those for .*": (
            others.x,
            packed,
        ),
    }
    for message, given in calls.items():
        with pytest.raises(TypeError, match=f"^{message}$"):
            rnn.lstm(*given)


def test_streams_of_numba(imported):
    library, case = imported("numba"), Case()
    streams = [type("Stream", (), {"handle": n})() for n in (5, 6)]
    ready = packed(case.to(lambda a: library.take(a, stream=streams[0]), "float32"))
    x = library.take(case.x.astype(np.float32), stream=streams[1])
    with pytest.raises(ValueError, match="parameters must be bound to the stream of x"):
        rnn.lstm(x, ready.parameters)


def test_what_is_refused(library):
    case = Case()
    device = case.to(library.take, "float32")
    given = device.parameters
    calls = {
        "gamma_c must be a .* on device 0, as weight_h is": lambda: rnn.lstm_pack(
            given._replace(gamma_c=case.parameters.gamma_c)
        ),
        "gamma_x must lie on the host": lambda: rnn.lstm_pack(
            case.parameters._replace(gamma_x=given.gamma_x)
        ),
        "weight_x must be an array, got None": lambda: rnn.lstm_pack(given._replace(weight_x=None)),
        "dtype must be float16": lambda: rnn.lstm_pack(given, dtype=np.int32),
        "bias must have shape": lambda: rnn.lstm_pack(given._replace(bias=given.gamma_c)),
        "packed for the same norm and variant": lambda: rnn.lstm(
            device.x, rnn.lstm_pack(given, norm="layer", variant="normalized_cell")
        ),
        "packed for float32, got those for float64": lambda: rnn.lstm(
            device.x, rnn.lstm_pack(given, dtype=np.float64)
        ),
        "packed for lstm, got those for rnn": lambda: rnn.lstm(
            device.x, packed(Case(RNN).to(library.take, "float32")).parameters
        ),
    }
    for message, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_jax_without_float64(imported):
    library = imported("jax")
    case = Case().to(library.take, "float32")
    library.config.jax_enable_x64 = False
    assert packed(case).call().y.host.dtype == np.float32
    with pytest.raises(TypeError, match="dtype must not be float64"):
        packed(case, dtype=np.float64)
