"""Norms of any shape, option, dtype and memory layout against their definitions."""

import itertools

import kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, swapped
from norm_checks import DTYPES, PARAMETERS, as_tuple, check, draw_parameters
from norm_strategies import FAR, NAMES, arrays, norms

# 7 norms x 300 are the cases that a run takes half a minute for; each has two passes.
CASES = settings(max_examples=300, deadline=None, print_blob=True)
SOME_OR_ALL = pytest.mark.parametrize(
    "only_default", [True, pytest.param(False, marks=kernels.full)], ids=["default", "full"]
)
FEWER = settings(max_examples=60, deadline=None, print_blob=True)


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
