"""Fakes of CuPy, PyTorch, JAX and Numba's device arrays over host memory, as numnorm uses them.

Each function of `LIBRARIES` returns the modules of one library for `sys.modules`. `take` puts an
array on the device, and `asked` lists the copies that the library made. Mistakes that only a real
device would show are errors here: an array on the wrong side, or the use of new memory, which is
NaN until it is written.
"""

import contextlib
import types
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import simulated_target

STREAMS = {"cupy": 11, "torch": 12, "jax": 0, "numba": 0}


def _bfloat16_or(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def poisoned(shape, dtype):
    """Return new memory of NaN that kernels may use."""
    return registered(np.full(shape, np.nan, dtype))


def filled(shape, value, name):
    """Return new memory that kernels may use, filled with a value."""
    return registered(np.full(shape, value, _bfloat16_or(name) if isinstance(name, str) else name))


def registered(host):
    if host.size:
        simulated_target.register(host)
    return host


def viewed(host, shape):
    """Return the same memory in another shape."""
    assert host.flags.c_contiguous
    return host.reshape(shape)


def joined(arrays):
    """Return new memory with the rows of all arrays."""
    return registered(np.concatenate([array.host for array in arrays]))


class OnDevice:
    """The base of the arrays; `host` is the memory that stands for the device's."""

    def __init__(self, host, number=0):
        self.host, self.number = host, number

    @property
    def shape(self):
        return self.host.shape

    @property
    def ndim(self):
        return self.host.ndim

    @property
    def dtype(self):
        return self.host.dtype

    def __dlpack_device__(self):
        return 2, self.number

    def __array__(self, *arguments, **options):
        raise AssertionError("copied to the host behind the caller's back")


def _interface(host):
    return {"shape": host.shape, "typestr": host.dtype.str, "data": (host.ctypes.data, False)}


# CuPy


def cupy():
    module = types.ModuleType("cupy")
    current = [0]
    module.asked, module.capturing = [], False

    class ndarray(OnDevice):
        device = property(lambda self: SimpleNamespace(id=self.number))
        data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data))
        flags = property(lambda self: SimpleNamespace(c_contiguous=self.host.flags.c_contiguous))
        strides = property(lambda self: self.host.strides)
        __cuda_array_interface__ = property(lambda self: _interface(self.host))

        def transpose(self, order):
            return ndarray(self.host.transpose(order), self.number)

        def __setitem__(self, key, value):
            self.host[key] = value.host if isinstance(value, ndarray) else value

        def __getitem__(self, key):
            return ndarray(self.host[key], self.number)

        def reshape(self, shape):
            return ndarray(viewed(self.host, shape), self.number)

        def take(self, indices, axis):
            return ndarray(registered(self.host.take(indices.host, axis)), self.number)

    def ascontiguousarray(array):
        if array.host.flags.c_contiguous:
            return array
        module.asked.append("copy")
        return ndarray(registered(np.ascontiguousarray(array.host)), array.number)

    @contextlib.contextmanager
    def device(number):
        before, current[0] = current[0], number
        yield
        current[0] = before

    module.ndarray, module.ascontiguousarray = ndarray, ascontiguousarray
    module.empty = lambda shape, name: ndarray(poisoned(shape, _bfloat16_or(name)), current[0])
    module.full = lambda shape, value, name: ndarray(filled(shape, value, name), current[0])
    stream = SimpleNamespace(ptr=STREAMS["cupy"], is_capturing=lambda: module.capturing)
    streams = SimpleNamespace(null=contextlib.nullcontext(), from_external=contextlib.nullcontext)
    module.cuda = SimpleNamespace(get_current_stream=lambda: stream, Device=device, Stream=streams)

    def asarray(array):
        if isinstance(array, np.ndarray):
            return ndarray(registered(array.copy()), current[0])
        return ndarray(array.host, array.number)

    module.asarray = asarray

    def matmul(a, b, *, out=None):
        out = module.empty((a.shape[0], b.shape[1]), a.dtype.name) if out is None else out
        np.matmul(a.host, b.host, out=out.host)
        return out

    module.matmul = matmul
    module.concatenate = lambda arrays: ndarray(joined(arrays), arrays[0].number)
    module.take = lambda host, number=0: ndarray(registered(host), number)
    return {"cupy": module}


# PyTorch


class _Dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


