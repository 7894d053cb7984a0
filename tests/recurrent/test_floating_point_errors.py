"""Cells in half precision while NumPy raises its floating-point errors."""

import os

import numpy as np
import pytest

from numnorm import rnn

pytestmark = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="kernels that run as Python raise, too"
)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 6e4])
def test_no_floating_point_error_comes_out_of_a_cell(scale):
    with np.errstate(all="raise"):
        rng = np.random.default_rng(0)
        parameters = rnn.lstm_init(3, 2, rng=rng, dtype=np.float16)
        x = np.clip(rng.normal(size=(5, 2, 3)) * scale, -6e4, 6e4)
        with np.errstate(all="ignore"):
            x = x.astype(np.float16)
        y, _, _, saved = rnn.lstm_forward(x, parameters, lengths=[5, 2])
        dy = np.full(y.shape, 6e4, np.float16)
        gradients = rnn.lstm_backward(dy, saved)
        assert gradients.parameters.weight_x.dtype == np.float16
        rnn.stacked(x, [parameters], dropout=0.0)
