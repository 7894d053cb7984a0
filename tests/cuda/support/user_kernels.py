"""Kernels that call the device functions of each norm, as users write them."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import numnorm.cuda
from numnorm.backends.cuda.compiler.chosen import compiler

cuda, types = compiler.cuda, compiler.types
GALLERY = Path(__file__).parents[3] / "docs" / "gallery" / "fused_layer_norm.py"


def described(kernel, *parameters):
    """Return a kernel with its types, as `sass.report` takes it."""
    signature = types.void(*parameters)
    return SimpleNamespace(function=kernel.py_func, signature=signature, threads=None)


def make_forward(norm, threads, slots, dtype, numbers):
    """Return a kernel of ReLU and a norm for rows of a warp or of a block; it saves nothing."""
    normalize = norm.forward  # numba-cuda-mlir inlines what a kernel calls by a plain name

    @cuda.jit
    def forward(x, gamma, beta, y):
        values = cuda.local.array(slots, dtype)
        row = (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) // threads
        width = x.shape[1] if row < x.shape[0] else 0
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            if column < width:
                values[k] = max(x[row, column], dtype(0))
        if numbers == 2:
            normalize(values, width, gamma, beta, 1e-5)
        elif numbers == 1:
            normalize(values, width, gamma, 1e-5)
        else:
            normalize(values, width, 1.0, 0.1, 1e-5)
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            if column < width:
                y[row, column] = values[k]

    return forward


def make_backward(norm, threads, slots, dtype, numbers):
    """Return a kernel of the gradient of a norm, one row a team."""
    xhat, gradient = norm.xhat, norm.backward

    @cuda.jit
    def backward(dy, x, gamma, mean, rstd, dx):
        values, grads = cuda.local.array(slots, dtype), cuda.local.array(slots, dtype)
        row = (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) // threads
        width = x.shape[1] if row < x.shape[0] else 0
        saved = min(row, x.shape[0] - 1)
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            if column < width:
                values[k] = x[row, column]
                grads[k] = dy[row, column]
        if numbers == 1:
            xhat(values, width, rstd[saved])
        else:
            xhat(values, width, mean[saved], rstd[saved])
        if numbers == 0:
            gradient(grads, values, width, 1.0, 0.1, 1e-5, rstd[saved])
        else:
            gradient(grads, values, width, gamma, rstd[saved])
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            if column < width:
                dx[row, column] = grads[k]

    return backward


def kernels():
    """Yield the kernels of every norm and of the gallery, with their names."""
    norms = {"layer_norm": 2, "rms_norm": 1, "ada_norm": 0}
    for threads, slots, dtype in (
        (8, 4, np.float32),
        (32, 4, np.float32),
        (128, 8, np.float32),
        (256, 32, np.float32),
        (128, 8, np.float64),
    ):
        number = getattr(types, dtype.__name__)
        matrix, vector, saved = number[:, ::1], number[::1], types.float64[::1]
        for name, parameters in norms.items():
            if name != "layer_norm" and slots != 8:
                continue
            norm = getattr(numnorm.cuda, f"{name}_row")(threads, slots, dtype)
            made = norm, threads, slots, dtype, parameters
            where = f"{name}, {dtype.__name__}, {threads} threads, {slots} slots"
            forward = described(make_forward(*made), matrix, vector, vector, matrix)
            yield f"user's {where}, forward", forward
            if slots <= 8:
                taken = matrix, matrix, vector, saved, saved, matrix
                yield f"user's {where}, backward", described(make_backward(*made), *taken)
    if compiler.NAME == "numba-cuda":  # which the gallery imports
        yield from gallery_kernels()


def gallery_kernels():
    """Yield the two kernels of `docs/gallery`."""
    spec = importlib.util.spec_from_file_location("fused_layer_norm", GALLERY)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    matrix, vector = types.float32[:, ::1], types.float32[::1]
    saved, sums = types.float64[::1], types.float32[:, :, ::1]
    forward = matrix, vector, vector, vector, matrix, saved, saved
    yield "gallery, forward", described(example.forward, *forward)
    backward = matrix, matrix, vector, vector, saved, saved, matrix, sums
    yield "gallery, backward", described(example.backward, *backward)
