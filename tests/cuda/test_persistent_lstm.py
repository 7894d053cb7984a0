"""All steps of an LSTM in one kernel whose blocks wait for each other, beside the CPU's passes."""

import dataclasses
import functools

import cells
import numpy as np
import pytest
import simulated_target
from fake_libraries import LIBRARIES
from test_lstm_cells import check, run, taken_by
from test_lstm_kernels import FORMS, SOME_FORMS, assert_close, scaled

from numnorm.backends.cuda import lstm_persistent, persistent_plans
from numnorm.backends.cuda.device_limits import DeviceLimits
from numnorm.backends.cuda.elements import FLOAT32, FLOAT64
from numnorm.backends.cuda.lstm_gates import GATES
from numnorm.backends.cuda.persistent_plans import SliceShape, persistent_plan, shared_numbers
from numnorm.rnn.forms import lstm_form

PAPER = lstm_form("layer", "paper").cell
# As the drivers of some devices tell them.
H200 = DeviceLimits(132, 232448, 233472, 2048, 65536, cooperative=True)
RTX4090 = DeviceLimits(128, 101376, 102400, 1536, 65536, cooperative=True)
T4 = DeviceLimits(40, 65536, 65536, 1024, 65536, cooperative=True)


@pytest.fixture
def small(monkeypatch):
    """A device with room for few blocks, and blocks of two warps."""
    launched = []
    forward = lstm_persistent.run_forward

    def counted(plan, *arguments, **options):
        launched.append(plan)
        return forward(plan, *arguments, **options)

    limits = DeviceLimits(6, 65536, 65536, 2048, 65536, cooperative=True)
    monkeypatch.setattr(persistent_plans, "_WARPS", 2)
    monkeypatch.setattr(simulated_target, "LIMITS", limits)
    monkeypatch.setattr(lstm_persistent, "run_forward", counted)
    return launched


@pytest.fixture
def taken(imported):
    return functools.partial(taken_by, imported("torch"))


def check_passes(problem, taken, dtype, small, blocks):
    """Forward in one kernel, and backward from what that saved."""
    check(problem, *run(problem, taken, dtype), dtype)
    (plan,) = small
    assert plan.blocks == blocks


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, small, taken):
    # Two slices, the second of two units; two groups of rows, the second one shorter.
    check_passes(cells.problem(form, 10, (5, 5, 3, 1)), taken, "float64", small, 4)
