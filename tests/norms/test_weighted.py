"""Norms with missing values and weights, against their definition and against other libraries."""

import numpy as np
import pytest
from accuracy_cases import HALF_UNIT, ROUNDINGS, assert_error
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import LONGDOUBLE_IS_WIDER
from weighted_cases import DTYPES, MASKS, NORMS, WEIGHTS, cases, check_backward, check_forward
from weighted_reference import normalized, rows_of

import numnorm

EXAMPLES = [
    pytest.param(15, id="few"),
    pytest.param(2000, id="many", marks=pytest.mark.slow),
]


def examples_of(examples, function):
    """Run a test for this many examples."""
    settings(deadline=None, max_examples=examples)(given(st.data())(function))()


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", NORMS)
def test_forward(name, examples):
    def check(data):
        case = data.draw(cases(name, DTYPES))
        mask, kind = data.draw(st.sampled_from(MASKS)), data.draw(st.sampled_from(WEIGHTS))
        check_forward(case, mask, kind, data.draw(st.booleans()))

    examples_of(examples, check)


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the differences have too few digits")
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", NORMS)
def test_backward_is_the_gradient(name, examples):
    def check(data):
        case = data.draw(cases(name, least_eps=1e-5))
        assume(np.prod(case.shape) < 50)
        case.x -= np.round(case.x.mean())
        kind = data.draw(st.sampled_from([None, "integers", "row"]))
        keep = case.mask(data.draw(st.sampled_from(MASKS)))
        check_backward(case, keep, case.weights(kind), data.draw(st.booleans()))

    examples_of(examples, check)


ROWS_OF_AXIS_1 = ["layer_norm", "rms_norm", "standard_normal_variate", "batch_norm", "group_norm"]


def of_rows(name, suffix, arrays, others, **options):
    """Call a norm whose statistics belong to rows; arrays and results have the shape of x."""
    if name == "batch_norm":  # of the columns of the transposed arrays
        arrays, options = [a.T for a in arrays], {k: v.T for k, v in options.items()}
    if name == "group_norm":  # of one group of all elements
        options["groups"] = 1
    if name != "standard_normal_variate" and not suffix.endswith("backward"):
        options["eps"] = 0
    got = getattr(numnorm, name + suffix)(*arrays, *others, **options)
    y, *saved = got if isinstance(got, tuple) else (got,)
    return y.T if name == "batch_norm" else y, saved


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the definition has no more digits")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keyword", ["weights", "where"])
@pytest.mark.parametrize("width", [64, 3000])
@pytest.mark.parametrize("name", ROWS_OF_AXIS_1)
def test_first_values_far_from_the_mean_cost_no_digits(name, width, keyword, dtype):
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(2, 2**17 // width, width)).astype(dtype)
    x[: len(x) // 2, 0] = 3.9
    x[len(x) // 2 :, :16] = 1.5 + rng.normal(size=(len(x) - len(x) // 2, 16)) / 8
    weights = rng.random(x.shape)
    options = {keyword: weights if keyword == "weights" else weights < 0.9}
    keep = options.get("where", np.ones(x.shape, bool))
    w = np.where(keep, weights if keyword == "weights" else 1, 0).astype(np.longdouble)
    definition = {"eps": np.longdouble(0), "centred": name != "rms_norm"}
    xhat, _, rstd = normalized(x, keep, w, rows_of("layer_norm", x.shape), **definition)
    y, _ = of_rows(name, "", [x], (), **options)
    # The bounds of the norms without weights.
    assert_error(y, xhat, ROUNDINGS.forward * HALF_UNIT[dtype])
    saved = of_rows(name, "_forward", [x], (), **options)[1]
    dx, _ = of_rows(name, "_backward", [dy, x], saved, **options)
    total, g = w.sum(1, keepdims=True), np.where(keep, dy, np.longdouble(0))
    through = xhat * ((g * xhat).sum(1, keepdims=True) / total)
    if name != "rms_norm":
        through = through + g.sum(1, keepdims=True) / total
    assert_error(
        dx,
        np.where(keep, rstd[:, None] * (g - w * through), 0),
        ROUNDINGS.backward * HALF_UNIT[dtype],
    )
