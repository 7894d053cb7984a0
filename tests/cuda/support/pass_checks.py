"""Whole passes of cells on device arrays, compared with those on the CPU."""

import cell_cases as cells
import numpy as np
import pytest
from cell_steps import assert_close

from numnorm.backends.contract.norms import scaling_by
from numnorm.backends.cuda.arrays import device_array as arrays
from numnorm.backends.cuda.recurrent import cells as device
from numnorm.rnn.specs import gru_spec, lstm_spec, rnn_spec

PAPER, GRU, PLAIN = map(cells.spec_of, cells.KINDS.values())
KINDS = pytest.mark.parametrize("spec", [PAPER, GRU, PLAIN], ids=["lstm", "gru", "rnn"])


def named(*specs):
    return [pytest.param(spec, id=f"{cells.KINDS[type(spec)].name}.{spec.name}") for spec in specs]


SPECS = named(*cells.LSTM_FORMS, *cells.GRU_FORMS, *cells.RNN_FORMS)
SOME_SPECS = named(
    PAPER._replace(zoneout=True),
    lstm_spec("rms", "normalized_cell").cell,
    lstm_spec("layer", "per_gate").cell,
    GRU._replace(zoneout=True),
    gru_spec("rms").cell,
    PLAIN._replace(zoneout=True),
    rnn_spec("rms", "relu").cell,
    rnn_spec(None, "tanh").cell,
)


def taken_by(library, name, array, dtype):
    if array is None:
        return None
    return arrays.as_float_array(name, library.take(np.array(array, dtype, order="C")))


def run(problem, taken, dtype, *, save=True, backward=True):
    """Return the states of all steps, and all gradients."""
    spec, scaling = problem.spec, scaling_by(problem.eps)
    given = problem.given._asdict().items()
    given = type(problem.given)(**{name: taken(name, value, dtype) for name, value in given})
    x, *states = (taken("x", a, dtype) for a in (problem.x, *problem.states))
    zoneout_masks = tuple(taken("mask", a, dtype) for a in problem.zoneout_masks)
    weights = device.cell_weights(spec, given, 1.0, 0.1, False)
    history, saved = device.cell_forward(
        spec, scaling, x, problem.steps, weights, tuple(states), zoneout_masks, save
    )
    history = [a.host for a in history]
    if not backward:
        return history, None
    dy, *last = (taken("dy", a, dtype) for a in problem.grads)
    found = device.cell_backward(
        spec, scaling, x, problem.steps, weights, saved, zoneout_masks, dy, tuple(last)
    )
    return history, found


def check(problem, history, found, dtype):
    """Check the states and all gradients against those of the CPU."""
    _, (of_cpu, _) = problem.forward
    for one, other in zip(history, of_cpu, strict=True):
        assert_close(one, other, dtype, "history")
    expected = problem.backward
    # float32 roundings grow on the way back through the steps.
    assert_close(found.dx.host, expected.dx, dtype, "dx", 5)
    for one, other in zip(found.states, expected.states, strict=True):
        assert_close(one.host, other, dtype, "state", 5)
    for name, value in problem.given._asdict().items():
        if value is not None:
            got = found.parameters[name].host
            assert_close(got, expected.parameters[name], dtype, name, 5)
