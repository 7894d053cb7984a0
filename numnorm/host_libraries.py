"""Arrays of other libraries in the memory of the host: as NumPy arrays, and results as theirs.

A type is compared with types of libraries that the caller has imported; nothing here imports one.
"""

import contextlib
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


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
