"""What an array is: NumPy's, another library's in the memory of the host, lazy, or on a device.

What becomes a NumPy array, as a view where the library can give one; what is refused, with which
advice; and how results become arrays of the caller's library. Types are looked up in `sys.modules`:
no array library is imported.
"""

import contextlib
import dataclasses
import functools
import importlib
import sys
import textwrap
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np

from numnorm.arguments import check_shape

Array = np.ndarray[Any, Any]

# DLPack's device types kDLCUDA and kDLCUDAManaged.
_CUDA_KINDS = (2, 13)

# What an object offers that NumPy can take as an array, beside a buffer.
_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")

# Packages whose arrays are read from a file at every access.
_ON_DISK = ("h5py", "netCDF4", "tables", "tensorstore", "zarr")

# How many steps NumPy may take to find an element that two arrays share.
_MOST_WORK: Any = 100_000  # NumPy's types allow -1 and 0


def is_masked(kind: type) -> bool:
    """Return whether arrays of a type have a mask, which `np.asarray` would drop."""
    # Importing numpy.ma is slow; before somebody has imported it, no array can have a mask.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return masked is not None and issubclass(kind, masked)


def is_on_device(value: Any) -> bool:
    """Return whether an array is in the memory of a CUDA device."""
    if _library(value) == "torch":  # whose function for DLPack takes longer
        return bool(value.is_cuda)
    dlpack_device = getattr(value, "__dlpack_device__", None)
    if dlpack_device is not None and not isinstance(value, np.ndarray):
        # An array that cannot be exported, such as one on several devices, may raise anything.
        with contextlib.suppress(Exception):
            kind = dlpack_device()[0]
            if getattr(kind, "value", kind) in _CUDA_KINDS:
                return True
    with contextlib.suppress(Exception):
        return hasattr(value, "__cuda_array_interface__")
    return True


def check_norm_on_host(norm: str, value: Any, name: str = "x") -> None:
    """Raise if an array is on a device, for a norm without kernels for it."""
    if is_on_device(value):
        text = f"{norm} is not supported on a device: copy {name} to the host first"
        raise NotImplementedError(text)


def check_on_host(name: str, value: Any) -> None:
    """Raise if an array is on a device although the other arrays of the call are not."""
    if is_on_device(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{name} must lie on the host, as other arrays do, got a {kind} on a device"
        )


