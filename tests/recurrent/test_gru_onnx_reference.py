"""GRU beside ONNX's own reference evaluator, for both places of the reset gate."""

import numpy as np
import pytest

from numnorm import rnn

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
reference = pytest.importorskip("onnx.reference", reason="onnx is not installed")

TIME, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6


def evaluated(x, weights, h, linear_before_reset):
    """The outputs Y and Y_h of the operator, in float64."""
    names = ["X", "W", "R", "B", "", "initial_h"]
    kind = onnx.TensorProto.DOUBLE
    describe = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        "GRU", names, ["Y", "Y_h"], hidden_size=HIDDEN, linear_before_reset=linear_before_reset
    )
    inputs = {"X": x, **weights, "initial_h": h}
    graph = onnx.helper.make_graph(
        [node], "gru", [describe(n, kind, a.shape) for n, a in inputs.items()],
        [describe(n, kind, None) for n in ("Y", "Y_h")],
    )  # fmt: skip
    opset = onnx.helper.make_opsetid("", 14)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return reference.ReferenceEvaluator(model).run(None, inputs)


@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_gru(linear_before_reset):
    rng = np.random.default_rng(0)
    rows = 3 * HIDDEN
    shapes = {"W": (1, rows, INPUTS), "R": (1, rows, HIDDEN), "B": (1, 2 * rows)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x, h = rng.normal(size=(TIME, BATCH, INPUTS)), rng.normal(size=(1, BATCH, HIDDEN))
    expected_y, expected_h = evaluated(x, weights, h, linear_before_reset)
    parameters = rnn.gru_from_onnx(*weights.values())
    options = {"norm": None, "reset_after": bool(linear_before_reset)}
    y, last = rnn.gru(x, parameters, h[0], **options)
    # Five steps of sums of ten products, of states of size 1.
    np.testing.assert_allclose(y, expected_y[:, 0], rtol=0, atol=2e-14)
    np.testing.assert_allclose(last, expected_h[0], rtol=0, atol=2e-14)
    again = dict(zip("WRB", rnn.gru_to_onnx(parameters), strict=True))
    y_again, _ = evaluated(x, again, h, linear_before_reset)
    np.testing.assert_allclose(y_again, expected_y, rtol=0, atol=2e-14)
