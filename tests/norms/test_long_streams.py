"""Streams of 1e9 steps: nothing drifts.

The statistics of a window are sums of its own steps, and those of an exponential norm shrink what
they were off by a factor of 1 - alpha at each step. So the error after any number of steps is that
after a few windows, or a few times 1 / alpha.
"""

import moving_reference as reference
import numpy as np
import pytest
from numba.core import config

import numnorm

COMPILED = pytest.mark.skipif(config.DISABLE_JIT, reason="it would take days")
CHUNK, CHUNKS = 1_000_000, 1000


def streamed(step, x, number):
    """Return the first and the last result of a chunk that comes again and again."""
    y, state = step(x, number)
    y, state = step(x, number, state)
    first, buffer = y, np.empty_like(x)
    for _ in range(CHUNKS - 2):
        y, state = step(x, number, state, out=buffer)
    return first, y


@pytest.mark.slow
@COMPILED
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_windows_after_1e9_steps(offset):
    x = np.random.default_rng(0).normal(size=CHUNK) + offset
    first, last = streamed(numnorm.moving_norm_step, x, 301)
    tail = reference.exact(x[-2000:]) - reference.exact(offset)
    expected = reference.moving_norm(tail, 301)[0][301:]
    # The roundings of sums of 301 deviations: 301 times 1e-16, and a result of up to 5.
    assert abs(last[-len(expected) :] - expected).max() <= 1e-13
    # Anchors lie elsewhere in each chunk, so that sums are rounded in another way.
    assert abs(last - first).max() <= 1e-13


@pytest.mark.slow
@COMPILED
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_exponential_statistics_after_1e9_steps(offset):
    x = np.random.default_rng(1).normal(size=CHUNK) + offset
    first, last = streamed(numnorm.exponential_norm_step, x, 0.01)
    tail = reference.exact(x[-6000:]) - reference.exact(offset)
    # A weight of 0.99**5000 is 1e-22.
    expected = reference.exponential_norm(tail, 0.01, means_of=reference.ewm_means_by_recursion)[0]
    assert abs(last[-500:] - expected[-500:]).max() <= 2e-13
    assert abs(last[-500_000:] - first[-500_000:]).max() <= 2e-13
