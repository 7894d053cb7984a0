"""Weights in the layout of other libraries: order and signs of the gates, and two biases."""

from typing import Any

import numpy as np

from numnorm.arguments import check_shape, result_dtype
from numnorm.array_likes import as_plain_array
from numnorm.rnn.parameters import PROJECTED_LSTM, Kind, is_mark, kind_of, named, without_norm

Array = np.ndarray[Any, Any]

# The gates of each kind in the order of the rows; "-z" stands for the rows of z negated:
# 1 - σ(z) = σ(-z).
_TORCH = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "-z", "new"), "rnn": ("new",)}
_ONNX = {"lstm": ("i", "o", "f", "g"), "gru": ("-z", "r", "new"), "rnn": ("new",)}
KERAS = {"lstm": ("i", "f", "g", "o"), "gru": ("-z", "r", "new"), "rnn": ("new",)}
HASTE = {"lstm": ("i", "g", "f", "o"), "gru": ("-z", "r", "new")}


def from_torch(
    kind: Kind, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any, weight_hr: Any = None
) -> Any:
    """Return the parameters of a kind from the weights of PyTorch."""
    if weight_hr is not None:
        kind, weight_hr = PROJECTED_LSTM, np.array(_real("weight_hr", weight_hr))
    names = "weight_ih", "weight_hh", "weight_hr"
    w, r = _weights(kind, names, weight_ih, weight_hh, weight_hr)
    size = r.shape[0]
    first, second = (
        None if value is None else _vector(name, value, size, "that of the gates")
        for name, value in (("bias_ih", bias_ih), ("bias_hh", bias_hh))
    )
    return _from_library(kind, _TORCH, w, r, first, second, weight_hr)


def to_torch(kind: Kind, parameters: Any) -> tuple[Array, ...]:
    """Return both weights and both biases for PyTorch, and the projection of an LSTM with one."""
    kind = kind_of(kind, parameters)
    arrays = _to_library(kind, _TORCH, parameters)
    if kind is not PROJECTED_LSTM:
        return arrays
    return *arrays, np.array(_real("projection", named(kind, parameters).projection))


def from_onnx(kind: Kind, w: Any, r: Any, b: Any) -> Any:
    """Return the parameters of a kind from the inputs of the ONNX operator."""
    w, r = _weights(kind, ("w", "r"), _one_direction("w", w, 3), _one_direction("r", r, 3))
    size = r.shape[0]
    if b is None:
        return _from_library(kind, _ONNX, w, r, None, None)
    both = _vector("b", _one_direction("b", b, 2), 2 * size, "two biases of the gates")
    return _from_library(kind, _ONNX, w, r, both[:size], both[size:])


def to_onnx(kind: Kind, parameters: Any) -> tuple[Array, Array, Array]:
    """Return the inputs W, R and B of the ONNX operator."""
    _check_unprojected(kind, parameters, "ONNX")
    w, r, first, second = _to_library(kind, _ONNX, parameters)
    return w[None], r[None], np.concatenate([first, second])[None]


def from_kernels(
    kind: Kind,
    library: Any,
    kernel: Any,
    recurrent_kernel: Any,
    first: tuple[str, Any],
    second: tuple[str, Any] = ("recurrent_bias", None),
) -> Any:
    """Return the parameters of a kind from kernels, whose columns are the gates, and biases.

    A bias is a pair of its name and its value, which may be None.
    """
    w, r = _kernels(kind, kernel, recurrent_kernel)
    biases = (
        None if value is None else _vector(name, value, r.shape[0], "that of the gates")
        for name, value in (first, second)
    )
    return _from_library(kind, library, w, r, *biases)


def with_norm(kind: Kind, library: Any, parameters: Any, **arrays: tuple[str, Any]) -> Any:
    """Return the parameters with gains and biases of norms, each a pair of name and value.

    A gain or bias that is not given becomes None.
    """
    units = parameters.weight_h.shape[1]
    values: dict[str, Any] = dict.fromkeys(without_norm(kind, np.float64))  # None: gain 1
    for field, (name, value) in arrays.items():
        of_gates = kind.sizes[field] > 1
        meaning = "that of the gates" if of_gates else "that of the units"
        array = _vector(name, value, kind.sizes[field] * units, meaning)
        values[field] = (
            _reordered(array, library[kind.name], kind.gates) if of_gates else array.copy()
        )
    return parameters._replace(**values)


def to_kernels(
    kind: Kind, library: Any, parameters: Any, name: str
) -> tuple[Array, Array, Array, Array]:
    """Return both kernels and both biases for a library of this name."""
    _check_unprojected(kind, parameters, name)
    w, r, first, second = _to_library(kind, library, parameters)
    return np.ascontiguousarray(w.T), np.ascontiguousarray(r.T), first, second


