"""One step of a recurrent cell, forward and backward, compared with the CPU."""

import cell_cases as cells
import numpy as np
from simulated_target import register

from numnorm.backends.contract.recurrent import GRUSpec, LSTMSpec, RNNSpec
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.recurrent import gru, lstm, rnn
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.step_kernels import (
    AdaNumbers,
    GradientCoefficients,
    Incoming,
    OfNorms,
    Products,
    ReadBack,
    Results,
    ScalingNumbers,
    StepSaved,
    StepStates,
    make_cell_backward,
    make_cell_forward,
)

ROWS = 9
KINDS = {LSTMSpec: lstm.KIND, GRUSpec: gru.KIND, RNNSpec: rnn.KIND}


def assert_close(found, expected, dtype, what="", scale=1.0):
    """Check results to 1e-10 in float64, and to 1e-5 of the largest value in float32."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, what
    bound = scale * (1e-10 if dtype == "float64" else 1e-5) * max(1, np.abs(expected).max())
    assert np.all(np.abs(found - expected) <= bound), (what, np.abs(found - expected).max(), bound)


def in_dtype(dtype, *arrays):
    """Return copies of a dtype; None stays None."""
    return [None if a is None else np.array(a, dtype, order="C") for a in arrays]


def of_both(arrays):
    """Return the arrays of the state and of an LSTM's cell, None without a cell."""
    return (*arrays, None)[:2]


def addresses(group):
    """Return a NamedTuple of arrays as one of addresses; 0 for a missing or empty array."""
    return type(group)(*(0 if a is None or a.size == 0 else register(a) for a in group))


def weights_of(problem, dtype):
    """Return the sums of biases and the parameters of the norms, as the kernels take them."""
    given, kind = problem.given, KINDS[type(problem.spec)]
    betas = [getattr(given, name, None) for name in ("beta", "beta_x", "beta_h")]
    of_none, of_x, of_h = (0 * given.bias if b is None else b for b in betas)
    offsets = (given.bias + of_none + of_x + of_h,)
    if kind is gru.KIND:
        two = 2 * problem.states[0].shape[1]
        offsets = offsets[0][:two], (given.bias + of_x)[two:], given.bias_h + of_h[two:]
    names = [name for name in kind.step.weights._fields if not name.startswith("offset")]
    others = (getattr(given, name) for name in names)
    return kind.step.weights(*in_dtype(dtype, *offsets, *others))


def numbers_of(problem, numbers):
    """Return the numbers of AdaNorm, and ``numbers(norm, count)`` of both norms."""
    spec, kind, units = problem.spec, KINDS[type(problem.spec)], problem.states[0].shape[1]
    norms = kind.facts_of(spec).norms
    ada = any(norm is not None and norm.parameters == 0 for norm in norms)
    counts = kind.facts_of(spec).normalized * units, units
    return AdaNumbers(1.0, 0.1 if ada else 0.0), OfNorms(*map(numbers, norms, counts))


