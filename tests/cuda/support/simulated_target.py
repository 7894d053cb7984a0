"""A device in Python, in place of `numnorm.backends.cuda.compiler.target` in these tests.

It runs the sources of the kernels, one thread after the other: a thread runs to a barrier or a
shuffle, and waits there for the others. `ORDER` is the order of the threads between two barriers.
A kernel that lacks a barrier gives another result in one of the orders, or reads shared memory,
which is NaN until it is written. These are errors: a barrier that not all threads reach, an access
outside of an array or at a misaligned address, and a shuffle with a thread that has ended.

Blocks also run one after the other. The blocks of a cooperative launch all exist from the start,
and each runs in this order to the next barrier of the grid.
"""

import contextlib
import ctypes
import functools
import random
import sys
from types import SimpleNamespace

import greenlet
import ml_dtypes
import numpy as np

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits

ORDERS = ("forward", "backward", "shuffled")
ORDER = "forward"
WARP = 32


class SimulationError(RuntimeError):
    """A kernel did something that is undefined on a device."""


# Memory: NumPy arrays stand for device arrays


_ARRAYS = {}


def register(array):
    """Allow kernels to use an array's memory, and keep it alive until `forget`."""
    start = array.__array_interface__["data"][0]
    _ARRAYS[start] = (start + array.nbytes, array)
    return start


def forget():
    """Release all arrays."""
    _ARRAYS.clear()


def _element_type(element):
    return np.dtype(ml_dtypes.bfloat16 if element.name == "bfloat16" else element.name)


def _check_access(address, location, size, shared=False):
    if location % size:
        raise SimulationError(f"{size} bytes at an address that is not a multiple of {size}")
    if shared:
        start, stop = _current.memory.address, _current.memory.address + _current.memory.size
        if not (start <= location and location + size <= stop):
            raise SimulationError(f"{size} bytes outside of what the block shares")
        return
    # Most addresses are those of an array's first element.
    stop, _ = _ARRAYS.get(address, (0, None))
    if address <= location and location + size <= stop:
        return
    for start, (stop, _) in _ARRAYS.items():
        if start <= location and location + size <= stop:
            return
    raise SimulationError(f"{size} bytes outside of every array")


def _make_memory(element, count, shared):
    """Return a function ``memory(address, index)`` of `count` elements, as an array."""
    itemsize, size, dtype = element.itemsize, count * element.itemsize, _element_type(element)
    buffer_at = (ctypes.c_char * size).from_address

    def memory(address, index):
        location = int(address) + int(index) * itemsize
        _check_access(address, location, size, shared)
        return np.frombuffer(buffer_at(location), dtype)

    return memory


@functools.cache
def make_load(element, *, unchanging=False, shared=False):
    memory, compute_type = _make_memory(element, element.vector, shared), element.compute_type

    def load(address, index):
        return tuple(memory(address, index).astype(compute_type))

    return load


@functools.cache
def make_store(element, *, shared=False):
    memory = _make_memory(element, element.vector, shared)

    def store(address, index, values):
        assert len(values) == element.vector
        memory(address, index)[:] = _narrowed(values, element)

    return store


@functools.cache
def make_load_one(element, *, shared=False):
    memory, compute_type = _make_memory(element, 1, shared), element.compute_type
    return lambda address, index: compute_type(memory(address, index)[0])


def load_index(address, index):
    location = int(address) + 4 * int(index)
    _check_access(address, location, 4)
    return ctypes.c_int32.from_address(location).value


def load_flag(address, index):
    location = int(address) + int(index)
    _check_access(address, location, 1)
    return ctypes.c_uint8.from_address(location).value != 0


def store_flag(address, index, value):
    if not isinstance(value, bool | np.bool_):
        raise SimulationError(f"{type(value)} stored as a flag")
    location = int(address) + int(index)
    _check_access(address, location, 1)
    ctypes.c_uint8.from_address(location).value = bool(value)


@functools.cache
def make_store_one(element, *, shared=False):
    memory = _make_memory(element, 1, shared)

    def store_one(address, index, value):
        memory(address, index)[:] = _narrowed([value], element)

    return store_one


def _narrowed(values, element):
    for value in values:
        if type(value) is not element.compute_type:
            raise SimulationError(
                f"{type(value)} stored as {element.name}: not {element.compute_type}"
            )
    return np.array(values, element.compute_type).astype(_element_type(element))


