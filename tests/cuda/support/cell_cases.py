"""Specs of recurrent cells, launch shapes of their kernels, and inputs."""

import dataclasses
import functools
import itertools

import numpy as np

from numnorm.backends.contract.norms import scaling_by
from numnorm.backends.contract.recurrent import GRUSpec, LSTMSpec, PackedSteps, RNNSpec
from numnorm.backends.cpu.recurrent import cells as cpu
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.rnn.parameters import GRU, LSTM, RNN
from numnorm.rnn.specs import gru_spec, lstm_spec, rnn_spec

NORMS = ("layer", "rms", "ada", None)
VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")
NONLINEARITIES = ("tanh", "relu")
_LSTM_FORMS = [
    lstm_spec(norm, variant)
    for norm, variant in itertools.product(NORMS, VARIANTS)
    if norm or variant == "paper"
]
_GRU_FORMS = [gru_spec(norm) for norm in NORMS]
_RNN_FORMS = [rnn_spec(*choice) for choice in itertools.product(NORMS, NONLINEARITIES)]
_RESET_FORMS = [gru_spec(norm, False) for norm in NORMS]
# With the type, because tuples of different kinds may be equal.
_OF_NORMS = {
    (type(spec.cell), spec.cell): spec.parameters
    for spec in (*_LSTM_FORMS, *_GRU_FORMS, *_RESET_FORMS, *_RNN_FORMS)
}
KINDS = {LSTMSpec: LSTM, GRUSpec: GRU, RNNSpec: RNN}
_CHOSEN = {"norm": "layer", "variant": "paper", "nonlinearity": "tanh", "reset_after": True}


def spec_of(kind, **options):
    """Return the spec of a kind of cell with these options."""
    make = {"lstm": lstm_spec, "gru": gru_spec, "rnn": rnn_spec}[kind.name]
    return make(*((_CHOSEN | options)[name] for name in kind.options)).cell


def zoned(spec):
    """Return the spec of a cell with zoneout."""
    return spec.cell._replace(zoneout=True)


LSTM_FORMS = [
    *(spec.cell for spec in _LSTM_FORMS),
    *(zoned(lstm_spec("layer", variant)) for variant in ("paper", "normalized_cell")),
    zoned(lstm_spec(None, "paper")),
]
GRU_FORMS = [*(spec.cell for spec in _GRU_FORMS), *(zoned(gru_spec(n)) for n in ("layer", None))]
RNN_FORMS = [
    *(spec.cell for spec in _RNN_FORMS),
    *(zoned(rnn_spec(norm, "tanh")) for norm in ("layer", None)),
    zoned(rnn_spec("rms", "relu")),
]

# Teams of a part of a warp, a warp and several; units that fill vectors of 16 bytes or not; threads
# that have more than one vector of a row.
SHAPES = {
    "several rows a warp": (RowShape(4, 8, 1, True), 12),
    "a row a warp": (RowShape(32, 1, 1, False), 37),
    "several warps a row": (RowShape(64, 1, 1, True), 132),
    "odd, several rows a warp": (RowShape(8, 4, 1, False), 13),
    "odd, several warps a row": (RowShape(64, 1, 1, False), 67),
    "two vectors a thread": (RowShape(8, 4, 2, True), 52),
    "odd, four vectors a thread": (RowShape(32, 1, 4, False), 259),
}


def shape_for(name, dtype):
    """Return a launch shape and a number of units; float64 has twice the threads of a row."""
    shape, units = SHAPES[name]
    if dtype == "float64":
        teams = shape.teams // 2 or 1
        shape = dataclasses.replace(shape, team=2 * shape.team, teams=teams)
    return shape, units


def parameters(spec, units, inputs, dtype="float64", seed=0):
    """Return random parameters of a spec."""
    rng, kind = np.random.default_rng(seed), KINDS[type(spec)]
    names = _OF_NORMS[type(spec), spec._replace(zoneout=False)]
    wide = len(kind.gates) * units

    def draw(mean, *shape):
        return rng.normal(mean, 0.5, shape).astype(dtype)

    found = {"weight_x": draw(0, wide, inputs)}
    # Without a norm or a bound of the states, larger ones would grow from step to step.
    unbounded = kind is RNN and spec.rectified and spec.norm is None
    scale = 1 if unbounded else 2
    found["weight_h"] = rng.normal(0, scale / np.sqrt(units), (wide, units)).astype(dtype)
    for name, size in kind.sizes.items():
        if name in names or name.startswith("bias"):
            found[name] = draw(1 if name.startswith("gamma") else 0, size * units)
    return kind.parameters(**found)


@dataclasses.dataclass
class Problem:
    """A batch for one spec, in float64 whatever dtype the test computes in."""

    spec: object
    given: tuple
    x: np.ndarray
    steps: object
    states: tuple
    zoneout_masks: tuple
    grads: tuple
    eps: float = 1e-5

    @functools.cached_property
    def forward(self):
        """The parameters as the CPU takes them, and its states and saved arrays."""
        weights = cpu.cell_weights(self.spec, self.given, 1.0, 0.1, False)
        scaling = scaling_by(self.eps)
        found = cpu.cell_forward(
            self.spec, scaling, self.x, self.steps, weights, self.states, self.zoneout_masks, True
        )
        return weights, found

    @functools.cached_property
    def backward(self):
        """All gradients of the CPU."""
        weights, (_, saved) = self.forward
        dy, *last = self.grads
        last = tuple(a.copy() for a in last)
        return cpu.cell_backward(
            self.spec, scaling_by(self.eps), self.x, self.steps, weights, saved,
            self.zoneout_masks, dy, last,
        )  # fmt: skip


@functools.lru_cache(None, typed=True)  # specs of two kinds may be equal tuples
def problem(spec, units, batch_sizes, inputs=3, dtype="float64", seed=0, eps=1e-5):
    """Return a batch whose steps have `batch_sizes` rows, of numbers that a dtype represents."""
    rng, batch_sizes = np.random.default_rng(seed), np.array(batch_sizes, np.int64)
    rows, batch = int(batch_sizes.sum()), int(batch_sizes[0])

    def draw(*shape):
        return rng.normal(size=shape).astype(dtype).astype(np.float64)

    steps = PackedSteps(np.concatenate(([0], np.cumsum(batch_sizes)[:-1])), batch_sizes)
    names = KINDS[type(spec)].states
    states, x = tuple(draw(batch, units) for _ in names), draw(rows, inputs)
    zoneout_masks = (None,) * len(names)
    if spec.zoneout:
        zoneout_masks = tuple(
            rng.choice([0, 0.25, 1], (rows, units)).astype(np.float64) for _ in names
        )
    grads = draw(rows, units), *(draw(batch, units) for _ in names)
    given = parameters(spec, units, inputs, dtype, seed)
    given = type(given)(*(None if p is None else p.astype(np.float64) for p in given))
    return Problem(spec, given, x, steps, states, zoneout_masks, grads, eps)