def forward(problem, shape, dtype, *, save=True, in_place=False):
    """Return the new states, the products, and what the step saves."""
    spec, kind, given = problem.spec, KINDS[type(problem.spec)], problem.given
    before = in_dtype(dtype, *problem.states)
    rows, units = before[0].shape
    after = before if in_place else [np.full_like(a, np.nan) for a in before]
    z = (problem.states[0] @ given.weight_h.T).astype(dtype)
    xp = (problem.x @ given.weight_x.T).astype(dtype)
    table = np.full((rows, kind.facts_of(spec).sites, NUMBERS), np.nan, dtype)
    saved = StepSaved(
        None if kind.facts_of(spec).norm_each_product else xp,
        np.full((rows, units), np.nan, dtype),
        table,
    )
    groups = (
        Products(z, xp), weights_of(problem, dtype),
        StepStates(
            *of_both(in_dtype(dtype, *problem.zoneout_masks)), *of_both(before), *of_both(after)
        ),
        saved if save else StepSaved(None, None, None),
    )  # fmt: skip
    ada, scalings = numbers_of(
        problem,
        lambda norm, n: ScalingNumbers(1 / n, 1 / n, problem.eps, 0.0, np.sqrt(problem.eps)),
    )
    kernel = make_cell_forward(kind.step, spec, ELEMENT_TYPES[dtype], shape)
    blocks = -(-rows // shape.teams)
    kernel.launch(blocks, 0, *map(addresses, groups), rows, units, ada, scalings)
    return after, Products(z, xp), saved


def backward(problem, shape, dtype):
    """Return the results of a backward step, and the gradients of the states past the product."""
    spec, kind = problem.spec, KINDS[type(problem.spec)]
    after, (z, xp), step = forward(problem, shape, dtype)
    (rows, units), norm_each_product = after[0].shape, kind.facts_of(spec).norm_each_product
    dy, *last = in_dtype(dtype, *problem.grads)
    masks = in_dtype(dtype, *problem.zoneout_masks)
    results = Results(
        *np.full((3, rows, kind.gates * units), np.nan, dtype),
        np.full((rows, kind.facts_of(spec).other_sections * units), np.nan, dtype),
    )
    cell = step.cell if kind.facts_of(spec).is_cell_apart else after[-1]
    before = in_dtype(dtype, problem.states[-1])[0]
    groups = (
        ReadBack(*((z, xp) if norm_each_product else (xp, None)), cell, before, step.table),
        weights_of(problem, dtype), Incoming(dy, None, *of_both(last), *of_both(masks)), results,
    )  # fmt: skip

    def flow(norm, n):
        return GradientCoefficients(
            1 / n if norm is not None and norm.formula.centred else 0.0, 1 / n, 0.0
        )

    kernel = make_cell_backward(kind.step, spec, ELEMENT_TYPES[dtype], shape)
    numbers, blocks = numbers_of(problem, flow), -(-rows // shape.teams)
    kernel.launch(blocks, 0, *map(addresses, groups), rows, 0, units, *numbers)
    if kind.facts_of(spec).norms[0] is None:
        results = results._replace(dz=results.gates, dxp=results.other)
    return results, last


def check_step(spec, name, dtype):
    """Check one step, forward and backward, with a launch shape."""
    shape, units = cells.shape_for(name, dtype)
    problem = cells.problem(spec, units, (ROWS if shape.teams > 1 else 2,), dtype=dtype)
    check_forward(problem, shape, dtype)
    check_backward(problem, shape, dtype)


def check_forward(problem, shape, dtype):
    """Check the states and what is saved against the CPU, and the states without saving."""
    spec, batch, kind = problem.spec, problem.states[0].shape[0], KINDS[type(problem.spec)]
    _, (history, expected) = problem.forward
    after, products, saved = forward(problem, shape, dtype)
    for found, states in zip(after, history, strict=True):
        assert_close(found, states[batch:], dtype, "states")
    if kind.facts_of(spec).is_cell_apart:
        assert_close(saved.cell, expected.cell, dtype, "cell")
    if not kind.facts_of(spec).norm_each_product:
        assert_close(products.xp, expected.z, dtype, "sums")
    assert not np.isnan(saved.table).any()
    same, products, saved = forward(problem, shape, dtype, save=False, in_place=True)
    assert [a.tobytes() for a in after] == [a.tobytes() for a in same]
    assert np.isnan(saved.table).all()
    assert (products.xp == (problem.x @ problem.given.weight_x.T).astype(dtype)).all()


def check_backward(problem, shape, dtype):
    """Check all gradients against the CPU."""
    spec, kind, given = problem.spec, KINDS[type(problem.spec)], problem.given
    expected, (results, (dh, *dc)) = problem.backward, backward(problem, shape, dtype)
    dz, of_x = results.dz, results.dxp if kind.facts_of(spec).norm_each_product else results.dz
    past = dh if spec.zoneout or kind.past_every_step else 0
    of_state, *of_cell = expected.states
    assert_close(dz @ given.weight_h + past, of_state, dtype, "dh")
    for gradient, of_cpu in zip(dc, of_cell, strict=True):
        assert_close(gradient, of_cpu, dtype, "dc")
    assert_close(of_x @ given.weight_x, expected.dx, dtype, "dx")
    assert_close(of_x.T @ problem.x, expected.parameters["weight_x"], dtype, "weight_x")
    assert_close(dz.T @ problem.states[0], expected.parameters["weight_h"], dtype, "weight_h")
    sums = results.gates.sum(axis=0), results.other.sum(axis=0)
    if kind is gru.KIND:
        units = dh.shape[1]
        found = {"bias": sums[1], "beta_h": sums[0], "bias_h": sums[0][2 * units :]}
    else:
        found = {"bias": sums[0]} | ({"beta_c": sums[1]} if sums[1].size else {})
    for name, value in found.items():
        assert_close(value, expected.parameters[name], dtype, name)
