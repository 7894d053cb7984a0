"""The public functions of a plain recurrent network on device arrays, beside the host's."""

import ml_dtypes
import numpy as np
import pytest
import rnn_problems
import test_device_lstm
from test_device_lstm import LENGTHS, assert_same, products  # noqa: F401  # a fixture among them
from test_lstm_kernels import assert_close

from numnorm import rnn
from numnorm.rnn import RNNParameters
from numnorm.rnn.forms import rnn_form


class Case(test_device_lstm.Case):
    """A plain recurrent network with the arguments that its functions take, on the host."""

    def __init__(self, norm="layer", nonlinearity="tanh", *, units=5, time=4, batch=4, seed=0):
        rng = np.random.default_rng(seed)
        self.norm = {"norm": norm, "nonlinearity": nonlinearity}
        form = rnn_form(norm, nonlinearity).cell
        self.parameters = rnn_problems.parameters(form, units, 3, seed=seed)
        self.x = rng.normal(size=(time, batch, 3))
        self.h, self.dh = rng.normal(size=(2, batch, units))
        self.dy = rng.normal(size=(time, batch, units))

    def run(self, **options):
        """All results of `rnn_forward` and `rnn_backward`, by name."""
        y, h, saved = rnn.rnn_forward(self.x, self.parameters, self.h, **self.norm, **options)
        gradients = rnn.rnn_backward(self.dy, saved, self.dh)
        named = {"y": y, "h": h, "dx": gradients.dx, "dh": gradients.dh}
        return named | {f"d{k}": v for k, v in gradients.parameters._asdict().items()}


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada", None])
def test_forms(imported, norm, nonlinearity):
    case, take = Case(norm, nonlinearity), imported("torch").take
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
def test_sequences(products, lengths, reverse, batch_first):  # noqa: F811
    case = Case()
    if batch_first:
        case.x, case.dy = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (case.x, case.dy))
    options = {"lengths": lengths, "reverse": reverse, "batch_first": batch_first}
    found = case.to(products.take, "float32").run(**options)
    assert_same(found, case.run(**options), "float32")
    assert all(type(f) is type(products.take(np.zeros(1))) for f in found.values())


@pytest.mark.parametrize("drawn", [False, True], ids=["expected", "drawn"])
def test_zoneout(products, drawn):  # noqa: F811
    def options():
        rng = np.random.default_rng(7) if drawn else None
        return {"lengths": LENGTHS if drawn else None, "zoneout": 0.25, "rng": rng}

    case = Case()
    expected = case.run(**options())
    assert_same(case.to(products.take, "float64").run(**options()), expected, "float64")


def test_no_states(products):  # noqa: F811
    case = Case()
    case.h = case.dh = None
    expected = case.run(lengths=LENGTHS)
    assert_same(case.to(products.take, "float64").run(lengths=LENGTHS), expected, "float64")


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
def test_nothing(products, time, batch):  # noqa: F811
    case = Case(time=time, batch=batch)
    assert_same(case.to(products.take, "float32").run(), case.run(), "float32")


def test_padding_does_not_leak(products):  # noqa: F811
    case = Case()
    expected = case.run(lengths=LENGTHS)
    for sequence, length in enumerate(LENGTHS):
        case.x[length:, sequence] = case.dy[length:, sequence] = np.nan
    assert_same(case.to(products.take, "float64").run(lengths=LENGTHS), expected, "float64")


def test_without_saving(products):  # noqa: F811
    case = Case().to(products.take, "float32")
    given = case.x, case.parameters, case.h
    for options in ({"lengths": LENGTHS}, {"zoneout": 0.5, "reverse": True}):
        found, saved = rnn.rnn(*given, **options), rnn.rnn_forward(*given, **options)
        for one, other in zip(found, saved[:2], strict=True):
            assert one.host.tobytes() == other.host.tobytes()


def test_cell(products):  # noqa: F811
    case = Case(time=1)
    expected = case.run()
    case = case.to(products.take, "float32")
    x, dh = products.take(case.x.host[0]), products.take(case.dh.host + case.dy.host[0])
    h, saved = rnn.rnn_cell_forward(x, case.parameters, case.h)
    gradients = rnn.rnn_cell_backward(dh, saved)
    named = {"y": h, "h": h, "dx": gradients.dx, "dh": gradients.dh}
    named |= {f"d{k}": v for k, v in gradients.parameters._asdict().items()}
    assert_same(named, expected | {"y": expected["h"], "dx": expected["dx"][0]}, "float32")
    assert rnn.rnn_cell(x, case.parameters, case.h).host.tobytes() == h.host.tobytes()


def test_the_arguments_are_only_read(products):  # noqa: F811
    device = Case().to(products.take, "float32")
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
    for name, value in case.run(lengths=LENGTHS).items():
        wanted = of_parameters if name[1:] in RNNParameters._fields else dtype
        assert found[name].host.dtype == wanted
        assert_close(found[name].host, value, "float32", name, 5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(imported, dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    case, library = Case(), imported("torch")
    found = case.to(library.take, kind).run(lengths=LENGTHS)
    same = Case()
    for name in ("x", "h", "dy", "dh"):
        setattr(same, name, getattr(same, name).astype(kind).astype(np.float64))
    same.parameters = RNNParameters(*(p.astype(kind) for p in same.parameters))
    # Half a unit in the last place, and roundings of float32 that cross it.
    bound = 1.01 * float(ml_dtypes.finfo(kind).eps)
    for name, value in same.run(lengths=LENGTHS).items():
        got = found[name].host
        assert got.dtype == kind
        wide = np.asarray(value).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), wide, bound, 1e-5, err_msg=name)


def test_gradients_of_biases_do_not_share_memory(products):  # noqa: F811
    # Though they are equal: what the caller does to one must not change the other.
    found = Case().to(products.take, "float32").run()
    assert (found["dbias"].host == found["dbeta"].host).all()
    assert not np.shares_memory(found["dbias"].host, found["dbeta"].host)


def test_jax_without_float64(imported):
    library, case = imported("jax"), Case()
    library.config.jax_enable_x64 = False
    options = {"lengths": LENGTHS, "zoneout": 0.5}
    found = case.to(library.take, "float32").run(rng=np.random.default_rng(3), **options)
    assert_same(found, case.run(rng=np.random.default_rng(3), **options), "float32")


def test_host_and_device_do_not_mix(library):
    case = Case()
    device, parameters = case.to(library.take, "float32"), case.parameters
    calls = {
        "weight_h must be a .* on device 0, as x is": lambda: rnn.rnn(device.x, parameters),
        "h must be a .* on device 0": lambda: rnn.rnn(device.x, device.parameters, case.h),
        "weight_h must lie on the host": lambda: rnn.rnn(case.x, device.parameters),
        "h must lie on the host": lambda: rnn.rnn(case.x, parameters, device.h),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("name", ["dy", "gamma", "weight_h"])
def test_arrays_that_begin_anywhere(imported, name):
    # Whole pieces of units, but not all of them at multiples of 16 bytes.
    case, library = Case(units=8), imported("torch")
    expected, device = case.run(lengths=LENGTHS), case.to(library.take, "float32")

    def behind(array):
        whole = np.concatenate(([0], array.host.ravel())).astype(array.host.dtype)
        return library.take(whole[1:].reshape(array.host.shape))

    if name == "dy":
        device.dy = behind(device.dy)
    else:
        moved = {name: behind(getattr(device.parameters, name))}
        device.parameters = device.parameters._replace(**moved)
    assert_same(device.run(lengths=LENGTHS), expected, "float32")
