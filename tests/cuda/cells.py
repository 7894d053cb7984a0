"""Forms of an LSTM, shapes of its kernels, and what the tests of its cells are given."""

import dataclasses
import functools
import itertools

import numpy as np

from numnorm.backends.contract import Steps, scaling_by
from numnorm.backends.cpu import cells as cpu
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.rnn import LSTMParameters
from numnorm.rnn.forms import lstm_form

NORMS = ("layer", "rms", "ada", None)
VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")
FORMS = [
    lstm_form(norm, variant).cell
    for norm, variant in itertools.product(NORMS, VARIANTS)
    if norm or variant == "paper"
]
ZONED = [lstm_form(*choice).cell._replace(zoneout=True) for choice in
         (("layer", "paper"), ("layer", "normalized_cell"), (None, "paper"))]  # fmt: skip

# Parts of a warp, a warp and several; units in whole pieces of 16 bytes, and any number of them.
SHAPES = {
    "several rows a warp": (RowShape(4, 8, 1, True), 12),
    "a row a warp": (RowShape(32, 1, 1, False), 37),
    "several warps a row": (RowShape(64, 1, 1, True), 132),
    "odd, several rows a warp": (RowShape(8, 4, 1, False), 13),
    "odd, several warps a row": (RowShape(64, 1, 1, False), 67),
}


def shape_for(name, dtype):
    """A shape, and a number of units; float64 has twice the threads, of half the units."""
    shape, units = SHAPES[name]
    if dtype == "float64":
        teams = shape.teams // 2 or 1
        shape = dataclasses.replace(shape, team=2 * shape.team, teams=teams)
    return shape, units


def parameters(form, units, inputs, dtype="float64", seed=0):
    """Those that a form has, none of them special."""
    rng = np.random.default_rng(seed)
    four = 4 * units

    def draw(mean, *shape):
        return rng.normal(mean, 0.5, shape).astype(dtype)

    weights = rng.normal(0, 2 / np.sqrt(units), (four, units)).astype(dtype)
    found = LSTMParameters(draw(0, four, inputs), weights, draw(0, four))
    norm = form.gates or form.cell
    if norm is None or not norm.parameters:
        return found
    gains = {"gamma_c": draw(1, units), "beta_c": draw(0, units)}
    if form.gates:
        gains |= {"gamma_h": draw(1, four), "beta_h": draw(0, four)}
    if form.by_product:
        gains |= {"gamma_x": draw(1, four), "beta_x": draw(0, four)}
    kinds = ("gamma", "beta")[: norm.parameters]
    return found._replace(**{k: v for k, v in gains.items() if k.split("_")[0] in kinds})


@dataclasses.dataclass
class Problem:
    """A batch for one form, in float64 however it is going to be computed."""

    form: object
    given: tuple
    x: np.ndarray
    steps: object
    states: tuple
    keeps: tuple
    slopes: tuple
    eps: float = 1e-5

    @functools.cached_property
    def forward(self):
        """Of the CPU: the parameters as it takes them; the states, and what it saves."""
        weights = cpu.cell_weights(self.form, self.given, 1.0, 0.1, False)
        scaling = scaling_by(self.eps)
        found = cpu.cell_forward(
            self.form, scaling, self.x, self.steps, weights, self.states, self.keeps, True
        )
        return weights, found

    @functools.cached_property
    def backward(self):
        """Of the CPU: all gradients."""
        weights, (_, saved) = self.forward
        dy, *last = self.slopes
        last = tuple(a.copy() for a in last)
        return cpu.cell_backward(
            self.form, scaling_by(self.eps), self.x, self.steps, weights, saved, self.keeps, dy,
            last,
        )  # fmt: skip


@functools.cache
def problem(form, units, counts, inputs=3, dtype="float64", seed=0, eps=1e-5):
    """A batch whose steps have so many rows; its numbers are all of a dtype."""
    rng, counts = np.random.default_rng(seed), np.array(counts, np.int64)
    rows, batch = int(counts.sum()), int(counts[0])

    def draw(*shape):
        return rng.normal(size=shape).astype(dtype).astype(np.float64)

    steps = Steps(np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    states, x = (draw(batch, units), draw(batch, units)), draw(rows, inputs)
    keeps = (None, None)
    if form.zoneout:
        keeps = tuple(rng.choice([0, 0.25, 1], (rows, units)).astype(np.float64) for _ in range(2))
    slopes = draw(rows, units), draw(batch, units), draw(batch, units)
    given = parameters(form, units, inputs, dtype, seed)
    given = LSTMParameters(*(None if p is None else p.astype(np.float64) for p in given))
    return Problem(form, given, x, steps, states, keeps, slopes, eps)
