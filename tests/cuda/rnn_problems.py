"""Forms of a plain recurrent network, and what the tests of its cells are given."""

import functools
import itertools

import numpy as np
from cells import NORMS, Problem

from numnorm.backends.contract import Steps
from numnorm.rnn import RNNParameters
from numnorm.rnn.forms import rnn_form

FORMS = [
    rnn_form(norm, nonlinearity).cell
    for norm, nonlinearity in itertools.product(NORMS, ("tanh", "relu"))
]
ZONED = [rnn_form(*choice).cell._replace(zoneout=True) for choice in
         (("layer", "tanh"), ("rms", "relu"), (None, "tanh"))]  # fmt: skip


def parameters(form, units, inputs, dtype="float64", seed=0):
    """Those that a form has, none of them special."""
    rng = np.random.default_rng(seed)

    def draw(mean, *shape):
        return rng.normal(mean, 0.5, shape).astype(dtype)

    # Without a norm or a bound of the states, larger ones would grow from step to step.
    scale = 1 if form.norm is None and form.rectified else 2
    weights = rng.normal(0, scale / np.sqrt(units), (units, units)).astype(dtype)
    found = RNNParameters(draw(0, units, inputs), weights, draw(0, units))
    kinds = ("gamma", "beta")[: form.norm.parameters if form.norm else 0]
    return found._replace(**{kind: draw(kind == "gamma", units) for kind in kinds})


@functools.cache
def problem(form, units, counts, inputs=3, dtype="float64", seed=0, eps=1e-5):
    """A batch whose steps have so many rows; its numbers are all of a dtype."""
    rng, counts = np.random.default_rng(seed), np.array(counts, np.int64)
    rows, batch = int(counts.sum()), int(counts[0])

    def draw(*shape):
        return rng.normal(size=shape).astype(dtype).astype(np.float64)

    steps = Steps(np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    state, x = draw(batch, units), draw(rows, inputs)
    slopes = draw(rows, units), draw(batch, units)
    keep = rng.choice([0, 0.25, 1], (rows, units)).astype(np.float64) if form.zoneout else None
    given = parameters(form, units, inputs, dtype, seed)
    given = RNNParameters(*(None if p is None else p.astype(np.float64) for p in given))
    return Problem(form, given, x, steps, (state,), (keep,), slopes, eps)
