"""GRU and RNN beside the ONNX operators of these names, as ONNX Runtime runs them.

Both have zeros in y beyond a sequence's length, and its last state from within it; and "reverse"
begins at the sequence's own last step. They differ in a sequence of no steps: numnorm hands the
first state back, ONNX Runtime zeros.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest

from numnorm import rnn

onnx_operator = pytest.importorskip("onnx_operator", reason="ONNX Runtime is not installed")
pytestmark = pytest.mark.onnxruntime

TIME, BATCH, INPUTS, HIDDEN = 7, 5, 11, 19
# Seven steps, each of which rounds a state and a sum of 30 products, and sigmoid and tanh to a few
# units in the last place; relative to the largest state, which is below 1 but for the rectifier's.
TOLERANCE = 2e-6
REVERSE = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


class Operator(NamedTuple):
    """An operator with its attributes, and the cell of numnorm that it is."""

    name: str
    gates: int
    attributes: dict[str, Any]
    options: dict[str, Any]

    def own(self, suffix=""):
        return getattr(rnn, self.name.lower() + suffix)


OPERATORS = {
    "gru": Operator("GRU", 3, {"linear_before_reset": 1}, {}),
    "gru-before": Operator("GRU", 3, {"linear_before_reset": 0}, {"reset_after": False}),
    "tanh": Operator("RNN", 1, {}, {}),
    "relu": Operator("RNN", 1, {"activations": ["Relu"]}, {"nonlinearity": "relu"}),
}


def run_onnx(operator, direction, weights, inputs):
    """Run the operator; the names of weights and inputs are those of its arguments."""
    arguments = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    attributes = operator.attributes | {"direction": direction, "hidden_size": HIDDEN}
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * len(REVERSE[direction])
    return onnx_operator.run(operator.name, arguments, ["Y", "Y_h"], weights, inputs, **attributes)


def run_own(operator, direction, parameters, x, h=None, lengths=None):
    """Run numnorm once for each direction, and stack what comes out as ONNX has it."""
    found = [
        operator.own()(
            x, p, None if h is None else h[k], norm=None, lengths=lengths, reverse=reverse,
            **operator.options,
        )
        for k, (p, reverse) in enumerate(zip(parameters, REVERSE[direction], strict=True))
    ]  # fmt: skip
    y, last = zip(*found, strict=True)
    return np.stack(y, axis=1), np.stack(last)


def drawn_weights(rng, operator, count):
    """Weights as the operator has them, with two biases that are not 0."""
    rows = operator.gates * HIDDEN
    # Of a rectifier's states none must grow from step to step.
    shapes = {"W": (count, rows, INPUTS), "R": (count, rows, HIDDEN), "B": (count, 2 * rows)}
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def from_onnx(operator, weights):
    """The parameters of each direction."""
    convert, count = operator.own("_from_onnx"), len(weights["W"])
    return [convert(*(array[k : k + 1] for array in weights.values())) for k in range(count)]


def to_onnx(operator, parameters):
    """The weights of all directions."""
    directions = zip(*map(operator.own("_to_onnx"), parameters), strict=True)
    return dict(zip("WRB", map(np.concatenate, directions), strict=True))


def assert_close(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert np.abs(one - other).max() < TOLERANCE * max(1, np.abs(other).max())


# All of the array; unsorted; all shorter than the array; two of no steps at all.
LENGTHS = [[7, 7, 7, 7, 7], [3, 7, 1, 5, 7], [3, 2, 1, 6, 2], [4, 0, 7, 1, 0]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("direction", REVERSE)
@pytest.mark.parametrize("conversion", ["from_onnx", "to_onnx"])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=list(OPERATORS))
def test_every_length_and_direction(operator, conversion, direction, lengths):
    rng = np.random.default_rng(0)
    weights = drawn_weights(rng, operator, len(REVERSE[direction]))
    parameters = from_onnx(operator, weights)
    if conversion == "to_onnx":
        weights = to_onnx(operator, parameters)
    x = rng.standard_normal((TIME, BATCH, INPUTS), np.float32)
    h = rng.standard_normal((len(parameters), BATCH, HIDDEN), np.float32)
    inputs = {"X": x, "sequence_lens": np.array(lengths, np.int32), "initial_h": h}
    y, last = run_onnx(operator, direction, weights, inputs)
    own_y, own_last = run_own(operator, direction, parameters, x, h, lengths)

    empty = np.array(lengths) == 0
    assert not last[:, empty].any()
    np.testing.assert_array_equal(own_last[:, empty], h[:, empty])
    assert_close((own_y, own_last[:, ~empty]), (y, last[:, ~empty]))


@pytest.mark.parametrize("direction", REVERSE)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=list(OPERATORS))
def test_what_is_optional_left_out(operator, direction):
    rng = np.random.default_rng(1)
    weights = drawn_weights(rng, operator, len(REVERSE[direction]))
    del weights["B"]
    x = rng.standard_normal((TIME, BATCH, INPUTS), np.float32)
    theirs = run_onnx(operator, direction, weights, {"X": x})
    assert_close(run_own(operator, direction, from_onnx(operator, weights), x), theirs)


def test_a_reset_gate_before_the_weights_is_another_cell():
    operator = OPERATORS["gru"]._replace(attributes={"linear_before_reset": 0})
    rng = np.random.default_rng(2)
    weights = drawn_weights(rng, operator, 1)
    x = rng.standard_normal((TIME, BATCH, INPUTS), np.float32)
    y, _ = run_onnx(operator, "forward", weights, {"X": x})
    own_y, _ = run_own(operator, "forward", from_onnx(operator, weights), x)
    assert np.abs(own_y - y).max() > 0.01
