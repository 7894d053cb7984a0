"""LSTM beside the ONNX operator LSTM, as ONNX Runtime runs it.

Both have zeros in y beyond a sequence's length, and its last state and cell from within it; and
"reverse" begins at the sequence's own last step. They differ in a sequence of no steps: numnorm
hands the first state and cell back, ONNX Runtime zeros.
"""

import numpy as np
import pytest

from numnorm import rnn

onnx_operator = pytest.importorskip("onnx_operator", reason="ONNX Runtime is not installed")
pytestmark = pytest.mark.onnxruntime

TIME, BATCH, INPUTS, HIDDEN = 7, 5, 11, 19
# States are below 1 and cells below 4. Seven steps, each of which rounds a cell, and sigmoid and
# tanh to a few units in the last place: 7 * 4 * 6e-8.
TOLERANCE = 2e-6
REVERSE = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def onnx_lstm(direction, weights, inputs):
    """Run the operator; the names of weights and inputs are those of its arguments."""
    arguments = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c"]
    outputs = ["Y", "Y_h", "Y_c"]
    options = {"direction": direction, "hidden_size": HIDDEN}
    return onnx_operator.run("LSTM", arguments, outputs, weights, inputs, **options)


def own_lstm(direction, parameters, x, h=None, c=None, lengths=None):
    """Run numnorm once for each direction, and stack what comes out as ONNX has it."""
    nothing = [None] * len(parameters)
    passes = zip(
        parameters, nothing if h is None else h, nothing if c is None else c, REVERSE[direction],
        strict=True,
    )  # fmt: skip
    found = [
        rnn.lstm(x, p, first_h, first_c, norm=None, lengths=lengths, reverse=reverse)
        for p, first_h, first_c, reverse in passes
    ]
    y, last_h, last_c = zip(*found, strict=True)
    return np.stack(y, axis=1), np.stack(last_h), np.stack(last_c)


def drawn_weights(rng, count):
    """Weights as the operator has them, with two biases that are not 0."""
    shapes = {
        "W": (count, 4 * HIDDEN, INPUTS),
        "R": (count, 4 * HIDDEN, HIDDEN),
        "B": (count, 8 * HIDDEN),
    }
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def from_onnx(weights):
    """The parameters of each direction."""
    count = len(weights["W"])
    return [
        rnn.lstm_from_onnx(*(array[k : k + 1] for array in weights.values())) for k in range(count)
    ]


def to_onnx(parameters):
    """The weights of all directions."""
    directions = zip(*map(rnn.lstm_to_onnx, parameters), strict=True)
    return dict(zip("WRB", map(np.concatenate, directions), strict=True))


def largest_difference(left, right):
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


# All of the array; unsorted; all shorter than the array; two of no steps at all.
LENGTHS = [[7, 7, 7, 7, 7], [3, 7, 1, 5, 7], [3, 2, 1, 6, 2], [4, 0, 7, 1, 0]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("direction", REVERSE)
@pytest.mark.parametrize("conversion", ["from_onnx", "to_onnx"])
def test_every_length_and_direction(conversion, direction, lengths):
    rng = np.random.default_rng(0)
    count = len(REVERSE[direction])
    if conversion == "from_onnx":
        weights = drawn_weights(rng, count)
        parameters = from_onnx(weights)
    else:
        parameters = [rnn.lstm_init(INPUTS, HIDDEN, rng=rng, norm=None) for _ in range(count)]
        weights = to_onnx(parameters)
    x = rng.standard_normal((TIME, BATCH, INPUTS), np.float32)
    h, c = rng.standard_normal((2, count, BATCH, HIDDEN), np.float32)
    inputs = {"X": x, "sequence_lens": np.array(lengths, np.int32), "initial_h": h, "initial_c": c}
    y, last_h, last_c = onnx_lstm(direction, weights, inputs)
    own_y, own_h, own_c = own_lstm(direction, parameters, x, h, c, lengths)

    assert np.abs(last_c).max() < 4
    empty = np.array(lengths) == 0
    for states in (last_h, last_c):
        assert not states[:, empty].any()
    np.testing.assert_array_equal(own_h[:, empty], h[:, empty])
    np.testing.assert_array_equal(own_c[:, empty], c[:, empty])
    own = (own_y, own_h[:, ~empty], own_c[:, ~empty])
    assert largest_difference(own, (y, last_h[:, ~empty], last_c[:, ~empty])) < TOLERANCE


@pytest.mark.parametrize("direction", REVERSE)
def test_what_is_optional_left_out(direction):
    rng = np.random.default_rng(1)
    weights = drawn_weights(rng, len(REVERSE[direction]))
    del weights["B"]
    x = rng.standard_normal((TIME, BATCH, INPUTS), np.float32)
    theirs = onnx_lstm(direction, weights, {"X": x})
    assert largest_difference(own_lstm(direction, from_onnx(weights), x), theirs) < TOLERANCE
