"""All steps of a cell in one kernel whose blocks wait for each other, beside the CPU's passes."""

import contextvars
import dataclasses
import functools
import itertools
import sys

import cell_cases as cells
import numpy as np
import pytest
import simulated_target
from cell_steps import assert_close
from devices import H200, RTX4090, T4, of_multiprocessors
from fake_libraries import cupy
from pass_checks import KINDS, PAPER, SOME_SPECS, SPECS, check, named, run, taken_by

from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
from numnorm.backends.cuda.recurrent.persistent import passes as persistent_passes
from numnorm.backends.cuda.recurrent.persistent import plans as persistent_plans
from numnorm.backends.cuda.recurrent.persistent.plans import backward_plan, forward_plan
from numnorm.rnn import persistent_kernels
from numnorm.rnn.parameters import GRU, LSTM, RNN
from numnorm.rnn.specs import lstm_spec

PER_GATE = lstm_spec("layer", "per_gate").cell
CENTRED = named(*map(cells.spec_of, (LSTM, GRU, RNN)), PER_GATE)
NORMED = [spec for spec in SOME_SPECS if spec.values[0][0] is not None]  # the gates' norm
RAGGED = (5, 5, 3, 1)


@pytest.fixture
def small(monkeypatch):
    """A device with room for few blocks, of two warps; the plans of what it is launched with."""
    launched, launch = [], persistent_passes._launch

    def counted(plan, *arguments, **options):
        launched.append(plan)
        return launch(plan, *arguments, **options)

    monkeypatch.setattr(persistent_passes, "_launch", counted)
    monkeypatch.setattr(persistent_plans, "_WARPS", 2)
    monkeypatch.setattr(simulated_target, "LIMITS", of_multiprocessors(6))
    persistent_passes._most_blocks.cache_clear()
    return launched


@pytest.fixture
def taken(imported):
    return functools.partial(taken_by, imported("torch"))


def check_forward(problem, taken, dtype):
    """The history is the CPU's, whatever the size of the other rows."""
    history, _ = run(problem, taken, dtype, backward=False)
    _, (of_cpu, _) = problem.forward
    for one, other in zip(history, of_cpu, strict=True):
        for row, expected in zip(one, other, strict=True):
            assert_close(row, expected, dtype, "history")
    return history


def bits(history, found):
    """Of all states, and all gradients that are found from step to step."""
    arrays = *history, found.dx.host, *(state.host for state in found.states)
    return b"".join(array.tobytes() for array in arrays)


# Two slices, the second of two units, and two groups of rows, the second one shorter.


@pytest.mark.parametrize("spec", SPECS)
def test_every_form(spec, small, taken):
    problem = cells.problem(spec, 10, RAGGED)
    check(problem, *run(problem, taken, "float64"), "float64")
    assert [plan.blocks for plan in small] == [4, 4]


@pytest.mark.parametrize("spec", SOME_SPECS)
def test_in_any_order(spec, small, taken, order):
    problem = cells.problem(spec, 10, RAGGED, dtype="float32")
    check(problem, *run(problem, taken, "float32"), "float32")
    assert [plan.blocks for plan in small] == [4, 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("units", "batch_sizes"), [(16, (3, 3)), (3, (1, 1)), (17, (8, 2)), (9, (1,))]
)
@KINDS
def test_sizes(spec, units, batch_sizes, dtype, small, taken):
    problem = cells.problem(spec, units, batch_sizes, dtype=dtype)
    check(problem, *run(problem, taken, dtype), dtype)
    assert len(small) == 2


