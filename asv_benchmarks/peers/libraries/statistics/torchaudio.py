"""torchaudio's `sliding_window_cmn` by its definition: sums that go from step to step in PyTorch.

The definition is that of torchaudio 2 (`functional.sliding_window_cmn` with ``norm_vars=True``),
which follows Kaldi's ``apply-cmvn-sliding``: a trailing window holds ``cmn_window`` + 1 steps.
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


def sliding_window_cmn(x: torch.Tensor, cmn_window: int, least: int = 1) -> torch.Tensor:
    """Return the result for steps × features and trailing windows, the first of `least` steps."""
    y = torch.empty_like(x)
    end = min(max(1, least), len(x))
    total, squares = x[:end].sum(0), (x[:end] ** 2).sum(0)
    for t, step in enumerate(x):
        if t >= end:
            end = t + 1
            total = total + step
            squares = squares + step**2
        start = max(0, t - cmn_window)
        if start > 0:
            gone = x[start - 1]
            total = total - gone
            squares = squares - gone**2
        count = end - start
        if count == 1:
            y[t] = 0
        else:
            variance = squares / count - total**2 / count**2
            y[t] = (step - total / count) * variance**-0.5
    return y
