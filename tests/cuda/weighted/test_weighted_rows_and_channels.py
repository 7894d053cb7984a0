"""Norms with missing values and weights on a device, against their definition."""

import itertools

import numpy as np
import pytest
from accuracy_cases import HALF_UNIT, ROUNDINGS, assert_error
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import LONGDOUBLE_IS_WIDER
from weighted_cases import DTYPES, MASKS, NORMS, WEIGHTS, Case, cases, check_backward, check_forward
from weighted_reference import normalized, rows_of

import numnorm
from numnorm.backends.cuda.weighted.rows import shape_for

OPTIONS = {
    "layer_norm": ((3, 5), {"axis": -1, "eps": 1e-5}),
    "rms_norm": ((2, 3, 4), {"axis": (0, 2), "eps": 1e-5}),
    "ada_norm": ((3, 5), {"axis": 0, "eps": 1e-5, "scale": 0.7, "k": 0.3, "eps_in": "std"}),
    "group_norm": ((2, 6, 3), {"channel_axis": 1, "groups": 3, "eps": 1e-5}),
    "instance_norm": ((2, 3, 4), {"channel_axis": 2, "eps": 1e-5}),
    "batch_norm": ((7, 3), {"channel_axis": 1, "eps": 1e-5}),
    "weight_norm": ((3, 5), {"axis": -1}),
    "standard_normal_variate": ((3, 5), {"axis": -1, "ddof": 1}),
}


@pytest.fixture
def call(imported):
    """Call a norm on a device; what it returns is on the host."""
    take = imported("cupy").take

    def taken(value):
        return take(np.array(value, order="C")) if isinstance(value, np.ndarray) else value

    def called(case, suffix, *arguments, **options):
        keywords = {name: taken(value) for name, value in options.items() if name == "where"}
        function = getattr(numnorm, case.name + suffix)
        found = function(*map(taken, arguments), **options | keywords)
        if isinstance(found, tuple):
            return type(found)(*(None if one is None else one.host for one in found))
        return found.host

    return called


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", NORMS)
def test_forward(name, mask, call):
    turn = MASKS.index(mask) + NORMS.index(name)
    shape, options = OPTIONS[name]
    # float16 has no room for an offset beside the deviations.
    dtype, offset = DTYPES[turn % 4], 1e7 if turn % 4 > 1 else 0.0
    case = Case(name, shape, dtype, offset, turn, options)
    check_forward(case, mask, WEIGHTS[turn % len(WEIGHTS)], turn % 2 == 1, call)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_many_forward(name, call):
    def check(data):
        case = data.draw(cases(name, DTYPES))
        mask, kind = data.draw(st.sampled_from(MASKS)), data.draw(st.sampled_from(WEIGHTS))
        check_forward(case, mask, kind, data.draw(st.booleans()), call)

    settings(deadline=None, max_examples=100)(given(st.data())(check))()


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the differences have too few digits")
@pytest.mark.parametrize("mask, kind", [("none", "row"), ("some", None), ("one", "integers")])
@pytest.mark.parametrize("name", NORMS)
def test_backward_is_the_gradient(name, mask, kind, call):
    shape, options = OPTIONS[name]
    if name == "standard_normal_variate":
        if mask == "one":
            pytest.skip("one value has no deviation by ddof=1")
        options = options | {"ddof": 0}
    case = Case(name, shape, "float64", 0.0, 1, options)
    keep = case.mask(mask)
    check_backward(case, keep, case.weights(kind), mask == "some", call)


def test_the_widths_are_of_different_teams():
    assert [shape_for(width).team for width in (202, 1100)] == [32, 256]


def awkward(dtype, width, offset, seed=0):
    """Rows around an offset, of which the last is constant and another begins far off."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(4, width)) * (8 if offset else 1) + offset).astype(dtype)
    x[3] = x[3, 0]
    x[1, :16] = offset + 100
    return x, rng.normal(size=x.shape).astype(dtype), rng.random(x.shape)


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the definition has no more digits")
@pytest.mark.parametrize(
    "name, width, dtype, offset",
    [
        ("layer_norm", 1100, np.float32, 1e8),
        *itertools.product(
            ["layer_norm", "rms_norm", "batch_norm"], [202], [np.float32], [0.0, 1e8]
        ),
        *itertools.product(["layer_norm", "batch_norm"], [202], [np.float64], [1e8]),
    ],
)
def test_wide_rows_at_any_offset(name, width, dtype, offset, imported):
    take = imported("cupy").take
    x, dy, drawn = awkward(dtype, width, offset)
    keep = drawn < 0.9
    hidden = np.where(keep, x, dtype(np.inf))
    definition = {"eps": np.longdouble(0), "centred": name != "rms_norm"}
    w = np.where(keep, drawn, 0).astype(np.longdouble)
    xhat, _, rstd = normalized(x, keep, w, rows_of("layer_norm", x.shape), **definition)
    arrays = [a.T.copy() if name == "batch_norm" else a for a in (hidden, dy, keep, drawn)]
    hidden, dy, keep, drawn = map(take, arrays)
    options = {"where": keep, "weights": drawn}
    y, *saved = getattr(numnorm, f"{name}_forward")(hidden, eps=0, **options)
    got = getattr(numnorm, f"{name}_backward")(dy, hidden, *saved, **options)
    y, dx = (a.host.T if name == "batch_norm" else a.host for a in (y, got[0]))
    # The mean of a channel is one float64.
    mean = 4 * offset * HALF_UNIT[np.float64] if name == "batch_norm" else 0
    assert_error(y, xhat, ROUNDINGS.forward * HALF_UNIT[dtype] + mean)
    if definition["centred"]:
        assert not y[3].any()
    of_rows = [a.host.T if name == "batch_norm" else a.host for a in (dy, keep)]
    total, g = w.sum(1, keepdims=True), np.where(of_rows[1], of_rows[0], np.longdouble(0))
    through = xhat * ((g * xhat).sum(1, keepdims=True) / total)
    if name != "rms_norm":
        through = through + g.sum(1, keepdims=True) / total
    expected = np.where(of_rows[1], rstd[:, None] * (g - w * through), 0)
    assert_error(dx, expected, ROUNDINGS.backward * HALF_UNIT[dtype] + mean)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_out_of_range(scale, imported):
    take, (x, _, drawn) = imported("cupy").take, awkward(np.float64, 40, 0.0)
    keep, x = drawn < 0.8, x * scale
    for name in ("layer_norm", "rms_norm"):
        definition = {"eps": np.longdouble(0), "centred": name == "layer_norm"}
        rows = rows_of("layer_norm", x.shape)
        xhat, _, rstd = normalized(x, keep, np.ones(x.shape), rows, **definition)
        y, *saved = getattr(numnorm, f"{name}_forward")(take(x), eps=0, where=take(keep))
        assert_error(y.host, xhat, ROUNDINGS.forward * HALF_UNIT[np.float64])
        np.testing.assert_allclose(saved[-1].host, np.float64(rstd), rtol=1e-14)