@KINDS
def test_more_rows_than_a_tile(spec, small, taken, monkeypatch, order):
    # Of a block of eight warps, which has 32 rows: on the way back 16 are a tile, or 32.
    monkeypatch.setattr(persistent_plans, "_WARPS", 8)
    monkeypatch.setattr(simulated_target, "LIMITS", of_multiprocessors(1))
    problem, found = cells.problem(spec, 5, (18, 17)), []
    for rows in (1, 2):
        monkeypatch.setattr(persistent_plans, "_ROWS", (rows,))
        history, gradients = run(problem, taken, "float64")
        check(problem, history, gradients, "float64")
        found.append(bits(history, gradients))
    assert [(plan.blocks, plan.rows) for plan in small] == [(1, 18)] * 4
    assert [plan.shape.transposed.tile for plan in small] == [16, 16, 32, 32]
    assert len(set(found)) == 1


@KINDS
def test_libraries(spec, library, monkeypatch, small):
    if library.called == "numba":
        monkeypatch.setitem(sys.modules, "cupy", cupy()["cupy"])
    problem = cells.problem(spec._replace(zoneout=True), 10, RAGGED)
    check(problem, *run(problem, functools.partial(taken_by, library), "float64"), "float64")
    assert len(small) == 2


@pytest.mark.parametrize("zoneout", [False, True])
@KINDS
def test_without_saving_the_states_are_the_same(spec, zoneout, small, taken):
    problem = cells.problem(spec._replace(zoneout=zoneout), 10, (4, 2, 1))
    (h, *cell), _ = run(problem, taken, "float32", backward=False)
    (same, *last), _ = run(problem, taken, "float32", save=False, backward=False)
    assert h.tobytes() == same.tobytes()
    for c, one in zip(cell, last, strict=True):
        assert one.tobytes() == c[[4 + 6, 4 + 5, 4 + 2, 4 + 3]].tobytes()
    assert len(small) == 2


@KINDS
def test_no_bit_depends_on_the_device(spec, small, taken, monkeypatch):
    problem = cells.problem(spec, 12, (8, 7, 2), dtype="float32")
    found = [bits(*run(problem, taken, "float32"))]
    monkeypatch.setattr(simulated_target, "LIMITS", of_multiprocessors(2))
    found.append(bits(*run(problem, taken, "float32")))
    monkeypatch.setattr(persistent_plans, "_ROWS", (1,))
    found.append(bits(*run(problem, taken, "float32")))
    assert [plan.groups for plan in small] == [2, 2, 1, 1, 1, 1]
    # The tile of one product of each unit has more rows.
    several = 1 if cells.KINDS[type(spec)] is RNN else 2
    assert [plan.shape.rows for plan in small[::2]] == [1, several, 1]
    assert len(set(found)) == 1


# Numbers whose squares leave the range


@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("spec", NORMED)
def test_rows_of_any_scale_beside_each_other(spec, eps, small, taken, order):
    problem = cells.problem(spec, 10, (3,), dtype="float32", eps=eps)
    factors = np.array([1, 1e-25, 1e36])[:, None]
    h, *others = problem.states
    problem = dataclasses.replace(problem, states=(h * factors, *others), x=problem.x * factors)
    check_forward(problem, taken, "float32")


@pytest.mark.parametrize("factors", [(1e-30, 1e-22), (1e-30, 1), (1, 1e25), (1e-30, 1e25)], ids=str)
@pytest.mark.parametrize("spec", NORMED)
def test_slices_of_any_scale_beside_each_other(spec, factors, small, taken):
    problem = cells.problem(spec, 16, (3,), dtype="float32", eps=0.0)
    given = problem.given
    gates = len(cells.KINDS[type(spec)].gates)
    factors = np.tile(np.repeat(factors, 8), gates)[:, None].astype("float32").astype("float64")
    given = given._replace(weight_h=given.weight_h * factors, weight_x=given.weight_x * factors)
    check_forward(dataclasses.replace(problem, given=given), taken, "float32")