def _from_library(
    kind: Kind,
    library: Any,
    w: Array,
    r: Array,
    first: Array | None,
    second: Array | None,
    projection: Array | None = None,
) -> Any:
    """Return the parameters of a kind from arrays with checked shapes; two biases are added."""
    moves = library[kind.name], kind.gates
    values = {"weight_x": _reordered(w, *moves), "weight_h": _reordered(r, *moves)}
    values |= without_norm(kind, r.dtype)
    if projection is not None:
        values["projection"] = projection
    biases = [_reordered(bias, *moves) for bias in (first, second) if bias is not None]
    if "bias_h" in kind.sizes and second is not None:
        # The reset gate multiplies only the second bias of the new state: they cannot be added.
        new = slice(r.shape[0] - r.shape[1], None)
        values["bias_h"] = biases[-1][new].copy()
        biases[-1][new] = 0
    if biases:
        values["bias"] = biases[0] if len(biases) == 1 else biases[0] + biases[1]
    return kind.parameters(**values)


def _to_library(kind: Kind, library: Any, parameters: Any) -> tuple[Array, Array, Array, Array]:
    """Return both weights and both biases of the library; the second bias is 0 but for bias_h."""
    own = named(kind, parameters)
    projection = getattr(own, "projection", None)
    names = "weight_x", "weight_h", "projection"
    w, r = _weights(kind, names, own.weight_x, own.weight_h, projection)
    first = _bias(kind, "bias", own, r)
    second = np.zeros_like(first)
    if "bias_h" in kind.sizes:
        bias_h = _bias(kind, "bias_h", own, r)
        second = np.concatenate([second[: r.shape[0] - r.shape[1]], bias_h])
    moves = kind.gates, library[kind.name]
    w, r, first, second = (_reordered(array, *moves) for array in (w, r, first, second))
    return w, r, first, second


def _bias(kind: Kind, name: str, parameters: Any, weight_h: Array) -> Array:
    size, value = kind.sizes[name] * weight_h.shape[0] // len(kind.gates), getattr(parameters, name)
    if value is None or (name == "bias_h" and is_mark(value)):
        return np.zeros(size, weight_h.dtype)
    return _vector(name, value, size, "that of the units")


def _reordered(array: Array, source: tuple[str, ...], target: tuple[str, ...]) -> Array:
    """Return a new array with the gates in another order, negated where one has the other sign."""
    blocks = dict(zip(source, np.split(array, len(source)), strict=True))
    return np.concatenate(
        [blocks[name] if name in blocks else -blocks[_negative(name)] for name in target]
    )


def _negative(name: str) -> str:
    return name[1:] if name.startswith("-") else f"-{name}"


def _weights(
    kind: Kind, names: tuple[str, ...], w: Any, r: Any, projection: Any = None
) -> tuple[Array, Array]:
    w, r = _real(names[0], w), _real(names[1], r)
    if projection is not None:
        if r.ndim != 2 or r.shape[0] % len(kind.gates):
            raise ValueError(f"{names[1]} must have shape ({kind.rows}, P), got {r.shape}")
        expected = r.shape[1], r.shape[0] // len(kind.gates)
        check_shape(names[2], np.shape(projection), expected, f"that of {names[1]}")
    elif r.ndim != 2 or r.shape[0] != len(kind.gates) * r.shape[1]:
        raise ValueError(f"{names[1]} must have shape ({kind.rows}, H), got {r.shape}")
    if w.ndim != 2 or w.shape[0] != r.shape[0]:
        raise ValueError(f"{names[0]} must have shape ({r.shape[0]}, I), got {w.shape}")
    return w, r


def _kernels(kind: Kind, kernel: Any, recurrent_kernel: Any) -> tuple[Array, Array]:
    """Return both kernels with the gates as rows, checked."""
    w, r = _real("kernel", kernel), _real("recurrent_kernel", recurrent_kernel)
    if r.ndim != 2 or r.shape[1] != len(kind.gates) * r.shape[0]:
        raise ValueError(f"recurrent_kernel must have shape (H, {kind.rows}), got {r.shape}")
    if w.ndim != 2 or w.shape[1] != r.shape[1]:
        raise ValueError(f"kernel must have shape (I, {r.shape[1]}), got {w.shape}")
    return np.ascontiguousarray(w.T), np.ascontiguousarray(r.T)


def _check_unprojected(kind: Kind, parameters: Any, library: str) -> None:
    if kind_of(kind, parameters) is PROJECTED_LSTM:
        raise ValueError(f"parameters must have no projection for {library}, got one")


def _vector(name: str, value: Any, size: int, meaning: str) -> Array:
    array = _real(name, value)
    check_shape(name, array.shape, (size,), meaning)
    return array


def _real(name: str, value: Any) -> Array:
    array = as_plain_array(name, value)
    # Integers become float64 as everywhere, also because unsigned ones have no negative.
    result: Array = array.astype(result_dtype(name, array.dtype), copy=False)
    return result


def _one_direction(name: str, value: Any, axes: int) -> Array:
    """Return an input of an ONNX operator without its first axis, that of directions."""
    array: Array = as_plain_array(name, value)
    if array.ndim != axes or array.shape[0] != 1:
        raise ValueError(f"{name} must have {axes} axes, the first of size 1, got {array.shape}")
    result: Array = array[0]
    return result
