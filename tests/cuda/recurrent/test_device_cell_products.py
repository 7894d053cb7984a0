"""Cells with a second product in a step, on device arrays, beside the host's."""

import itertools

import cell_cases as cells
import numpy as np
import pytest
import simulated_target
from cell_calls import LENGTHS, Case, assert_same, check_cell, check_half_precision
from devices import H200

from numnorm import rnn
from numnorm.rnn.parameters import GRU, PROJECTED_LSTM

PROJECTED, RESET = (PROJECTED_LSTM, {}), (GRU, {"reset_after": False})
EACH = pytest.mark.parametrize(
    ("kind", "form"), [PROJECTED, RESET], ids=["projections", "reset before"]
)
FORMS = [
    *((GRU, {"norm": norm, "reset_after": False}) for norm in cells.NORMS),
    *((PROJECTED_LSTM, {"norm": norm}) for norm in cells.NORMS),
    *((PROJECTED_LSTM, {"variant": variant}) for variant in cells.VARIANTS[1:]),
]


def _id(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else value.name


@pytest.mark.parametrize(("kind", "form"), FORMS, ids=_id)
def test_forms(imported, kind, form):
    case, take = Case(kind, **form), imported("torch").take
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")


@pytest.mark.parametrize(
    ("units", "batch"), [(12, 9), (132, 1), (13, 5)], ids=["narrow", "several warps", "odd"]
)
@EACH
def test_shapes_in_any_order_of_threads(imported, kind, form, units, batch, order):
    case, take = Case(kind, **form, units=units, batch=batch, time=2), imported("torch").take
    assert_same(case.to(take, "float32").run(), case.run(), "float32")


@pytest.mark.parametrize("options", [
    {},
    {"lengths": LENGTHS, "batch_first": True, "reverse": True},
], ids="-".join)  # fmt: skip
@EACH
def test_libraries(products, kind, form, options):
    case = Case(kind, **form)
    if "batch_first" in options:
        case.x, case.dy = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (case.x, case.dy))
    found = case.to(products.take, "float32").run(**options)
    assert_same(found, case.run(**options), "float32")
    assert all(type(f) is type(products.take(np.zeros(1))) for f in found.values())


@pytest.mark.parametrize("options", [
    {"zoneout": 0.25},
    {"zoneout": 0.25, "rng": 1},
    {"recurrent_dropout": 0.5, "rng": 1},
    {"dropout": 0.5, "recurrent_dropout": 0.5, "zoneout": 0.25, "reverse": True, "rng": 1},
], ids="-".join)  # fmt: skip
def test_masks(imported, options):
    case, take = Case(GRU, reset_after=False), imported("torch").take

    def drawn():
        rng = np.random.default_rng(options["rng"]) if "rng" in options else None
        return {"lengths": LENGTHS} | options | {"rng": rng}

    found = case.to(take, "float64").run(**drawn())
    assert_same(found, case.run(**drawn()), "float64")


@EACH
def test_persistent_kernels_are_for_other_cells(imported, kind, form, monkeypatch):
    device = Case(kind, **form).to(imported("torch").take, "float32")
    expected = device.run(lengths=LENGTHS)
    monkeypatch.setattr(simulated_target, "LIMITS", H200)
    found = device.run(lengths=LENGTHS)
    assert all(found[name].host.tobytes() == expected[name].host.tobytes() for name in found)


@EACH
def test_without_states(imported, kind, form):
    case, take = Case(kind, **form), imported("torch").take
    case.states = case.grads = (None,) * len(kind.states)
    case.dy = None
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
@EACH
def test_nothing(imported, kind, form, time, batch):
    case, take = Case(kind, **form, time=time, batch=batch), imported("torch").take
    assert_same(case.to(take, "float32").run(), case.run(), "float32")


@EACH
def test_padding_does_not_leak(imported, kind, form):
    case, take = Case(kind, **form), imported("torch").take
    expected = case.run(lengths=LENGTHS)
    for sequence, length in enumerate(LENGTHS):
        case.x[length:, sequence] = case.dy[length:, sequence] = np.nan
    assert_same(case.to(take, "float64").run(lengths=LENGTHS), expected, "float64")


@EACH
def test_without_saving(products, kind, form):
    case = Case(kind, **form).to(products.take, "float32")
    found, saved = case.call(lengths=LENGTHS), case.call("_forward", lengths=LENGTHS)
    for one, other in zip(found, saved[:-1], strict=True):
        assert one.host.tobytes() == other.host.tobytes()


@EACH
def test_cell(imported, kind, form):
    check_cell(kind, imported("torch").take, **form)


@EACH
def test_pack(imported, kind, form):
    device = Case(kind, **form).to(imported("torch").take, "float32")
    expected = device.call(lengths=LENGTHS)
    device.parameters = getattr(rnn, kind.name + "_pack")(device.parameters, **form)
    for one, other in zip(device.call(lengths=LENGTHS), expected, strict=True):
        assert one.host.tobytes() == other.host.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@EACH
def test_half_precision(imported, kind, form, dtype):
    check_half_precision(kind, imported("torch").take, dtype, **form)


@EACH
def test_results_are_arrays_of_their_own(imported, kind, form):
    case = Case(kind, **form).to(imported("torch").take, "float32")
    before = [array.host.copy() for array in case.arrays()]
    found = case.run(lengths=LENGTHS)
    for (name, one), (other_name, other) in itertools.combinations(found.items(), 2):
        assert not np.shares_memory(one.host, other.host), (name, other_name)
    for array, value in zip(case.arrays(), before, strict=True):
        assert (array.host == value).all()


@EACH
def test_parameters_of_a_norm_are_not_needed(imported, kind, form):
    case, take = Case(kind, **form), imported("torch").take
    given = case.parameters
    case.parameters = type(given)(*(None if p is None or p.ndim == 1 else p for p in given))
    found = case.to(take, "float64").run(lengths=LENGTHS)
    assert_same(found, case.run(lengths=LENGTHS), "float64")
