"""Exponential norms beside a step whose share in its statistics is near 1, in exact numbers.

After a long gap little is left of the statistics before it: less than the digits of 1 - share.
"""

import numpy as np
import pytest
from moving_fractions import GAPS, TOLERANCE, beside_a_gap

import numnorm


@pytest.mark.parametrize("shape", [(-1,), (-1, 9)])
@pytest.mark.parametrize("adjust", [True, False])
@pytest.mark.parametrize("alpha, gap", GAPS)
def test_what_is_left_after_a_gap(alpha, gap, adjust, shape):
    x, dy, kept, (y, rstd, dx) = beside_a_gap(alpha, gap, adjust)
    if len(shape) > 1:
        x, dy = (np.repeat(a[:, None], shape[1], 1) for a in (x, dy))
    options = {"axis": 0, "adjust": adjust, "eps": 0, "nan_policy": "omit" if gap else "propagate"}
    found = numnorm.exponential_norm_forward(x, alpha, **options)
    got = numnorm.exponential_norm_backward(dy, x, *found[1:], alpha, **options)
    for one, own in zip((found.y, found.rstd, got), (y, rstd, dx), strict=True):
        one = one[kept].reshape(kept.size, -1)
        np.testing.assert_array_equal(one, one[:, :1].repeat(one.shape[1], 1))
        # The terms of a gradient may cancel, if their sizes are those of dy.
        scale = own if own is rstd else max(abs(own).max(), abs(dy).max())
        assert (abs(one[:, 0] - own) <= TOLERANCE * scale).all()
    chunks, state = [], None
    for part in np.split(x, [3, 4 + gap]):
        step = numnorm.exponential_norm_step(part, alpha, state, **options)
        chunks.append(step[0])
        state = step[1]
    np.testing.assert_array_equal(np.concatenate(chunks), found.y)


@pytest.mark.parametrize("gap", [10, 30, 60, 300])
def test_a_flat_channel_after_a_gap(gap):
    x = [5.0, 5.0, 5.0] + [np.nan] * gap + [7.0]
    y = numnorm.exponential_norm(x, 0.5, eps=0, nan_policy="omit")
    # One over the root of the share of the last step.
    expected = (1 + (2 - 0.25) * 0.5 ** (gap + 1)) ** 0.5
    np.testing.assert_allclose(y[-1], expected, rtol=1e-15)
