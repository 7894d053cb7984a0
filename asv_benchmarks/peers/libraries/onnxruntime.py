"""ONNX Runtime: a model with the operator LayerNormalization."""

from __future__ import annotations

from functools import partial

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ..arrays import Arrays
from ..cases import EPS, Case
from . import Call

PACKAGES = ("onnxruntime", "onnx", "numpy")

_threads = 1


def start(threads: int) -> None:
    """Set the number of threads of later sessions."""
    global _threads
    _threads = threads


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a run of the model, on NumPy arrays or with a bound output."""
    if (case.norm, case.direction, case.dtype) != ("layer_norm", "forward", "float32"):
        return None
    session = _session(arrays)
    if not case.out:
        return Call(partial(session.run, None, {"x": arrays.x}), list)
    binding = session.io_binding()
    out = onnxruntime.OrtValue.ortvalue_from_shape_and_type(case.shape, arrays.x.dtype)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(arrays.x))
    binding.bind_ortvalue_output("y", out)
    return Call(partial(session.run_with_iobinding, binding), lambda _: [out.numpy()])


def _session(arrays: Arrays) -> onnxruntime.InferenceSession:
    node = helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["y"], epsilon=EPS)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, arrays.x.shape) for name in "xy")
    parameters = [
        numpy_helper.from_array(getattr(arrays, name), name) for name in ("gamma", "beta")
    ]
    graph = helper.make_graph([node], "layer_norm", [x], [y], parameters)
    # The first version of the operator, and its format.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads
    options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
