"""Recurrent batch norm beside its equations in PyTorch, with its batch norm at every step."""

import numpy as np
import pytest
from torch_cells import (
    DTYPES,
    SIZES,
    Passes,
    as_tensors,
    assert_close,
    assert_passes_close,
    draw,
    noisy,
    own_passes,
    torch,
)

from numnorm import rnn

pytestmark = pytest.mark.torch

VARIANTS = ["paper", "normalized_cell", "per_gate", "cell_only"]
TIME, BATCH, INPUTS, HIDDEN = SIZES["time"], 12, SIZES["inputs"], SIZES["hidden"]
# A variance of few sequences may be small, and a division by its root makes roundings large.
LENGTHS = [7, 3, 7, 6, 7, 7, 2, 7, 7, 5, 7, 7]
STEPS = 5


class BatchNorm:
    """Batch norm of each step by itself; running statistics (S, features) are by place."""

    def __init__(self, running=None, training=True):
        self.running, self.training = running, training

    def __call__(self, t, place, x, gamma, beta):
        mean = variance = None
        if self.running is not None and not (self.training and t >= STEPS):
            mean, variance = (a[min(t, STEPS - 1)] for a in self.running[place])
        return torch.nn.functional.batch_norm(x, mean, variance, gamma, beta, self.training)


def batch_step(norm, variant, p, t, x, h, c):
    """One step of all sequences that have it."""
    of_x, of_h = x @ p.weight_x.T, h @ p.weight_h.T
    if variant in ("paper", "normalized_cell"):
        z = norm(t, "h", of_h, p.gamma_h, p.beta_h) + norm(t, "x", of_x, p.gamma_x, p.beta_x)
    elif variant == "per_gate":
        z = norm(t, "h", of_h + of_x, p.gamma_h, p.beta_h)
    else:
        z = of_x + of_h
    f, i, o, g = (z + p.bias).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    normalized = norm(t, "c", c, p.gamma_c, p.beta_c)
    h = torch.sigmoid(o) * torch.tanh(normalized)
    return h, normalized if variant == "normalized_cell" else c


def batch_passes(norm, variant, x, parameters, states, grads, lengths):
    """Run all sequences side by side: a step takes those that have it."""
    p = type(parameters)(*as_tensors(parameters))
    tensors = as_tensors([x, *states])
    lengths = np.array([TIME] * BATCH if lengths is None else lengths)
    now, rows = list(tensors[1:]), []
    for t in range(TIME):
        (alive,) = np.nonzero(lengths > t)
        new = batch_step(norm, variant, p, t, tensors[0][t, alive], *(s[alive] for s in now))
        now = [
            old.index_put((torch.from_numpy(alive),), value)
            for old, value in zip(now, new, strict=True)
        ]
        beyond = torch.from_numpy(lengths <= t)[:, None]
        rows.append(now[0].masked_fill(beyond, 0))
    outputs = [torch.stack(rows), *now]
    torch.autograd.backward(outputs, [torch.from_numpy(a) for a in grads])
    of_parameters = type(p)(*(None if a is None else a.grad for a in p))
    return Passes(outputs, [tensor.grad for tensor in tensors], of_parameters)


def problem(variant, dtype):
    rng = np.random.default_rng(3)
    options = {"norm": "batch", "variant": variant}
    parameters = noisy(rnn.lstm_init(INPUTS, HIDDEN, rng=rng, **options), rng, dtype)
    one, every = (BATCH, HIDDEN), (TIME, BATCH, HIDDEN)
    x, h, c, *grads = draw(4, (TIME, BATCH, INPUTS), one, one, every, one, one, dtype=dtype)
    return x, parameters, [h, c], grads


def some_statistics(variant, dtype):
    rng = np.random.default_rng(5)
    fresh = rnn.lstm_statistics_init(STEPS, HIDDEN, variant=variant, dtype=dtype)
    return rnn.LSTMStatistics(
        *(None if s is None else (s + rng.uniform(0, 0.5, s.shape)).astype(dtype) for s in fresh)
    )


def by_place(statistics):
    """Copies of mean and variance of each place, as tensors."""
    tensors = [None if s is None else torch.from_numpy(s.copy()) for s in statistics]
    return dict(zip("xhc", zip(tensors[::2], tensors[1::2], strict=True), strict=True))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_of_the_batch(dtype, variant, lengths):
    arguments = problem(variant, dtype)
    mine = own_passes("lstm", *arguments, norm="batch", variant=variant, lengths=lengths)
    assert_passes_close(mine, batch_passes(BatchNorm(), variant, *arguments, lengths), dtype)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_running_statistics(variant, training):
    # The later steps have none of their own: in training they have nothing to update.
    arguments, statistics = problem(variant, np.float64), some_statistics(variant, np.float64)
    running = by_place(statistics)
    norm = rnn.RecurrentBatchNorm(statistics, training=training)
    mine = own_passes("lstm", *arguments, norm=norm, variant=variant, lengths=LENGTHS)
    theirs = batch_passes(BatchNorm(running, training), variant, *arguments, LENGTHS)
    assert_passes_close(mine, theirs, np.float64)
    for place, (mean, variance) in running.items():
        if mean is not None:
            assert_close(getattr(statistics, f"mean_{place}"), mean)
            assert_close(getattr(statistics, f"var_{place}"), variance)
