"""The public functions of an LSTM on device arrays of every library, beside the host's."""

import sys

import cells
import numpy as np
import pytest
from fake_libraries import cupy
from test_lstm_kernels import assert_close

from numnorm import rnn
from numnorm.rnn import LSTMParameters
from numnorm.rnn.forms import lstm_form

LENGTHS = [2, 4, 0, 3]
FORMS = [
    *((norm, "paper") for norm in ("layer", "rms", "ada", None)),
    *(("layer", variant) for variant in ("normalized_cell", "per_gate", "cell_only")),
]


@pytest.fixture
def products(library, monkeypatch):
    """Each library; Numba's arrays have their products made by CuPy."""
    if library.called == "numba":
        monkeypatch.setitem(sys.modules, "cupy", cupy()["cupy"])
    return library


class Case:
    """An LSTM with the arguments that its functions take, on the host."""

    def __init__(self, norm="layer", variant="paper", *, units=5, time=4, batch=4, seed=0):
        rng = np.random.default_rng(seed)
        self.norm = {"norm": norm, "variant": variant}
        self.parameters = cells.parameters(lstm_form(norm, variant).cell, units, 3, seed=seed)
        self.x = rng.normal(size=(time, batch, 3))
        self.h, self.c, self.dh, self.dc = rng.normal(size=(4, batch, units))
        self.dy = rng.normal(size=(time, batch, units))

    def to(self, take, dtype, of_parameters=None):
        """The same on a device, its arrays taken in a dtype."""
        other = Case.__new__(Case)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                value = take(np.array(value, dtype, order="C"))
            setattr(other, name, value)
        other.parameters = LSTMParameters(
            *(
                None if p is None else take(np.array(p, of_parameters or dtype, order="C"))
                for p in self.parameters
            )
        )
        return other

    def run(self, **options):
        """All results of `lstm_forward` and `lstm_backward`, by name."""
        found = rnn.lstm_forward(self.x, self.parameters, self.h, self.c, **self.norm, **options)
        y, h, c, saved = found
        gradients = rnn.lstm_backward(self.dy, saved, self.dh, self.dc)
        named = {"y": y, "h": h, "c": c, "dx": gradients.dx, "dh": gradients.dh}
        of_parameters = gradients.parameters._asdict()
        return named | {"dc": gradients.dc} | {f"d{k}": v for k, v in of_parameters.items()}


def assert_same(found, expected, dtype):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None
        else:
            assert (found[name].host.dtype, found[name].host.shape) == (dtype, value.shape), name
            # float32 roundings grow on the way back through the steps.
            if value.size:
                assert_close(found[name].host, value, dtype, name, 5 if name[0] == "d" else 1)


@pytest.mark.parametrize(("norm", "variant"), FORMS)
def test_forms(imported, norm, variant):
    case, take = Case(norm, variant), imported("torch").take
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
def test_sequences(imported, lengths, reverse, batch_first):
    check_sequences(imported("torch"), lengths, reverse, batch_first)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
def test_libraries(products, lengths):
    check_sequences(products, lengths, lengths is not None, batch_first=True)


def check_sequences(library, lengths, reverse, batch_first):
    case = Case()
    if batch_first:
        case.x, case.dy = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (case.x, case.dy))
    options = {"lengths": lengths, "reverse": reverse, "batch_first": batch_first}
    found = case.to(library.take, "float32").run(**options)
    assert_same(found, case.run(**options), "float32")
    assert all(type(f) is type(library.take(np.zeros(1))) for f in found.values())


def test_any_order_of_threads(imported, order):
    case, take = Case(), imported("torch").take
    found = case.to(take, "float32").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float32")


@pytest.mark.parametrize("drawn", [False, True], ids=["expected", "drawn"])
def test_zoneout(products, drawn):
    lengths = LENGTHS if drawn else None

    def options():
        rng = np.random.default_rng(7) if drawn else None
        return {"lengths": lengths, "zoneout": (0.25, 0.5), "rng": rng}

    case = Case()
    expected = case.run(**options())
    assert_same(case.to(products.take, "float64").run(**options()), expected, "float64")


def test_no_states(products):
    case = Case()
    case.h = case.c = case.dh = case.dc = None
    expected = case.run(lengths=LENGTHS)
    assert_same(case.to(products.take, "float64").run(lengths=LENGTHS), expected, "float64")


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
def test_nothing(products, time, batch):
    case = Case(time=time, batch=batch)
    assert_same(case.to(products.take, "float32").run(), case.run(), "float32")


def test_padding_does_not_leak(products):
    case = Case()
    expected = case.run(lengths=LENGTHS)
    for sequence, length in enumerate(LENGTHS):
        case.x[length:, sequence] = case.dy[length:, sequence] = np.nan
    found = case.to(products.take, "float64").run(lengths=LENGTHS)
    assert_same(found, expected, "float64")
    for sequence, length in enumerate(LENGTHS):
        assert not found["y"].host[length:, sequence].any()
        assert not found["dx"].host[length:, sequence].any()


def test_without_saving(products):
    case = Case().to(products.take, "float32")
    given = case.x, case.parameters, case.h, case.c
    for options in ({"lengths": LENGTHS}, {"zoneout": 0.5, "reverse": True}):
        found, saved = rnn.lstm(*given, **options), rnn.lstm_forward(*given, **options)
        for one, other in zip(found, saved[:3], strict=True):
            assert one.host.tobytes() == other.host.tobytes()


