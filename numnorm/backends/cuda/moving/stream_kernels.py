"""The kernels that join the held steps of a stream and the steps of a new chunk."""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    load_flag,
    make_load_one,
    make_store_one,
    store_flag,
)
from numnorm.backends.cuda.moving.arguments import MISSING, SEQUENCES, make_counts, place_of

_THREADS = 128


class Joined(NamedTuple):
    """The steps of a chunk with those before it, each for all channels.

    Attributes
    ----------
    outer, ahead, held, steps, inner : index
        A result has `ahead` zeros, then `held` steps of the stream, then `steps` of the chunk.
    """

    outer: Any
    ahead: Any
    held: Any
    steps: Any
    inner: Any

    @property
    def total(self) -> int:
        """The number of all steps."""
        return int(self.ahead + self.held + self.steps)


class Marks(NamedTuple):
    """Which steps count, a byte for each element; the addresses are 0 if all do.

    Attributes
    ----------
    keep : bytes
        0 where the mask leaves a step out.
    counted : bytes
        0 also where a NaN of the chunk is left out.
    """

    keep: Any
    counted: Any


JOINED, MARKS = (Joined, ("index",) * 5), (Marks, ("address",) * 2)


def make_joined(element: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(values, kept, x, absent, result, marks, sizes)``.

    The values that are held come first, of which `kept` says which count; all without it.
    """
    load, store, zero = make_load_one(element), make_store_one(element), constant(element, 0.0)
    counts = make_counts(missing)

    @device
    def mark(marks, index, keep, counted):
        if missing:
            store_flag(marks.keep, index, keep)
            store_flag(marks.counted, index, counted)

    def kernel(values, kept, x, absent, result, marks, sizes):
        outer, ahead, held, steps, inner = sizes
        index = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        total = ahead + held + steps
        if index < outer * total * inner:
            entry, step, column = place_of(index, total, inner)
            if step < ahead:
                store(result, index, zero)
                mark(marks, index, False, False)
            elif step < ahead + held:
                at = (entry * held + step - ahead) * inner + column
                keep = kept == 0 or load_flag(kept, at)
                store(result, index, load(values, at))
                mark(marks, index, keep, keep)
            else:
                at = (entry * steps + step - ahead - held) * inner + column
                value = load(x, at)
                keep = absent.keep == 0 or load_flag(absent.keep, at)
                store(result, index, value)
                mark(marks, index, keep, counts(absent, at, value))

    parameters = (*("address",) * 3, MISSING, "address", MARKS, JOINED)
    return Kernel(kernel, parameters, _THREADS)


def make_last_steps(element: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(source, counted, values, kept, sequences, count)``.

    It copies the last steps of a source, and which of them count.
    """
    load, store = make_load_one(element), make_store_one(element)

    def kernel(source, counted, values, kept, sequences, count):
        outer, steps, inner = sequences
        index = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if index < outer * count * inner:
            entry, step, column = place_of(index, count, inner)
            at = (entry * steps + steps - count + step) * inner + column
            store(values, index, load(source, at))
            if missing:
                store_flag(kept, index, load_flag(counted, at))

    return Kernel(kernel, (*("address",) * 4, SEQUENCES, "index"), _THREADS)
