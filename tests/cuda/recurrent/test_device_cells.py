"""The public functions of recurrent cells on device arrays, beside the host's."""

import itertools

import cell_cases as cells
import numpy as np
import pytest
import simulated_target
from cell_calls import KINDS, LENGTHS, Case, assert_same, check_cell, check_half_precision
from cell_steps import assert_close
from devices import of_multiprocessors

from numnorm import rnn
from numnorm.backends.cuda.recurrent.persistent import plans as persistent_plans
from numnorm.rnn.parameters import GRU, LSTM, RNN

SPECS = [
    *((LSTM, {"norm": norm}) for norm in cells.NORMS),
    *((LSTM, {"variant": variant}) for variant in cells.VARIANTS[1:]),
    *((GRU, {"norm": norm}) for norm in cells.NORMS),
    *(
        (RNN, {"norm": norm, "nonlinearity": nonlinearity})
        for norm, nonlinearity in itertools.product(cells.NORMS, cells.NONLINEARITIES)
    ),
]


@pytest.fixture(autouse=True, params=["step by step", "at once"])
def way(request, monkeypatch):
    """A device that takes steps one by one, or one with room for few blocks, of two warps."""
    if request.param == "at once":
        monkeypatch.setattr(persistent_plans, "_WARPS", 2)
        monkeypatch.setattr(simulated_target, "LIMITS", of_multiprocessors(6))


def _id(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else value.name


@pytest.mark.parametrize(("kind", "norm"), SPECS, ids=_id)
def test_forms(imported, kind, norm):
    case, take = Case(kind, **norm), imported("torch").take
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")


@pytest.mark.parametrize(("lengths", "reverse", "batch_first"), [
    (None, False, False),
    (None, True, True),
    (LENGTHS, True, False),
    (LENGTHS, False, True),
])  # fmt: skip
@KINDS
def test_sequences(imported, kind, lengths, reverse, batch_first):
    check_sequences(imported("torch"), kind, lengths, reverse, batch_first)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@KINDS
def test_libraries(products, kind, lengths):
    check_sequences(products, kind, lengths, lengths is not None, batch_first=True)


def check_sequences(library, kind, lengths, reverse, batch_first):
    case = Case(kind)
    if batch_first:
        case.x, case.dy = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (case.x, case.dy))
    options = {"lengths": lengths, "reverse": reverse, "batch_first": batch_first}
    found = case.to(library.take, "float32").run(**options)
    assert_same(found, case.run(**options), "float32")
    assert all(type(f) is type(library.take(np.zeros(1))) for f in found.values())


@KINDS
def test_any_order_of_threads(imported, kind, order):
    case, take = Case(kind), imported("torch").take
    found = case.to(take, "float32").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float32")


@pytest.mark.parametrize("drawn", [False, True], ids=["expected", "drawn"])
@KINDS
def test_zoneout(products, kind, drawn):
    lengths = LENGTHS if drawn else None
    shares = (0.25, 0.5)[: len(kind.states)]

    def options():
        rng = np.random.default_rng(7) if drawn else None
        return {"lengths": lengths, "zoneout": shares, "rng": rng}

    case = Case(kind)
    expected = case.run(**options())
    assert_same(case.to(products.take, "float64").run(**options()), expected, "float64")


@KINDS
def test_no_states(products, kind):
    case = Case(kind)
    case.states = case.grads = (None,) * len(kind.states)
    expected = case.run(lengths=LENGTHS)
    assert_same(case.to(products.take, "float64").run(lengths=LENGTHS), expected, "float64")


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@KINDS
def test_without_a_batch(products, kind, reverse):
    case = Case(kind, batch=1)
    case.x, case.dy = case.x[:, 0], case.dy[:, 0]
    case.states, case.grads = (tuple(a[0] for a in group) for group in (case.states, case.grads))
    expected = case.run(reverse=reverse)
    assert_same(case.to(products.take, "float64").run(reverse=reverse), expected, "float64")


@KINDS
def test_a_loss_of_the_last_states(products, kind):
    case = Case(kind)
    case.dy = None
    expected = case.run(lengths=LENGTHS)
    assert_same(case.to(products.take, "float64").run(lengths=LENGTHS), expected, "float64")


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
@KINDS
def test_nothing(products, kind, time, batch):
    case = Case(kind, time=time, batch=batch)
    assert_same(case.to(products.take, "float32").run(), case.run(), "float32")


@KINDS
def test_padding_does_not_leak(products, kind):
    case = Case(kind)
    expected = case.run(lengths=LENGTHS)
    for sequence, length in enumerate(LENGTHS):
        case.x[length:, sequence] = case.dy[length:, sequence] = np.nan
    found = case.to(products.take, "float64").run(lengths=LENGTHS)
    assert_same(found, expected, "float64")
    for sequence, length in enumerate(LENGTHS):
        assert not found["y"].host[length:, sequence].any()
        assert not found["dx"].host[length:, sequence].any()


@KINDS
def test_without_saving(products, kind):
    case = Case(kind).to(products.take, "float32")
    for options in ({"lengths": LENGTHS}, {"zoneout": 0.5, "reverse": True}):
        found, saved = case.call(**options), case.call("_forward", **options)
        for one, other in zip(found, saved[:-1], strict=True):
            assert one.host.tobytes() == other.host.tobytes()