def test_cell(products):
    case = Case(time=1)
    expected = case.run()
    case = case.to(products.take, "float32")
    x, dh = products.take(case.x.host[0]), products.take(case.dh.host + case.dy.host[0])
    given = x, case.parameters, case.h, case.c
    h, c, saved = rnn.lstm_cell_forward(*given)
    gradients = rnn.lstm_cell_backward(dh, saved, case.dc)
    of_parameters = gradients.parameters._asdict()
    named = {"y": h, "h": h, "c": c, "dx": gradients.dx, "dh": gradients.dh, "dc": gradients.dc}
    expected |= {"y": expected["h"], "dx": expected["dx"][0]}
    assert_same(named | {f"d{k}": v for k, v in of_parameters.items()}, expected, "float32")
    for one, other in zip(rnn.lstm_cell(*given), (h, c), strict=True):
        assert one.host.tobytes() == other.host.tobytes()


def test_the_arguments_are_only_read(products):
    case = Case()
    device = case.to(products.take, "float32")
    before = {k: v.host.copy() for k, v in vars(device).items() if hasattr(v, "host")}
    device.run(zoneout=0.5)
    for name, value in before.items():
        assert (getattr(device, name).host == value).all(), name


@pytest.mark.parametrize(
    ("dtype", "of_parameters"), [("float32", "float64"), ("float64", "float32")]
)
def test_parameters_of_another_dtype(imported, dtype, of_parameters):
    case, library = Case(), imported("torch")
    found = case.to(library.take, dtype, of_parameters).run(lengths=LENGTHS)
    expected = case.run(lengths=LENGTHS)
    for name, value in expected.items():
        wanted = of_parameters if name[1:] in LSTMParameters._fields else dtype
        assert found[name].host.dtype == wanted
        assert_close(found[name].host, value, "float32", name, 5)


def test_half_precision(imported):
    case, library = Case(), imported("torch")
    found = case.to(library.take, "float16").run(lengths=LENGTHS)
    same = Case()
    for name in ("x", "h", "c", "dy", "dh", "dc"):
        setattr(same, name, getattr(same, name).astype(np.float16).astype(np.float64))
    same.parameters = LSTMParameters(*(p.astype(np.float16) for p in same.parameters))
    for name, value in same.run(lengths=LENGTHS).items():
        got = found[name].host
        assert got.dtype == np.float16
        # Half a unit in the last place, 2^-11, and roundings of float32 that cross it.
        np.testing.assert_allclose(got.astype(np.float64), value, 1e-3, 1e-5, err_msg=name)


def test_jax_without_float64(imported):
    library, case = imported("jax"), Case()
    library.config.jax_enable_x64 = False
    options = {"lengths": LENGTHS, "zoneout": 0.5}
    found = case.to(library.take, "float32").run(rng=np.random.default_rng(3), **options)
    expected = case.run(rng=np.random.default_rng(3), **options)
    assert_same(found, expected, "float32")


# Errors


def test_host_and_device_do_not_mix(library):
    case = Case()
    device = case.to(library.take, "float32")
    parameters = case.parameters
    _, _, _, saved = rnn.lstm_forward(case.x, parameters)
    calls = {
        "weight_h must be a .* on device 0, as x is": lambda: rnn.lstm(device.x, parameters),
        "gamma_c must be a .* on device 0": lambda: rnn.lstm(
            device.x, device.parameters._replace(gamma_c=parameters.gamma_c)
        ),
        "c must be a .* on device 0": lambda: rnn.lstm(device.x, device.parameters, c=case.c),
        "weight_h must lie on the host": lambda: rnn.lstm(case.x, device.parameters),
        "h must lie on the host": lambda: rnn.lstm(case.x, parameters, device.h),
        "dy must lie on the host": lambda: rnn.lstm_backward(device.dy, saved),
        "packed for the host": lambda: rnn.lstm(device.x, rnn.lstm_pack(parameters)),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=message):
            call()


def test_what_is_not_there_says_so(library):
    case = Case().to(library.take, "float32")
    rng = np.random.default_rng(0)
    gru = rnn.gru_init(3, 5, rng=rng)
    gru = type(gru)(*(None if p is None else library.take(p) for p in gru))
    elman = rnn.rnn_init(3, 5, rng=rng)
    elman = type(elman)(*(None if p is None else library.take(p) for p in elman))
    calls = {
        "a GRU": lambda: rnn.gru(case.x, gru),
        "an RNN": lambda: rnn.rnn(case.x, elman),
        "stacked": lambda: rnn.stacked(case.x, [case.parameters]),
        "lstm_pack": lambda: rnn.lstm_pack(case.parameters),
    }
    for what, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"^{what} is not there yet .* to the host$"):
            call()


def test_shapes_are_checked(library):
    case = Case().to(library.take, "float32")
    wrong = case.parameters._replace(bias=library.take(np.zeros(19, np.float32)))
    calls = {
        "x must have 3 axes": lambda: rnn.lstm(case.h, case.parameters),
        "bias must have shape": lambda: rnn.lstm(case.x, wrong),
        "h must have shape": lambda: rnn.lstm(case.x, case.parameters, case.x),
        "weight_h must have shape": lambda: rnn.lstm(
            case.x, case.parameters._replace(weight_h=case.x)
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
