"""torchaudio's `sliding_window_cmn` by its definition: sums that go from step to step in PyTorch.

The definition is that of torchaudio 2 (`functional.sliding_window_cmn` with ``norm_vars=True``),
which follows Kaldi's ``apply-cmvn-sliding``: a trailing window holds ``cmn_window`` + 1 steps. Here
``min_cmn_window`` is 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...cases import Case
from .. import Call

PACKAGES = ("torch", "numpy")

# A loop in Python.
MOST_STEPS = 10_000

start = torch.set_num_threads


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the loop over few steps."""
    if case.norm != "moving_norm" or case.shape[0] > MOST_STEPS:
        return None
    x = torch.from_numpy(arrays.x)
    return Call(partial(sliding_window_cmn, x, case.window - 1), lambda y: [y.numpy()])


def sliding_window_cmn(x: torch.Tensor, cmn_window: int) -> torch.Tensor:
    """Return the result for steps × features, of trailing windows that grow from one step on."""
    y = torch.zeros_like(x)
    total, squares = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for t, step in enumerate(x):
        total = total + step
        squares = squares + step**2
        gone = t - cmn_window - 1
        if gone >= 0:
            total = total - x[gone]
            squares = squares - x[gone] ** 2
        count = min(t, cmn_window) + 1
        if count > 1:
            variance = squares / count - total**2 / count**2
            y[t] = (step - total / count) * variance**-0.5
    return y
