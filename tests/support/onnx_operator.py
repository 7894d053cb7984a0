"""Runs a single ONNX operator in ONNX Runtime."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

KINDS = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}


def run(operator, arguments, outputs, weights, inputs, **attributes):
    """Run an operator with the arguments in `weights`, which are constants, and in `inputs`."""
    describe = onnx.helper.make_tensor_value_info
    present = [name if name in weights or name in inputs else "" for name in arguments]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, present, outputs, **attributes)],
        operator,
        [describe(name, KINDS[array.dtype], array.shape) for name, array in inputs.items()],
        [describe(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = onnx.helper.make_opsetid("", 14)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)
