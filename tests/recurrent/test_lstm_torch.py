"""LSTM beside PyTorch: its own, packed or not, and LN-LSTM written in it."""

import functools

import numpy as np
import pytest
from torch_cells import (
    DTYPES,
    LENGTHS,
    SIZES,
    assert_passes_close,
    draw,
    draw_problem,
    layer_passes,
    lstm_step,
    module_of,
    noisy,
    own_passes,
    step_passes,
)

from numnorm import rnn

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_norm(dtype, bias, lengths):
    module = module_of("LSTM", dtype, bias=bias)
    (parameters,) = rnn.layers_from_torch(module.state_dict(), rnn.lstm_from_torch)
    x, states, grads = draw_problem(1, 2, dtype)
    mine = own_passes("lstm", x, parameters, states, grads, norm=None, lengths=lengths)
    theirs = layer_passes(module, rnn.lstm_from_torch, x, states, grads, lengths)
    assert_passes_close(mine, theirs, dtype)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projections(dtype, lengths):
    module = module_of("LSTM", dtype, proj_size=6)
    (parameters,) = rnn.layers_from_torch(module.state_dict(), rnn.lstm_from_torch)
    x, (_, c), (_, _, dc) = draw_problem(1, 2, dtype)
    time, batch = x.shape[:2]
    h, dy, dh = draw(2, (batch, 6), (time, batch, 6), (batch, 6), dtype=dtype)
    mine = own_passes("lstm", x, parameters, (h, c), (dy, dh, dc), norm=None, lengths=lengths)
    theirs = layer_passes(module, rnn.lstm_from_torch, x, (h, c), (dy, dh, dc), lengths)
    assert_passes_close(mine, theirs, dtype)


@pytest.mark.parametrize("variant", ["paper", "normalized_cell", "per_gate", "cell_only"])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalized(dtype, norm, variant):
    rng = np.random.default_rng(3)
    options = {"norm": norm, "variant": variant}
    parameters = rnn.lstm_init(SIZES["inputs"], SIZES["hidden"], rng=rng, **options)
    parameters = noisy(parameters, rng, dtype)
    x, states, grads = draw_problem(4, 2, dtype)
    mine = own_passes("lstm", x, parameters, states, grads, **options)
    step = functools.partial(lstm_step, norm, variant)
    assert_passes_close(mine, step_passes(step, x, parameters, states, grads), dtype)


def test_conversions_there_and_back():
    module = module_of("LSTM", np.float32)
    arrays = [p.detach().numpy() for p in module.parameters()]
    parameters = rnn.lstm_from_torch(*arrays[:3])
    for mine, theirs in zip(rnn.lstm_to_torch(parameters), arrays[:3]):
        np.testing.assert_array_equal(mine, theirs)
    again = rnn.lstm_from_onnx(*rnn.lstm_to_onnx(parameters))
    for mine, theirs in zip(again, parameters, strict=True):
        np.testing.assert_array_equal(mine, theirs)