@pytest.mark.parametrize("spec", CENTRED)
def test_constant_slices_of_another_scale_each(spec, small, taken):
    # Their squared deviations are 0: only their means tell how far they reach.
    problem = cells.problem(spec, 16, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    gates = len(cells.KINDS[type(spec)].gates)
    means = np.tile(np.repeat([1e30, -2e30], 8), gates)
    given = given._replace(
        weight_x=means.astype("float32").astype("float64")[:, None],
        weight_h=np.zeros_like(given.weight_h),
    )
    problem = dataclasses.replace(problem, given=given, x=np.ones_like(problem.x))
    check_forward(problem, taken, "float32")


def test_constant_products_and_cells_without_epsilon(small, taken):
    problem = cells.problem(PAPER, 10, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    given = given._replace(
        weight_x=np.ones_like(given.weight_x), weight_h=np.zeros_like(given.weight_h),
        bias=0 * given.bias + 0.1, beta_x=0 * given.bias, beta_h=0 * given.bias,
    )  # fmt: skip
    states = problem.states[0], np.full_like(problem.states[1], 0.3)
    problem = dataclasses.replace(problem, given=given, states=states)
    (h, c), _ = run(problem, taken, "float32", backward=False)
    expected = np.tanh(given.beta_c) / (1 + np.exp(-0.1))
    assert_close(h[2:], np.broadcast_to(expected, (2, 10)), "float32")
    assert (c[2:] == c[2, 0]).all()


# Which devices take all steps at once


def plan(batch, width, limits, element=FLOAT32, kind=LSTM):
    whole = width % element.vector == 0
    return forward_plan(batch, width, len(kind.gates), element, limits, whole=whole)


@pytest.mark.parametrize(
    ("kind", "batch", "width", "slices", "groups", "rows"),
    [
        (LSTM, 32, 256, 32, 4, 2), (LSTM, 64, 512, 64, 2, 4), (LSTM, 8, 400, 50, 2, 1),
        (LSTM, 1, 1024, 128, 1, 1), (GRU, 64, 512, 64, 2, 4), (RNN, 64, 512, 64, 2, 2),
    ],
)  # fmt: skip
def test_plans(kind, batch, width, slices, groups, rows):
    found = plan(batch, width, H200, kind=kind)
    assert (found.slices, found.groups, found.shape.rows) == (slices, groups, rows)
    assert found.slices * found.shape.units >= width and found.groups * found.rows >= batch
    assert found.rows <= found.shape.teams and found.blocks <= H200.multiprocessors
    assert found.memory <= H200.shared_of_block


def test_what_does_not_fit():
    assert plan(128, 1024, H200) is None  # more rows than the blocks' threads
    assert plan(1, 1057, H200) is None  # more slices than multiprocessors
    assert plan(1, 1024, H200, FLOAT64) is None  # more weights than shared memory
    assert plan(1, 1024, RTX4090) is None and plan(1, 768, RTX4090) is None
    assert plan(1, 768, RTX4090, kind=GRU) and plan(1, 1000, RTX4090, kind=RNN)
    assert plan(8, 256, T4) is not None and plan(33, 256, T4) is None
    assert plan(32, 256, H200._replace(cooperative=False)) is None


@pytest.mark.parametrize(
    ("kind", "batch", "width", "groups"),
    [
        (LSTM, 32, 256, 4), (LSTM, 64, 512, 2), (LSTM, 8, 400, 2), (LSTM, 1, 1024, None),
        (GRU, 64, 512, 2), (GRU, 8, 399, 2), (GRU, 1, 1024, None), (RNN, 1, 1024, 1),
    ],
)  # fmt: skip
def test_plans_of_the_way_back(kind, batch, width, groups):
    found = backward_plan(batch, width, len(kind.gates), FLOAT32, H200)
    if groups is None:  # 4096 gradients of each of 16 rows, or 3072, are more than shared memory
        assert found is None
    else:
        assert found.slices * found.shape.units >= width and found.groups == groups
        assert found.memory <= H200.shared_of_block
        assert found.shape.whole == (len(kind.gates) * width % 4 == 0)


def test_a_plan_knows_no_more_blocks_than_run_at_the_same_time():
    cases = itertools.product(
        range(1, 140, 7), range(1, 1100, 61), (H200, RTX4090, T4), (LSTM, GRU, RNN)
    )
    for batch, width, limits, kind in cases:
        found = plan(batch, width, limits, kind=kind)
        if found:
            assert found.blocks <= limits.blocks(256, 256, found.memory)
            assert found.groups * found.rows >= batch > (found.groups - 1) * found.rows


@pytest.mark.parametrize("of", ["limits", "driver"])
@KINDS
def test_steps_are_taken_one_by_one_where_there_is_no_room(spec, of, small, taken, monkeypatch):
    if of == "limits":
        monkeypatch.setattr(simulated_target, "LIMITS", H200._replace(cooperative=False))
    else:
        monkeypatch.setattr(simulated_target, "MOST_TOGETHER", 3)
    problem = cells.problem(spec, 10, RAGGED)
    check(problem, *run(problem, taken, "float64"), "float64")
    assert small == []


@KINDS
def test_steps_are_taken_one_by_one_where_the_device_refuses(spec, small, taken, monkeypatch):
    def refused(kernel, *arguments):
        raise CooperativeLaunchRefused("too large")

    monkeypatch.setattr(simulated_target.Kernel, "launch_cooperative", refused)
    problem = cells.problem(spec, 10, RAGGED)
    check(problem, *run(problem, taken, "float64"), "float64")
    assert small != []


@KINDS
def test_steps_are_taken_one_by_one_where_the_caller_says_so(spec, small, taken):
    problem = cells.problem(spec, 10, RAGGED)
    with persistent_kernels(False):
        check(problem, *run(problem, taken, "float64"), "float64")
        assert small == []
        with persistent_kernels():
            run(problem, taken, "float64", backward=False)
        assert len(small) == 1
        # Another thread begins with the default.
        contextvars.Context().run(run, problem, taken, "float64", backward=False)
        assert len(small) == 2
        run(problem, taken, "float64", backward=False)
    assert len(small) == 2
    run(problem, taken, "float64", backward=False)
    assert len(small) == 3


@KINDS
def test_a_step_is_the_same_alone(spec, small, taken):
    # One step of one sequence, and that step of a whole batch: the kernel sums up in one order. The
    # product with x, which is the library's, has one term.
    problem = cells.problem(spec, 10, (3, 3), inputs=1, dtype="float32")
    history, _ = run(problem, taken, "float32", backward=False)
    steps = PackedSteps(np.array([0]), np.array([1]))
    states = tuple(h[:1].astype("float64") for h in history)
    alone = dataclasses.replace(problem, steps=steps, x=problem.x[:1], states=states)
    found, _ = run(alone, taken, "float32", backward=False)
    assert [h[1].tobytes() for h in found] == [h[3].tobytes() for h in history]
    assert len(small) == 2


@pytest.mark.parametrize("enabled", [None, 1, "no"])
def test_the_setting_is_a_flag(enabled):
    with (
        pytest.raises(TypeError, match=r"^enabled must be True or False, got"),
        persistent_kernels(enabled),
    ):
        pass


# The device in Python


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda block, thread: block == 0, "not all blocks came to"),
        (lambda block, thread: thread < 32, "32 of 64 threads came to a barrier"),
    ],
)
def test_a_barrier_of_the_grid_is_for_all(condition, message, order):
    cuda = simulated_target.cuda

    def kernel():
        if condition(cuda.blockIdx.x, cuda.threadIdx.x):
            simulated_target.grid_barrier()

    with pytest.raises(simulated_target.SimulationError, match=message):
        simulated_target.run_together(kernel, [], 2, 64, 0)


def test_blocks_that_are_not_launched_together_have_no_barrier():
    with pytest.raises(simulated_target.SimulationError, match="need not run at the same time"):
        simulated_target.run(simulated_target.grid_barrier, [], 2, 32)