def as_plain_array(name: str, value: Any) -> Array:
    """Return a value as a NumPy array of any dtype; raise if it is not array-like."""
    if type(value) is np.ndarray:
        return value
    view = plain_view(value)
    if view is not None:
        return view
    for part in _parts(value):
        refusal = _refusal(part)
        if refusal is not None:
            raise TypeError(f"{name} must {refusal}")
        check_on_host(name, part)
    reason: Exception | None = None
    array = np.asarray(None)
    try:
        array = as_numpy(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = error
    if array.dtype == object and hasattr(value, "to_numpy"):
        hint = "use .to_numpy(dtype=float)"
        raise TypeError(f"{name} must hold numbers, got {_described(value)} of objects: {hint}")
    if array.shape == () and array.dtype.kind in "OSU":
        raise TypeError(f"{name} must {_mismatch(value, reason)}") from reason
    return array


def writable_view(name: str, value: Any) -> Any:
    """Return what shares the memory of an array to be written; what is no array as it is."""
    if value is None or isinstance(value, np.ndarray):
        return value
    refusal = _refusal(value)
    if refusal is not None:
        raise TypeError(f"{name} must {refusal}")
    check_on_host(name, value)
    try:
        view = shared_memory(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise TypeError(f"{name} must {_mismatch(value, error)}") from error
    return value if view is None else view


def check_out(out: Any, x: Array, name: str, argument: str = "out") -> None:
    """Raise unless an array, an argument of a call, can take a result like x, which has a name."""
    kind = type(out)
    if not issubclass(kind, np.ndarray):
        check_on_host(argument, out)
        raise TypeError(
            f"{argument} must be a numpy.ndarray, got an object of type {kind.__name__}"
        )
    if kind is not np.ndarray and is_masked(kind):
        raise TypeError(f"{argument} must not be a masked array, whose mask nobody would set")
    if out.shape != x.shape:
        check_shape(argument, out.shape, x.shape, f"the shape of {name}")
    if out.dtype != x.dtype:
        raise TypeError(
            f"{argument} must have dtype {x.dtype}, that of the result, got {out.dtype}"
        )
    check_writable(argument, out)


def changes_other_elements(out: Array, array: Array) -> bool:
    """Return whether writing an element of an output could change another element of an array."""
    same = (
        out.__array_interface__["data"] == array.__array_interface__["data"]
        and (out.shape, out.strides) == (array.shape, array.strides)
        and out.itemsize == array.itemsize
    )
    return not same and np.may_share_memory(out, array)


def sharing(one: Array, other: Array) -> str:
    """Return "do" if arrays share memory, "may" if it takes too long to tell, otherwise ""."""
    try:
        return "do" if np.shares_memory(one, other, _MOST_WORK) else ""
    except np.exceptions.TooHardError:
        return "may"


def check_apart(name: str, other: str, verb: str) -> None:
    """Raise if two outputs do or may share memory, by the answer of `sharing`."""
    if verb:
        raise ValueError(f"{name} and {other} must not share memory, got arrays that {verb}")


def check_writable(name: str, array: Array, purpose: str = "") -> None:
    """Raise unless every element of an array can be written by itself."""
    if not array.flags.writeable:
        raise ValueError(f"{name} must be writable{purpose}, got a read-only array")
    if array.size and any(
        n > 1 and step == 0 for n, step in zip(array.shape, array.strides, strict=True)
    ):
        raise ValueError(f"{name} must have memory for each element, got an expanded array")


def _parts(value: Any) -> Any:
    """Yield a value or, for a sequence, all that it holds but numbers and strings."""
    if not isinstance(value, list | tuple):
        yield value
        return
    # A set of types at C speed: most lists hold nothing but numbers.
    if all(issubclass(kind, float | int | str | np.generic) for kind in set(map(type, value))):
        return
    for item in value:
        yield from _parts(item)


def _refusal(value: Any) -> str | None:
    """Return what a value must be instead and how to get there, or None if it may be converted."""
    kind = type(value)
    if kind is np.ndarray:
        return None
    if is_masked(kind):
        return "not be a masked array: fill it first, or give norms its data and where=~mask"
    graph = getattr(value, "__dask_graph__", None)
    # xarray has the method for arrays in memory, too, and it then returns None.
    if callable(graph) and graph() is not None:
        got = _described(value)
        return f"be in memory, got {got}, which is lazy: use .compute() or map_blocks"
    if any(base.__module__.partition(".")[0] in _ON_DISK for base in kind.__mro__):
        return f"be in memory, got {_described(value)}: read it first, as in array[:]"
    place = traced_by(kind)
    if place == "numnorm.jax":
        return "have values, got a tracer of JAX: use numnorm.jax inside of jit, grad and vmap"
    if place is not None:
        return f"have values, got {_described(value)}: use numnorm.autograd inside of its grad"
    if getattr(value, "requires_grad", False) is True and not _without_gradients(kind):
        return (
            "not require a gradient, got a tensor that does: use .detach(), torch.no_grad() or the "
            "function of docs/gallery/torch_autograd.py"
        )
    if _only_iterates(value):
        hint = "use .X" if hasattr(kind, "X") else "pass its numbers as an array or a list"
        return f"be an array or turn into one, got {_described(value)}: {_way(kind) or hint}"
    return None


def traced_by(kind: type) -> str | None:
    """Return the module that has norms for values of this type, which JAX or autograd traces."""
    if any(base.__name__ == "Tracer" for base in kind.__mro__):
        return "numnorm.jax"
    if any((b.__module__, b.__name__) == ("autograd.tracer", "Box") for b in kind.__mro__):
        return "numnorm.autograd"
    return None


def _only_iterates(value: Any) -> bool:
    """Return whether NumPy would ask an object for its elements, which need not end."""
    kind = type(value)
    if issubclass(kind, list | tuple | range | str | bytes | np.generic):
        return False
    if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        return False
    # NumPy goes on after any error of a buffer, as that of an array on another device.
    with contextlib.suppress(Exception), memoryview(value):
        return False
    return not any(hasattr(value, protocol) for protocol in _PROTOCOLS)


def _without_gradients(kind: type) -> bool:
    """Return whether a kind of tensor is PyTorch's and, for now, nothing records its gradient."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not issubclass(kind, tensor):
        return False
    return not sys.modules["torch"].is_grad_enabled()


def _mismatch(value: Any, reason: Exception | None) -> str:
    """Return what a value must be that NumPy does not take as an array, and what came."""
    if isinstance(value, list | tuple) and isinstance(reason, ValueError):
        return f"be rectangular, got a {type(value).__name__} whose rows differ in length"
    text = f"be an array or turn into one, got {_described(value)}"
    if way := _way(type(value)):
        return f"{text}: {way}"
    if reason is not None and not isinstance(value, list | tuple):
        return f"{text}: {textwrap.shorten(str(reason), 80, placeholder=' ...')}"
    return text


def _way(kind: type) -> str:
    """Return how a sparse matrix becomes an array, or an empty string for another kind."""
    return "use .toarray()" if hasattr(kind, "toarray") else ""


def _described(value: Any) -> str:
    if value is None:
        return "None"
    package = type(value).__module__.partition(".")[0]
    prefix = "" if package == "builtins" else f"{package}."
    return f"an object of type {prefix}{type(value).__name__}"


# Libraries with arrays in the memory of the host


def _library(value: Any) -> str:
    """Return "torch", "jax" or "dlpack", or "" for arrays of NumPy and for all else."""
    return _library_of(type(value))  # type: ignore[arg-type]  # types are hashable


@functools.lru_cache(maxsize=256)
def _library_of(kind: Any) -> str:
    if issubclass(kind, np.ndarray | np.generic):
        return ""
    for library, type_name in (("torch", "Tensor"), ("jax", "Array")):
        own = getattr(sys.modules.get(library), type_name, None)
        if own is not None and issubclass(kind, own):
            return library
    return "dlpack" if hasattr(kind, "__dlpack__") else ""


def plain_view(value: Any) -> Array | None:
    """Return a tensor of the host that requires no gradient as a NumPy array; None for all else."""
    if _library(value) == "torch" and not (value.is_cuda or value.requires_grad):
        with contextlib.suppress(TypeError, RuntimeError):
            return _of_tensor(value.resolve_neg())
    return None


def as_numpy(value: Any) -> Array:
    """Return a value as a NumPy array, without a copy if its library can; raise what it raises."""
    library = _library(value)
    if library == "torch":
        return _of_tensor(value.resolve_neg())  # as the imaginary part of a conjugate is
    if library == "dlpack":
        # A dtype that DLPack or NumPy lacks, or a mask, may raise anything.
        with contextlib.suppress(Exception):
            return np.from_dlpack(value)
    return np.asarray(value)


def shared_memory(value: Any) -> Array | None:
    """Return the memory of an array of another library as a NumPy array, None if there is none."""
    library = _library(value)
    if library == "torch":
        # So that a gradient that needs what was there before is an error of PyTorch, not wrong.
        sys.modules["torch"].autograd.graph.increment_version(value)
        return _of_tensor(value)
    if library != "dlpack":
        return as_numpy(value) if library else None
    try:
        return np.from_dlpack(value, copy=False)
    except TypeError:  # NumPy before 2.1, or a library that does not know the keyword
        return np.from_dlpack(value)


def _of_tensor(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    if tensor.requires_grad and not torch.is_grad_enabled():
        tensor = tensor.detach()
    if tensor.dtype is not torch.bfloat16 or tensor.requires_grad:
        array: Array = tensor.numpy()
        return array
    words: Array = tensor.view(torch.int16).numpy()
    return words.view(_bfloat16())


def _bfloat16() -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise TypeError("bfloat16 needs ml_dtypes: pip install 'numnorm[bfloat16]'") from error
    return dtype


# Objects that turn NumPy arrays into results; they can be pickled, as saved passes hold them.


def results_like(x: Any) -> Callable[[Array], Any] | None:
    """Return a function that makes a NumPy array one of the library of x; None for NumPy's own."""
    library = _library(x)
    if library == "torch":
        return _TensorResults()
    if library == "jax":
        devices = x.devices() if getattr(x, "committed", True) else ()
        return _JaxResults(*devices) if len(devices) == 1 else _JaxResults()
    if library == "dlpack":
        namespace = _namespace_of(x)
        return namespace and _NamespaceResults(namespace, getattr(x, "device", None))
    return None


def statistics_like(result: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """Return what makes statistics where a function makes results: they keep all their digits."""
    exact: Callable[[Array], Any] = getattr(result, "exact", result)
    return exact


def _namespace_of(x: Any) -> Any:
    """Return what has a `from_dlpack` for arrays like x: its array namespace or its package."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    package = sys.modules.get(type(x).__module__.partition(".")[0])
    return package if hasattr(package, "from_dlpack") else None


@dataclasses.dataclass(frozen=True)
class _TensorResults:
    """Makes tensors of PyTorch."""

    def __call__(self, array: Array) -> Any:
        # Imported, because this may be unpickled in a process without PyTorch so far.
        torch: Any = importlib.import_module("torch")
        if not array.flags.writeable:  # a tensor always is
            array = array.copy()
        if array.dtype.kind == "f":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class _JaxResults:
    """Makes arrays of JAX, on the device that x is committed to; aligned memory is shared."""

    device: Any = None

    def __call__(self, array: Array) -> Any:
        return importlib.import_module("jax").device_put(array, self.device)

    def exact(self, array: Array) -> Any:
        """Return an array of JAX, or the given one if JAX has no float64 and would round it."""
        result = self(array)
        return result if result.dtype == array.dtype else array

    def __reduce__(self) -> tuple[Any, ...]:
        return _JaxResults, ()  # a device belongs to its process


@dataclasses.dataclass(frozen=True)
class _NamespaceResults:
    """Makes arrays of a library with a `from_dlpack`."""

    namespace: Any
    device: Any

    def __call__(self, array: Array) -> Any:
        result = self.namespace.from_dlpack(array)
        if getattr(result, "device", None) == self.device:
            return result
        return self.namespace.asarray(result, device=self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_namespace, (self.namespace.__name__, self.device)


def _in_namespace(name: str, device: Any) -> _NamespaceResults:
    return _NamespaceResults(importlib.import_module(name), device)


# Arrays of Dask

# The module of each library with chunked, lazy arrays, whose array type is called Array there.
_LIBRARIES = ("dask.array", "dask_array")

# The types of most arguments: a small call must not pay for more than one look at them.
_IN_MEMORY = frozenset({np.ndarray, NoneType, int})


def library_of(value: Any) -> Any:
    """Return the module of a lazy array's library, None for all else."""
    for name in _LIBRARIES:
        kind = getattr(sys.modules.get(name), "Array", None)
        if kind is not None and isinstance(value, kind):
            return sys.modules[name]
    return None


def any_lazy(*values: Any) -> bool:
    """Return whether one of the values is a lazy array."""
    if _IN_MEMORY.issuperset(map(type, values)):
        return False
    return any(library_of(value) is not None for value in values)


def lazily(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of a public function, given all its arguments by name."""
    arguments = {name: value for name, value in arguments.items() if name != "others"}
    return importlib.import_module("numnorm._dask").call(function, arguments)


def lazy_twin(name: str) -> Callable[..., Any]:
    """Return the function of a name that takes lazy moments."""
    twin: Callable[..., Any] = getattr(importlib.import_module("numnorm._dask"), name)
    return twin
