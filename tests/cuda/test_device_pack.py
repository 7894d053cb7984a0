"""Parameters of recurrent cells packed on a device, for calls with arrays of every library."""

import numpy as np
import pytest
import test_device_lstm
import test_device_rnn
from test_device_lstm import products  # noqa: F401  # a fixture
from test_lstm_kernels import assert_close

from numnorm import rnn

LENGTHS = [2, 4, 0, 3]
CASES = {"lstm": test_device_lstm.Case, "rnn": test_device_rnn.Case}


def states_of(case):
    return [case.h] + ([case.c] if hasattr(case, "c") else [])


def call(name, suffix=""):
    return getattr(rnn, name + suffix)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bytes_as_without(products, name):  # noqa: F811
    case = CASES[name]().to(products.take, "float32")
    packed = call(name, "_pack")(case.parameters)
    for suffix in ("", "_forward"):
        expected = call(name, suffix)(case.x, case.parameters, *states_of(case), lengths=LENGTHS)
        found = call(name, suffix)(case.x, packed, *states_of(case), lengths=LENGTHS)
        for one, other in zip(found[: 1 + len(states_of(case))], expected, strict=False):
            assert one.host.tobytes() == other.host.tobytes()
    of_packed = call(name, "_backward")(case.dy, found.saved)
    of_plain = call(name, "_backward")(case.dy, expected.saved)
    assert of_packed.dx.host.tobytes() == of_plain.dx.host.tobytes()
    for one, other in zip(of_packed.parameters, of_plain.parameters, strict=True):
        assert one.host.tobytes() == other.host.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_cell_step_by_step(imported, name):
    case, library = CASES[name](), imported("torch")
    whole = call(name)(case.x, case.parameters)
    device = case.to(library.take, "float64")
    packed, states = call(name, "_pack")(device.parameters, dtype="float64"), ()
    for x in case.x:
        states = call(name, "_cell")(library.take(x.copy()), packed, *states)
        states = states if isinstance(states, tuple) else (states,)
    for got, expected in zip(states, whole[1:], strict=True):
        assert_close(got.host, expected, "float64")


@pytest.mark.parametrize("name", CASES)
def test_they_are_copied(products, name):  # noqa: F811
    case = CASES[name]().to(products.take, "float32")
    packed = call(name, "_pack")(case.parameters)
    before = call(name)(case.x, packed).y.host.copy()
    for parameter in case.parameters:
        parameter.host[...] = np.nan
    assert (call(name)(case.x, packed).y.host == before).all()


def test_gradients_have_the_dtypes_of_what_was_packed(imported):
    case, library = test_device_lstm.Case(), imported("torch")
    expected = case.run()
    device = case.to(library.take, "float16", "float64")
    packed = rnn.lstm_pack(device.parameters)
    y, _, _, saved = rnn.lstm_forward(device.x, packed, device.h, device.c)
    gradients = rnn.lstm_backward(device.dy, saved, device.dh, device.dc)
    assert y.host.dtype == gradients.dx.host.dtype == np.float16
    for name, value in gradients.parameters._asdict().items():
        assert value.host.dtype == np.float64
        assert_close(value.host, expected[f"d{name}"], "float32", name, 300)  # 2**-11 of x and dy


def test_strided_parameters(imported):
    case, library = test_device_rnn.Case(), imported("torch")
    expected = case.run()["y"]
    device = case.to(library.take, "float64")
    turned = library.take(np.ascontiguousarray(case.parameters.weight_h.T)).permute((1, 0))
    packed = rnn.rnn_pack(device.parameters._replace(weight_h=turned), dtype=np.float64)
    assert_close(rnn.rnn(device.x, packed, device.h).y.host, expected, "float64")


def test_another_place(library, imported):
    case = test_device_lstm.Case()
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
    library, case = imported("numba"), test_device_rnn.Case()
    streams = [type("Stream", (), {"handle": n})() for n in (5, 6)]
    of_first = case.to(lambda a: library.take(a, stream=streams[0]), "float32")
    packed = rnn.rnn_pack(of_first.parameters)
    x = library.take(case.x.astype(np.float32), stream=streams[1])
    with pytest.raises(ValueError, match="parameters must be bound to the stream of x"):
        rnn.rnn(x, packed)


def test_what_is_refused(library):
    case = test_device_lstm.Case()
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
            device.x, rnn.rnn_pack(test_device_rnn.Case().to(library.take, "float32").parameters)
        ),
    }
    for message, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_jax_without_float64(imported):
    library = imported("jax")
    case = test_device_rnn.Case().to(library.take, "float32")
    library.config.jax_enable_x64 = False
    assert rnn.rnn(case.x, rnn.rnn_pack(case.parameters)).y.host.dtype == np.float32
    with pytest.raises(TypeError, match="dtype must not be float64"):
        rnn.rnn_pack(case.parameters, dtype=np.float64)
