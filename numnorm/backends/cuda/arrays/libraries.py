"""The libraries of device arrays, behind one interface.

This module imports none of them: a caller with an array has imported its library.
"""

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.backends.cuda.arrays.recording import CURRENT


class ArrayLibrary:
    """The interface to a library of arrays; the methods here suit arrays like NumPy's.

    Attributes
    ----------
    package, type_name : str
        The module and the name of the type of its arrays.
    writable : bool
        Whether a caller may pass an array as `out`.
    waits : bool
        Whether the host waits for a kernel, because the library hides the stream of its own work.
    carries_stream : bool
        Whether each array may have a stream of its own.
    """

    package = ""
    type_name = ""
    writable = True
    waits = False
    carries_stream = False

    @property
    def module(self) -> Any:
        """The module that the caller has imported."""
        return sys.modules[self.package]

    @property
    def label(self) -> str:
        """The name of the type of its arrays, for messages."""
        return f"{self.package}.{self.type_name}"

    def is_on_device(self, array: Any) -> bool:
        """Return whether an array is in the memory of a CUDA device."""
        return True

    def check(self, name: str, array: Any) -> None:
        """Raise an error unless the memory of an array holds its plain elements."""

    def signature(self, array: Any) -> Any:
        """Return all that checks see of an array, hashable: not its address. None is unknown."""
        raise NotImplementedError

    def dtype_name(self, array: Any) -> str:
        """Return the name of an array's dtype."""
        return str(array.dtype.name)

    def shape(self, array: Any) -> Shape:
        """Return the shape of an array."""
        return tuple(array.shape)

    def device(self, array: Any) -> int:
        """Return the number of an array's device."""
        raise NotImplementedError

    def address(self, array: Any) -> int:
        """Return the address of the first element, valid for work on the array's stream."""
        raise NotImplementedError

    def is_contiguous(self, array: Any) -> bool:
        """Return whether an array is C-contiguous."""
        raise NotImplementedError

    def strides(self, array: Any) -> tuple[int, ...]:
        """Return the bytes between neighbours along each axis of an array that can be written."""
        return tuple(array.strides)

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        """Return an array with its axes in another order, a view if the library has views."""
        return array.transpose(order)

    def contiguous(self, array: Any) -> Any:
        """Return an array if it is C-contiguous, otherwise a C-contiguous copy."""
        raise NotImplementedError

    def new(self, like: Any, shape: Shape, name: str) -> Any:
        """Return a new array on the device of `like`; `name` is its dtype."""
        raise NotImplementedError

    def empty(self, like: Any, shape: Shape, name: str) -> Any:
        """Return what `new` does. Only kernels write it, so that a recording can hold it."""
        array = self.new(like, shape, name)
        if CURRENT.recording is not None:
            CURRENT.recording.allocated(array, shape, name)
        return array

    def full(self, like: Any, shape: Shape, name: str, value: float) -> Any:
        """Return a new array as `empty`, filled with a value."""
        raise NotImplementedError

    def copy(self, target: Any, source: Any) -> None:
        """Write one array into another of the same shape."""
        if CURRENT.recording is not None:
            CURRENT.recording.complete = False
        self.write(target, source)

    def write(self, target: Any, source: Any) -> None:
        """Do the same outside of recordings."""
        target[...] = source

    def from_host(self, like: Any, array: Any) -> Any:
        """Return a copy of a NumPy array on the device of `like`."""
        if self.is_capturing():
            raise RuntimeError(
                "an array of the host (a mask, weights, labels, lengths of sequences) cannot be "
                "copied to the device while a graph is captured"
            )
        return self.uploaded(like, array)

    def uploaded(self, like: Any, array: Any) -> Any:
        """Do the same outside of a capture."""
        raise NotImplementedError

    def reshaped(self, array: Any, shape: Shape) -> Any:
        """Return a C-contiguous array in another shape, a view if the library has views."""
        view = array.reshape(shape)
        if CURRENT.recording is not None:
            CURRENT.recording.viewed(view, array)
        return view

    def broadcast(self, array: Any, shape: Shape) -> Any:
        """Return an array broadcast to a shape, in new C-contiguous memory."""
        target = self.new(array, shape, self.dtype_name(array))
        self.write(target, array)
        return target

    def rows(self, array: Any, start: int, stop: int) -> Any:
        """Return rows of an array, a view if the library has views."""
        return array[start:stop]

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        """Return a new array with the rows of all arrays; no array is empty."""
        raise NotImplementedError

    def taken(self, array: Any, indices: Any, axis: int) -> Any:
        """Return a new array of the entries along an axis that a NumPy array of indices names."""
        raise NotImplementedError

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of two matrices in their dtype, computed on the stream of a.

        It is written to `out`, a C-contiguous array, if that is given to a library that can write.
        """
        raise NotImplementedError

    def stream(self, array: Any) -> int:
        """Return the handle of the stream for work on an array."""
        raise NotImplementedError

    def is_capturing(self) -> bool:
        """Return whether work on the current stream becomes part of a graph."""
        return False

    def using(self, device: int) -> Any:
        """Return a context in which new arrays are on this device; None if they are anyway."""
        return None

    def statistic_name(self, name: str) -> str:
        """Return the dtype of the saved statistics of arrays of dtype `name`."""
        return "float32" if name == "float16" else "float64"


class _CuPy(ArrayLibrary):
    """Its pool gives memory that was freed during a capture to others, though the graph uses it.

    So arrays that are made during a capture are kept.
    """

    package, type_name = "cupy", "ndarray"

    def __init__(self) -> None:
        self._of_graphs: list[Any] = []

    def signature(self, array: Any) -> Any:
        return array.dtype, array.shape, array.flags.c_contiguous, array.device.id

    def device(self, array: Any) -> int:
        return int(array.device.id)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def contiguous(self, array: Any) -> Any:
        result = self.module.ascontiguousarray(array)
        return array if result is array else self._kept(result)

    def new(self, like: Any, shape: Shape, name: str) -> Any:
        return self._kept(self.module.empty(shape, name))

    def full(self, like: Any, shape: Shape, name: str, value: float) -> Any:
        return self._kept(self.module.full(shape, value, name))

    def uploaded(self, like: Any, array: Any) -> Any:
        return self.module.asarray(array)

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        return self._kept(self.module.concatenate(arrays))

    def taken(self, array: Any, indices: Any, axis: int) -> Any:
        return self._kept(array.take(self.from_host(array, indices), axis))

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        product = self.module.matmul(a, b, out=out)
        return self._kept(product) if out is None else out

    def stream(self, array: Any) -> int:
        return int(self.module.cuda.get_current_stream().ptr)

    def is_capturing(self) -> bool:
        stream = self.module.cuda.get_current_stream()
        # The default stream cannot be captured, and must not be asked while another one is.
        return bool(stream.ptr and stream.is_capturing())

    def using(self, device: int) -> Any:
        return self.module.cuda.Device(device)

    def _kept(self, array: Any) -> Any:
        """Return an array, which lives on if a graph uses its memory."""
        if self.is_capturing():
            self._of_graphs.append(array)
        return array


class _Torch(ArrayLibrary):
    package, type_name = "torch", "Tensor"

    def is_on_device(self, array: Any) -> bool:
        return bool(array.is_cuda)

    def check(self, name: str, array: Any) -> None:
        torch = self.module
        if array.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got one of layout {array.layout}")
        if array.is_neg():
            raise TypeError(f"{name} must not be a negated view: call its resolve_neg()")
        if array.requires_grad and torch.is_grad_enabled():
            raise TypeError(
                f"{name} must not require a gradient, which would not flow: "
                "call its detach(), or use torch.no_grad()"
            )

    def signature(self, array: Any) -> Any:
        torch = self.module
        if array.layout is not torch.strided:
            return None
        tracked = array.requires_grad and torch.is_grad_enabled()
        own = array.is_contiguous(), array.get_device(), array.is_neg(), tracked
        return array.dtype, array.shape, own

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> int:
        return int(array.get_device())

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(step * array.element_size() for step in array.stride())

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        return array.permute(order)

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()

    def new(self, like: Any, shape: Shape, name: str) -> Any:
        torch = self.module
        return torch.empty(shape, dtype=getattr(torch, name), device=like.device)

    def full(self, like: Any, shape: Shape, name: str, value: float) -> Any:
        torch = self.module
        return torch.full(shape, value, dtype=getattr(torch, name), device=like.device)

    def uploaded(self, like: Any, array: Any) -> Any:
        return self.module.as_tensor(array, device=like.device)

    def write(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        return self.module.cat(arrays)

    def taken(self, array: Any, indices: Any, axis: int) -> Any:
        return self.module.index_select(array, axis, self.from_host(array, indices))

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            out = self.new(a, (a.shape[0], b.shape[1]), self.dtype_name(a))
        # With `out`, automatic mixed precision does not change the dtype.
        self.module.mm(a, b, out=out)
        return out

    def stream(self, array: Any) -> int:
        return int(self.module.cuda.current_stream(array.device).cuda_stream)

    def is_capturing(self) -> bool:
        return bool(self.module.cuda.is_current_stream_capturing())


class _Numba(ArrayLibrary):
    """Numba's arrays, of numba-cuda or numba-cuda-mlir.

    They may carry a stream; an array without one uses the default stream. Its transpose supports
    only matrices, and its assignment waits for the default stream unless a stream is named.
    """

    type_name = "DeviceNDArray"
    carries_stream = True

    def __init__(self, cuda: str, home: str) -> None:
        self._name, self.package = cuda, f"{home}.cudadrv.devicearray"

    @property
    def label(self) -> str:
        return self.type_name  # the module is internal

    @property
    def _cuda(self) -> Any:
        return sys.modules[self._name]

    def signature(self, array: Any) -> Any:
        own = array.strides, self.device(array), self.stream(array)
        return array.dtype, array.shape, own

    def device(self, array: Any) -> int:
        return int(array.gpu_data.context.device.id)

    def address(self, array: Any) -> int:
        return int(array.device_ctypes_pointer.value or 0)

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.is_c_contiguous())

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        return self.module.DeviceNDArray(
            shape=tuple(array.shape[a] for a in order),
            strides=tuple(array.strides[a] for a in order),
            dtype=array.dtype,
            stream=array.stream,
            gpu_data=array.gpu_data,
        )

    def contiguous(self, array: Any) -> Any:
        if array.is_c_contiguous():
            return array
        target = self.new(array, array.shape, array.dtype.name)
        self.write(target, array)
        return target

    def new(self, like: Any, shape: Shape, name: str) -> Any:
        return self._cuda.device_array(shape, np.dtype(name), stream=like.stream)

    def full(self, like: Any, shape: Shape, name: str, value: float) -> Any:
        return self.from_host(like, np.full(shape, value, name))

    def uploaded(self, like: Any, array: Any) -> Any:
        return self._cuda.to_device(array, stream=like.stream)

    def write(self, target: Any, source: Any) -> None:
        stream = target.stream or self._cuda.default_stream()
        target.setitem(slice(None), source, stream=stream)

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        return self._by_cupy(lambda cupy, *operands: cupy.concatenate(operands), *arrays)

    def taken(self, array: Any, indices: Any, axis: int) -> Any:
        return self._by_cupy(lambda cupy, of: of.take(cupy.asarray(indices), axis), array)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            return self._by_cupy(lambda cupy, *operands: cupy.matmul(*operands), a, b)
        self._by_cupy(lambda cupy, a, b, out: cupy.matmul(a, b, out=out), a, b, out)
        return out

    def stream(self, array: Any) -> int:
        return int(array.stream.handle) if array.stream else 0

    def _by_cupy(self, function: Any, *arrays: Any) -> Any:
        """Return the result of a function of CuPy, computed on the stream of the first array."""
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            raise ImportError(
                "products and parts of Numba's device arrays need CuPy, as Numba has none: "
                "pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12"
            ) from error
        with _stream_of_cupy(cupy, arrays[0].stream):
            result = function(cupy, *(cupy.asarray(array) for array in arrays))
            return self._cuda.as_cuda_array(result, sync=False)


def _stream_of_cupy(cupy: Any, stream: Any) -> Any:
    """Return a stream of Numba as one of CuPy; 0 is the default stream."""
    if not stream:
        return cupy.cuda.Stream.null
    # CuPy 14 deprecates the way of older versions.
    make = getattr(cupy.cuda.Stream, "from_external", None)
    return make(stream) if make else cupy.cuda.ExternalStream(int(stream.handle))


class _Jax(ArrayLibrary):
    """Its arrays cannot be written, and the stream of its computations is hidden.

    So the host waits for an array before a kernel gets its address. A kernel writes only new
    arrays, on the default stream, and the host waits for it.
    """

    package, type_name = "jax", "Array"
    writable = False
    waits = True

    def is_on_device(self, array: Any) -> bool:
        return all(device.platform in ("gpu", "cuda") for device in array.devices())

    def check(self, name: str, array: Any) -> None:
        count = len(array.devices())
        if count != 1:
            raise ValueError(f"{name} must lie on one device, got an array on {count} of them")

    def signature(self, array: Any) -> Any:
        x64 = self.module.config.jax_enable_x64  # the dtype of statistics
        return array.dtype, array.shape, frozenset(array.devices()), x64

    def device(self, array: Any) -> int:
        return int(array.__dlpack_device__()[1])

    def address(self, array: Any) -> int:
        return int(array.block_until_ready().unsafe_buffer_pointer())

    def is_contiguous(self, array: Any) -> bool:
        return True

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        return self.module.numpy.transpose(array, order)

    def contiguous(self, array: Any) -> Any:
        return array

    def new(self, like: Any, shape: Shape, name: str) -> Any:
        (device,) = like.devices()
        return self.module.numpy.empty(shape, np.dtype(name), device=device)

    def full(self, like: Any, shape: Shape, name: str, value: float) -> Any:
        (device,) = like.devices()
        return self.module.numpy.full(shape, value, np.dtype(name), device=device)

    def uploaded(self, like: Any, array: Any) -> Any:
        (device,) = like.devices()
        return self.module.device_put(array, device)

    def broadcast(self, array: Any, shape: Shape) -> Any:
        return self.module.numpy.broadcast_to(array, shape)

    def rows(self, array: Any, start: int, stop: int) -> Any:
        # XLA compiles a slice anew for each start, and a dynamic slice only once.
        return self.module.lax.dynamic_slice_in_dim(array, start, stop - start)

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        return self.module.numpy.concatenate(arrays)

    def taken(self, array: Any, indices: Any, axis: int) -> Any:
        return self.module.numpy.take(array, self.from_host(array, indices), axis)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        # The default precision rounds the factors to 10 bits.
        return self.module.numpy.matmul(a, b, precision="highest")

    def stream(self, array: Any) -> int:
        return 0

    def statistic_name(self, name: str) -> str:
        # JAX has float64 only if it is enabled.
        wide = self.module.config.jax_enable_x64
        return super().statistic_name(name) if wide else "float32"


LIBRARIES = (
    _CuPy(),
    _Torch(),
    _Jax(),
    _Numba("numba.cuda", "numba.cuda"),
    _Numba("numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda"),
)


@functools.lru_cache(maxsize=256)
def library_of(kind: Any) -> ArrayLibrary | None:
    """Return the library of a type of array, or None if it is unknown."""
    for library in LIBRARIES:
        # A folder of the user's may have the name of a library.
        own = getattr(sys.modules.get(library.package), library.type_name, None)
        if own is not None and issubclass(kind, own):
            return library
    return None