# Functions of kernels


def device(function):
    # Each closure has its own code object, as each is compiled by itself.
    function.__code__ = function.__code__.replace()
    return function


def constant(element, value):
    return element.compute_type(value)


def make_sqrt(element):
    return np.sqrt


def reciprocal(element):
    return lambda value: element.compute_type(1) / value


def exponent(element):
    return lambda value: int(np.frexp(value)[1]) - 1


def times_power_of_two(element):
    return lambda value, power: element.compute_type(np.ldexp(value, int(power)))


def make_exp(element):
    return np.exp


def make_tanh(element):
    return np.tanh


# Threads


class _Thread:
    """A thread of a device, which later kernels reuse."""

    __slots__ = ("body", "brings", "number", "switch", "to_hub", "waits_for")

    def __init__(self, hub):
        self.to_hub, self.switch = hub.switch, greenlet.greenlet(self._serve, hub).switch

    def _serve(self):
        with np.errstate(all="ignore"):  # each greenlet has its own
            while True:
                self.body()
                self.meet("end")

    def begin(self, number, body):
        self.number, self.body = number, body
        self.waits_for, self.brings = None, None
        return self

    def meet(self, what, value=None):
        self.waits_for, self.brings = what, value
        self.to_hub()
        return self.brings


# New greenlets are slow: each allocates memory from the system.
_IDLE: list[_Thread] = []


def _threads(count, body):
    """Return threads that are ready to start."""
    hub = greenlet.getcurrent()
    idle, _IDLE[:] = _IDLE[:count], _IDLE[count:]
    idle += [_Thread(hub) for _ in range(count - len(idle))]
    return [thread.begin(number, body) for number, thread in enumerate(idle)]


_current = SimpleNamespace(thread=None, block=0, blocks=1, threads=1, shared=None, memory=None)


def _ordered(items):
    items = list(items)
    if ORDER == "backward":
        items.reverse()
    elif ORDER == "shuffled":
        random.shuffle(items)
    return items


_POSITIONS = [SimpleNamespace(x=number) for number in range(1024)]


class _Block:
    def __init__(self, number, function, arguments, threads, memory=0):
        self.number, self.shared, self.memory = number, {}, _Memory(memory)
        self.team = _threads(threads, lambda: function(*arguments))
        self.warps = [self.team[i : i + WARP] for i in range(0, threads, WARP)]

    def run(self):
        """Run to a barrier of the grid or to the end; return whether it is a barrier."""
        _current.block, _current.shared, _current.memory = self.number, self.shared, self.memory
        kinds = set()
        while kinds != {"end"}:
            for warp in _ordered(self.warps):
                _run_warp(warp)
            waiting = [thread.waits_for for thread in self.team]
            kinds, ended = set(waiting), waiting.count("end")
            if 0 < ended < len(waiting):
                came = len(waiting) - ended
                raise SimulationError(f"{came} of {len(waiting)} threads came to a barrier")
            if len(kinds) > 1:
                raise SimulationError("threads of a block at barriers of two kinds")
            if "grid" in kinds:
                return True
        _IDLE.extend(self.team)
        return False