def torch():
    module = types.ModuleType("torch")
    module.asked, module.gradients, module.capturing = [], True, False
    module.strided = "torch.strided"
    names = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")
    for name in names:
        setattr(module, name, _Dtype(name))

    class Size(tuple):
        """The shape of a tensor, which is a tuple but not of that type."""

    class Tensor:
        layout, requires_grad, negated = module.strided, False, False

        def is_neg(self):
            return self.negated

        def resolve_neg(self):
            return self

        def __init__(self, host, device="cuda:0"):
            self.host, self.device = host, device
            self.dtype = getattr(module, host.dtype.name)

        shape = property(lambda self: Size(self.host.shape))
        is_cuda = property(lambda self: self.device != "cpu")
        _number = property(lambda self: int(self.device[5:]) if self.is_cuda else -1)

        def __dlpack_device__(self):
            return (2, self._number) if self.is_cuda else (1, 0)

        @property
        def __cuda_array_interface__(self):
            if not self.is_cuda:
                raise AttributeError("on the host")
            if self.requires_grad:
                raise RuntimeError("requires a gradient")
            return _interface(self.host)

        def __array__(self, *arguments, **options):
            if self.is_cuda:
                raise TypeError("cannot convert a tensor on cuda to numpy")
            return self.host

        numpy = __array__

        def get_device(self):
            return self._number

        def data_ptr(self):
            return self.host.ctypes.data

        def is_contiguous(self):
            return self.host.flags.c_contiguous

        def element_size(self):
            return self.host.itemsize

        def stride(self):
            return tuple(step // self.host.itemsize for step in self.host.strides)

        def permute(self, order):
            return Tensor(self.host.transpose(order), self.device)

        def contiguous(self):
            if self.host.flags.c_contiguous:
                return self
            module.asked.append("copy")
            return Tensor(registered(np.ascontiguousarray(self.host)), self.device)

        def copy_(self, source):
            self.host[...] = source.host

        def __getitem__(self, key):
            return Tensor(self.host[key], self.device)

        def reshape(self, shape):
            return Tensor(viewed(self.host, shape), self.device)

    def empty(shape, *, dtype, device):
        return Tensor(poisoned(shape, _bfloat16_or(dtype.name)), device)

    def full(shape, value, *, dtype, device):
        return Tensor(filled(shape, value, dtype.name), device)

    def index_select(array, axis, indices):
        return Tensor(registered(array.host.take(indices.host, axis)), array.device)

    def mm(a, b, *, out):
        assert a.dtype is b.dtype is out.dtype
        np.matmul(a.host, b.host, out=out.host)

    def current_stream(device):
        return SimpleNamespace(cuda_stream=STREAMS["torch"] + int(device.removeprefix("cuda:")))

    module.Tensor, module.empty, module.full, module.mm = Tensor, empty, full, mm
    module.index_select = index_select
    module.as_tensor = lambda array, *, device: Tensor(registered(array.copy()), device)
    module.from_numpy = lambda array: Tensor(array, "cpu")
    module.cat = lambda arrays: Tensor(joined(arrays), arrays[0].device)
    module.is_grad_enabled = lambda: module.gradients
    module.cuda = SimpleNamespace(
        current_stream=current_stream, is_current_stream_capturing=lambda: module.capturing
    )
    module.take = lambda host, number=0: Tensor(registered(host), f"cuda:{number}")
    return {"torch": module}


# JAX


def jax():
    module = types.ModuleType("jax")
    module.asked = []
    module.config = SimpleNamespace(jax_enable_x64=True)

    class Array(OnDevice):
        ready, platform = False, "gpu"

        @property
        def __cuda_array_interface__(self):
            if self.platform == "cpu" or self.dtype.name == "bfloat16":
                raise AttributeError("not supported")
            return _interface(self.host)

        def __dlpack_device__(self):
            return (2, self.number) if self.platform == "gpu" else (1, 0)

        def __array__(self, *arguments, **options):
            assert self.platform == "cpu"
            return self.host

        def reshape(self, shape):
            return Array(viewed(self.host, shape), self.number)

        def __getitem__(self, key):
            return Array(registered(self.host[key].copy()), self.number)

        def devices(self):
            return {_Device(self.platform, self.number)}

        def block_until_ready(self):
            self.ready = True
            return self

        def unsafe_buffer_pointer(self):
            assert self.ready, "nobody has waited for it"
            return self.host.ctypes.data

    def transpose(array, order):
        module.asked.append("copy")
        return Array(registered(np.ascontiguousarray(array.host.transpose(order))), array.number)

    def empty(shape, dtype, *, device):
        if dtype.itemsize == 8 and not module.config.jax_enable_x64:
            raise AssertionError("would silently be float32")
        return Array(poisoned(shape, dtype), device.number)

    def full(shape, value, dtype, *, device):
        return Array(filled(shape, value, dtype), device.number)

    def matmul(a, b, *, precision):
        assert precision == "highest", "would be rounded to 10 bits"
        return Array(registered(a.host @ b.host), a.number)

    def dynamic_slice_in_dim(array, start, size):
        return Array(registered(array.host[start : start + size].copy()), array.number)

    def device_put(array, device):
        if array.dtype.itemsize == 8 and not module.config.jax_enable_x64:
            raise AssertionError("would silently be of 32 bits")
        result = Array(registered(array.copy()), device.number)
        result.platform = device.platform
        return result

    module.Array, module.device_put = Array, device_put
    module.lax = SimpleNamespace(dynamic_slice_in_dim=dynamic_slice_in_dim)
    module.numpy = SimpleNamespace(
        transpose=transpose, empty=empty, full=full, matmul=matmul,
        concatenate=lambda arrays: Array(joined(arrays), arrays[0].number),
        take=lambda array, indices, axis: Array(
            registered(array.host.take(indices.host, axis)), array.number
        ),
        broadcast_to=lambda array, shape: Array(
            registered(np.broadcast_to(array.host, shape).copy()), array.number
        ),
    )  # fmt: skip
    module.take = lambda host, number=0: Array(registered(host), number)
    return {"jax": module}


class _Device:
    def __init__(self, platform, number):
        self.platform, self.number = platform, number

    def __eq__(self, other):
        return (self.platform, self.number) == (other.platform, other.number)

    def __hash__(self):
        return hash((self.platform, self.number))


# Numba


def numba(name="numba.cuda", home="numba.cuda"):
    arrays = types.ModuleType(f"{home}.cudadrv.devicearray")
    cuda = types.ModuleType(name)
    cuda.asked = []

    class DeviceNDArray:
        def __init__(self, shape, strides, dtype, stream=0, gpu_data=None):
            memory, number = gpu_data.memory, gpu_data.context.device.id
            self.host = np.lib.stride_tricks.as_strided(memory, shape, strides)
            self.stream, self.gpu_data, self.number = stream, gpu_data, number

        shape = property(lambda self: self.host.shape)
        strides = property(lambda self: self.host.strides)
        dtype = property(lambda self: self.host.dtype)
        device_ctypes_pointer = property(
            lambda self: SimpleNamespace(value=self.host.ctypes.data if self.host.size else None)
        )
        __cuda_array_interface__ = property(lambda self: _interface(self.host))

        def __array__(self, *arguments, **options):
            raise AssertionError("copied to the host behind the caller's back")

        def is_c_contiguous(self):
            return self.host.flags.c_contiguous

        def setitem(self, key, value, stream=0):
            assert stream, "would wait for the default stream"
            cuda.asked.append("copy")
            self.host[key] = value.host

        size = property(lambda self: self.host.size)

        def __getitem__(self, key):
            keys = key if isinstance(key, tuple) else (key,)
            assert self.host.size, "would have an element"
            assert all(isinstance(k, int | slice) for k in keys), "would raise a TypeError"
            return wrapped(self.host[key], self.number, self.stream)

        def reshape(self, shape):
            return wrapped(viewed(self.host, shape), self.number, self.stream)

    def wrapped(host, number=0, stream=0):
        device = SimpleNamespace(id=number)
        data = SimpleNamespace(memory=host, context=SimpleNamespace(device=device))
        return DeviceNDArray(host.shape, host.strides, host.dtype, stream, data)

    arrays.DeviceNDArray = DeviceNDArray
    cuda.device_array = lambda shape, dtype, stream: wrapped(poisoned(shape, dtype), stream=stream)
    cuda.to_device = lambda host, stream: wrapped(registered(host), stream=stream)
    cuda.default_stream = lambda: SimpleNamespace(handle=0)
    cuda.as_cuda_array = lambda array, sync: wrapped(array.host, array.number)
    cuda.take = lambda host, number=0, stream=0: wrapped(registered(host), number, stream)
    return {name: cuda, f"{home}.cudadrv.devicearray": arrays}


LIBRARIES = {"cupy": cupy, "torch": torch, "jax": jax, "numba": numba}