@KINDS
def test_cell(products, kind):
    check_cell(kind, products.take)


@KINDS
def test_the_arguments_are_only_read(products, kind):
    case = Case(kind).to(products.take, "float32")
    before = [array.host.copy() for array in case.arrays()]
    case.run(zoneout=0.5)
    for array, value in zip(case.arrays(), before, strict=True):
        assert (array.host == value).all()


@KINDS
def test_results_are_arrays_of_their_own(products, kind):
    found = Case(kind).to(products.take, "float32").run(lengths=LENGTHS)
    for (name, one), (other_name, other) in itertools.combinations(found.items(), 2):
        assert not np.shares_memory(one.host, other.host), (name, other_name)


@pytest.mark.parametrize(
    ("dtype", "of_parameters"), [("float32", "float64"), ("float64", "float32")]
)
@KINDS
def test_parameters_of_another_dtype(imported, kind, dtype, of_parameters):
    case, library = Case(kind), imported("torch")
    found = case.to(library.take, dtype, of_parameters).run(lengths=LENGTHS)
    expected = case.run(lengths=LENGTHS)
    for name, value in expected.items():
        wanted = of_parameters if name[1:] in kind.parameters._fields else dtype
        assert found[name].host.dtype == wanted
        assert_close(found[name].host, value, "float32", name, 5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@KINDS
def test_half_precision(imported, kind, dtype):
    check_half_precision(kind, imported("torch").take, dtype)


@pytest.mark.parametrize("what", ["dy", "weight_h", "gamma"])
@KINDS
def test_arrays_that_begin_anywhere(imported, kind, what):
    # Whole pieces of units, but not all of them at multiples of 16 bytes.
    case, library = Case(kind, units=8), imported("torch")
    expected, device = case.run(lengths=LENGTHS), case.to(library.take, "float32")

    def behind(array):
        whole = np.concatenate(([0], array.host.ravel())).astype(array.host.dtype)
        return library.take(whole[1:].reshape(array.host.shape))

    if what == "dy":
        device.dy = behind(device.dy)
    else:
        name = next(name for name in kind.parameters._fields if name.startswith(what))
        moved = {name: behind(getattr(device.parameters, name))}
        device.parameters = device.parameters._replace(**moved)
    assert_same(device.run(lengths=LENGTHS), expected, "float32")


@KINDS
def test_jax_without_float64(imported, kind):
    library, case = imported("jax"), Case(kind)
    library.config.jax_enable_x64 = False
    options = {"lengths": LENGTHS, "zoneout": 0.5}
    found = case.to(library.take, "float32").run(rng=np.random.default_rng(3), **options)
    expected = case.run(rng=np.random.default_rng(3), **options)
    assert_same(found, expected, "float32")


# Errors


@KINDS
def test_host_and_device_do_not_mix(library, kind):
    case = Case(kind)
    device = case.to(library.take, "float32")
    cell, pack, backward = (getattr(rnn, kind.name + what) for what in ("", "_pack", "_backward"))
    parameters, gain = case.parameters, kind.parameters._fields[-2]
    *_, saved = case.call("_forward")
    blend = device.parameters._replace(**{gain: getattr(parameters, gain)})
    last = {kind.states[-1]: case.states[-1]}
    calls = {
        "weight_h must be a .* on device 0, as x is": lambda: cell(device.x, parameters),
        f"{gain} must be a .* on device 0": lambda: cell(device.x, blend),
        f"{kind.states[-1]} must be a .* on device 0": lambda: cell(
            device.x, device.parameters, **last
        ),
        "weight_h must lie on the host": lambda: cell(case.x, device.parameters),
        "h must lie on the host": lambda: cell(case.x, parameters, device.states[0]),
        "dy must lie on the host": lambda: backward(device.dy, saved),
        ".* packed for the host": lambda: cell(device.x, pack(parameters)),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=f"^{message}"):
            call()


@pytest.mark.parametrize("options", [
    {"dropout": 0.5},
    {"recurrent_dropout": 0.5},
    {"recurrent_dropout": 0.25, "zoneout": 0.5, "reverse": True},
], ids="-".join)  # fmt: skip
@KINDS
def test_dropout(products, kind, options):
    case = Case(kind)

    def drawn():
        return {"lengths": LENGTHS, "rng": np.random.default_rng(0)} | options

    found = case.to(products.take, "float64").run(**drawn())
    assert_same(found, case.run(**drawn()), "float64")


def test_shapes_are_checked(library):
    case = Case().to(library.take, "float32")
    wrong = case.parameters._replace(bias=library.take(np.zeros(19, np.float32)))
    calls = {
        "x must have 3 axes": lambda: rnn.lstm(case.parameters.bias, case.parameters),
        "bias must have shape": lambda: rnn.lstm(case.x, wrong),
        "h must have shape": lambda: rnn.lstm(case.x, case.parameters, case.x),
        "weight_h must have shape": lambda: rnn.lstm(
            case.x, case.parameters._replace(weight_h=case.x)
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