class _Memory:
    """The dynamic shared memory of a block."""

    def __init__(self, size):
        self.size, self.buffer = size, _poisoned(size + WARP, np.uint8)
        self.address = -(-self.buffer.ctypes.data // 16) * 16


def _run_warp(warp):
    """Run a warp through its shuffles, to a barrier or to its end."""
    while True:
        for thread in _ordered(warp):
            _current.thread = thread
            thread.switch()
        kinds = {thread.waits_for for thread in warp}
        if "shuffle" not in kinds:
            return
        if len(kinds) > 1:
            raise SimulationError("a shuffle that not all threads of a warp came to")
        values = [thread.brings for thread in warp]
        for thread in warp:
            thread.brings = values


def _shuffle_xor(mask, value, distance):
    if mask != 0xFFFFFFFF:
        raise SimulationError("a shuffle of a part of a warp")
    thread = _current.thread
    values = thread.meet("shuffle", value)
    other = (thread.number % WARP) ^ int(distance)
    if other >= len(values):
        raise SimulationError("a shuffle with a thread that there is not")
    return values[other]


def _poisoned(count, dtype):
    found = np.empty(count, dtype)
    found.view(np.uint8)[...] = 0xFF  # NaN
    return found


def _shared_array(count, dtype):
    caller = sys._getframe(1)
    key = id(caller.f_code), caller.f_lineno
    if key not in _current.shared:
        _current.shared[key] = _poisoned(count, dtype)
    return _current.shared[key]


def _local_array(count, dtype):
    return _poisoned(count, dtype)


class _Cuda:
    """The names of `numba.cuda` that the kernels use."""

    shared = SimpleNamespace(array=_shared_array)
    local = SimpleNamespace(array=_local_array)
    shfl_xor_sync = staticmethod(_shuffle_xor)

    @property
    def threadIdx(self):
        return _POSITIONS[_current.thread.number]

    @property
    def blockIdx(self):
        return SimpleNamespace(x=_current.block)

    @property
    def blockDim(self):
        return SimpleNamespace(x=_current.threads)

    @property
    def gridDim(self):
        return SimpleNamespace(x=_current.blocks)

    @staticmethod
    def syncthreads():
        _current.thread.meet("barrier")


def grid_barrier():
    _current.thread.meet("grid")


def shared_memory():
    return _current.memory.address


cuda = _Cuda()
_CONVERSIONS = {"address": int, "index": int, "float32": np.float32, "float64": np.float64}


class Kernel:
    def __init__(self, function, parameters, threads, *, grid_barriers=False):
        self.function, self.parameters, self.threads = function, parameters, threads
        self.grid_barriers = grid_barriers
        self._loaded = False

    def is_loaded(self, device):
        return self._loaded

    def launch(self, blocks, stream, *arguments):
        self._loaded = True
        run(self.function, self._converted(arguments), blocks, self.threads)

    def launch_numbers(self, blocks, stream, numbers):
        each = iter(numbers)
        arguments = [_grouped(kind, each) for kind in self.parameters]
        if list(each):
            raise SimulationError("more numbers than parameters")
        self.launch(blocks, stream, *arguments)

    def numbers(self, arguments):
        return list(_numbers_in(self._converted(arguments)))

    def launch_cooperative(self, blocks, stream, memory, *arguments):
        if not self.grid_barriers or blocks > self.most_cooperative(memory):
            raise SimulationError(f"{blocks} blocks cannot run at the same time")
        self._loaded = True
        run_together(self.function, self._converted(arguments), blocks, self.threads, memory)

    def most_cooperative(self, memory):
        return MOST_TOGETHER

    def _converted(self, arguments):
        if len(arguments) != len(self.parameters):
            raise SimulationError("another number of arguments than of parameters")
        pairs = zip(self.parameters, arguments, strict=True)
        return [_converted(kind, value) for kind, value in pairs]


def _numbers_in(arguments):
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _numbers_in(argument)
        else:
            yield argument


def _grouped(kind, numbers):
    if isinstance(kind, str):
        return next(numbers)
    group, kinds = kind
    return group(*(_grouped(k, numbers) for k in kinds))


def _converted(kind, value):
    if isinstance(kind, str):
        return _CONVERSIONS[kind](value)
    group, kinds = kind
    if not isinstance(value, group):
        raise SimulationError(f"{value!r} where the kernel takes a {group.__name__}")
    return group(*(_converted(k, v) for k, v in zip(kinds, value, strict=True)))


def run(function, arguments, blocks, threads):
    """Run a kernel of any arguments."""
    _current.blocks, _current.threads = blocks, threads
    for block in _ordered(range(blocks)):
        if _Block(block, function, arguments, threads).run():
            raise SimulationError("a barrier of blocks that need not run at the same time")


def run_together(function, arguments, blocks, threads, memory):
    """Run a kernel whose blocks wait for each other, each with `memory` bytes to share."""
    _current.blocks, _current.threads = blocks, threads
    grid = [_Block(block, function, arguments, threads, memory) for block in range(blocks)]
    waiting = {True}
    while True in waiting:
        waiting = {block.run() for block in _ordered(grid)}
        if len(waiting) > 1:
            raise SimulationError("a barrier of the grid that not all blocks came to")


# Devices


def check_available():
    pass


# No kernel of all steps fits this device, except where a test sets other limits.
MOST_TOGETHER = 64
LIMITS = DeviceLimits(0, 0, 0, 0, 0, cooperative=False)


def device_limits(number):
    return LIMITS


def on_device(number):
    return contextlib.nullcontext()


def synchronize(stream):
    pass
