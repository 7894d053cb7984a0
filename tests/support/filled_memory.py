"""Fills new memory, so that a kernel that reads what nobody wrote gives itself away."""

import contextlib
from unittest import mock

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory import kernel_arrays
from numnorm.memory_pool import MemoryPool

# As bytes: NaN in every float format and -1 in integers; zeros; a number below 0 in every format.
NAN, ZERO, NEGATIVE = 0xFF, 0x00, 0xBF


@contextlib.contextmanager
def filled_memory(byte):
    """Fill every array of NumPy and of the pools that is created without values.

    Scratch of kernels is such an array unless they are compiled.
    """

    def filling(function):
        def filled(*arguments, **options):
            array = function(*arguments, **options)
            if array.dtype != object:
                array.reshape(-1, order="A").view(np.uint8)[...] = byte
            return array

        return filled

    with (
        mock.patch.object(np, "empty", filling(np.empty)),
        mock.patch.object(np, "empty_like", filling(np.empty_like)),
        mock.patch.object(kernel_arrays, "plain_scratch", filling(np.empty)),
        mock.patch.object(MemoryPool, "take", filling(MemoryPool.take)),
    ):
        yield


def fill_compiled_scratch():
    """Let kernels that are compiled from now on, and imported after this, begin with NaN scratch.

    Their cache must not be that of the usual kernels.
    """
    uninitialized = kernel_arrays.make_scratch

    def make_scratch(kind, size):
        scratch = uninitialized(kind, size)
        fill = np.dtype(kind).type(0xFFFF if np.dtype(kind).kind == "u" else np.nan)

        @inlined
        def filled():
            array = scratch()
            for i in range(size):
                array[i] = fill
            return array

        return filled

    kernel_arrays.make_scratch = make_scratch
