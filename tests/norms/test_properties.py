"""Norms of any shape, option, dtype and memory layout against their definitions."""

import itertools

import kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, swapped
from norm_checks import DTYPES, PARAMETERS, Norm, as_tuple, check, draw_parameters

# Means and deviations that are in the range of float16, where sums of such gradients are not.
FAR = [(100, 1), (0, 30)]
NAMES = ["layer_norm", "rms_norm", "ada_norm", "batch_norm", "group_norm", "instance_norm"]
NAMES += ["weight_norm"]

# 7 norms x 300 are the cases that a run takes half a minute for; each has two passes.
CASES = settings(max_examples=300, deadline=None, print_blob=True)
SOME_OR_ALL = pytest.mark.parametrize(
    "only_default", [True, pytest.param(False, marks=kernels.full)], ids=["default", "full"]
)
FEWER = settings(max_examples=60, deadline=None, print_blob=True)


@st.composite
def shapes(draw, least):
    """Up to four short axes, one of which may be longer than a vector register."""
    shape = draw(st.lists(st.integers(1, 5), min_size=least, max_size=4))
    longer = draw(st.integers(0, len(shape) - 1))
    shape[longer] *= draw(st.sampled_from([1, 1, 4, 17]))
    return tuple(shape)


@st.composite
def axis_options(draw, shape):
    """One or more axes, in any order and counted from either end."""
    ndim = len(shape)
    axes = draw(st.lists(st.integers(0, ndim - 1), min_size=1, max_size=ndim, unique=True))
    axes = tuple(axis - draw(st.sampled_from([0, ndim])) for axis in axes)
    return {"axis": axes[0] if len(axes) == 1 and draw(st.booleans()) else axes}


@st.composite
def channel_options(draw, shape, name):
    ndim = len(shape)
    first = 0 if name == "batch_norm" else 1
    axis = draw(st.integers(first, ndim - 1))
    options = {"channel_axis": axis - draw(st.sampled_from([0, ndim]))}
    if name == "group_norm":
        divisors = [n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0]
        options["groups"] = draw(st.sampled_from(divisors))
    return options


@st.composite
def ada_options(draw, width):
    return {
        "eps_in": draw(st.sampled_from(["variance", "std"])),
        "ddof": draw(st.integers(0, min(3, width - 1))),
        "scale": draw(st.sampled_from([0.5, 1.0, 2.0])),
        "k": draw(st.sampled_from([-0.5, 0.0, 0.1, 0.7])),
    }


@st.composite
def norms(draw, name):
    """A norm with a shape and options, its defaults among them."""
    shape = draw(shapes(least=2 if name in ("group_norm", "instance_norm") else 1))
    by_axis = Norm(name, shape).by_axis
    options = draw(axis_options(shape) if by_axis else channel_options(shape, name))
    backward_only = {}
    if name != "weight_norm" and draw(st.booleans()):
        options["eps"] = draw(st.sampled_from([0.0, 1e-12, 1e-3, 2.0]))
    if name == "layer_norm":
        backward_only["detach"] = draw(st.sampled_from([None, "mean", "scale", "both"]))
    if name == "ada_norm":
        width = Norm(name, shape, options).rows(np.empty(shape)).shape[1]
        options |= draw(ada_options(width))
        backward_only["detach_factor"] = draw(st.booleans())
    return Norm(name, shape, options, backward_only)


@st.composite
def arrays(draw, shape, dtype, far=()):
    """Random numbers, few different ones, rows without variance, or a single spike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["normal", "normal", "few", "constant", "spike"]))
    values = {
        "normal": rng.normal(size=shape),
        "few": rng.integers(-1, 2, shape).astype(float),
        "constant": np.zeros(shape),
        "spike": np.arange(np.prod(shape, dtype=int)).reshape(shape) == 3,
    }[kind]
    offset, scale = draw(st.sampled_from([(0, 1), (0.7, 1.5), (-3, 0.01), *far]))
    return (offset + scale * values).astype(dtype)


@st.composite
def layouts(draw, dtype):
    """A function that lays an array out somehow."""
    # bfloat16 has no other byte order.
    others = [swapped] if np.dtype(dtype).kind in "fi" else []
    return draw(st.sampled_from([np.ascontiguousarray, *LAYOUTS, *others]))


def chosen(name, dtypes, parameters, only_default):
    """Pairs of a dtype and of which parameters there are, all or those compiled by default."""
    pairs = list(itertools.product(dtypes, parameters))
    return [pair for pair in pairs if not only_default or kernels.is_default(name, *pair)]


@SOME_OR_ALL
@pytest.mark.parametrize("name", NAMES)
@CASES
@given(data=st.data())
def test_any_call_agrees_with_the_definition(name, only_default, data):
    norm = data.draw(norms(name))
    parameters = PARAMETERS[norm.parameters]
    pairs = chosen(name, [*DTYPES, np.int16], parameters, only_default)
    dtype, which = data.draw(st.sampled_from(pairs))
    layout, layout_dy = data.draw(layouts(dtype)), data.draw(layouts(dtype))
    real = np.float64 if dtype is np.int16 else dtype
    x, dy = data.draw(arrays(norm.shape, dtype, FAR)), data.draw(arrays(norm.shape, real))
    check(norm, layout(x), layout_dy(dy), *draw_parameters(norm, real, which))


def results(norm, x, dy, parameters):
    """Everything with a row for each of the norm's rows: y, statistics and dx."""
    # Without a compiler, NumPy's warnings of what the test is about would be errors.
    with np.errstate(all="ignore"):
        y, *saved = norm.forward(x, *parameters)
        dx = as_tuple(norm.backward(dy, x, saved, *parameters[:1]))[0]
    rows = [norm.rows(y), norm.rows(dx)]
    return rows + [np.asarray(array).reshape(len(rows[0]), 1) for array in saved]


@SOME_OR_ALL
@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(data=st.data())
def test_what_is_not_finite_stays_in_its_row(name, only_default, data):
    norm = data.draw(norms(name))
    pairs = chosen(name, DTYPES, ["none"], only_default) or chosen(name, DTYPES, ["both"], True)
    dtype, which = data.draw(st.sampled_from(pairs))
    x, dy = data.draw(arrays(norm.shape, dtype, FAR)), data.draw(arrays(norm.shape, dtype))
    index = tuple(data.draw(st.integers(0, size - 1)) for size in norm.shape)
    poison = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    spoiled = data.draw(st.sampled_from(["x", "dy"]))
    parameters = draw_parameters(norm, dtype, which)
    clean = results(norm, x, dy, parameters)
    bad = {"x": x, "dy": dy}
    bad[spoiled] = bad[spoiled].copy()
    bad[spoiled][index] = poison
    mark = np.zeros(norm.shape, bool)
    mark[index] = True
    (row,) = np.flatnonzero(norm.rows(mark).any(axis=1))
    for mine, theirs in zip(results(norm, **bad, parameters=parameters), clean, strict=True):
        assert np.delete(mine, row, axis=0).tobytes() == np.delete(theirs, row, axis=0).tobytes()
        if spoiled == "x" and np.isnan(poison):
            assert np.all(np.isnan(mine[row].astype(float)))
