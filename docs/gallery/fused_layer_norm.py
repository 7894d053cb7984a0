"""A kernel of your own for CUDA
=============================

A bias, a GELU and a layer norm in one kernel of your own, and their gradients in another.

.. picture:: runs.fused_layer_norm
   :alt: Differences of y and of the gradients from NumPy in float64: some roundings of float32.

   A recorded run of 8 rows, on a device simulated in Python: differences from NumPy in float64.

x is read once and y written once; between them a row stays in the registers of a block.

It needs a GPU. In the folder of the sources: ``pip install '.[cu13]'``, then
``python docs/gallery/fused_layer_norm.py``
"""

# sphinx_gallery_thumbnail_path = "generated/pictures/runs.fused_layer_norm-light.svg"

import math

import numpy as np
from numba import cuda
from scipy.special import erf

import numnorm.cuda

THREADS, SLOTS = 256, 4  # rows of up to 1024 elements, one a block
BLOCKS = 128  # of the gradients: each has the sums of its rows
layer_norm = numnorm.cuda.layer_norm_row(THREADS, SLOTS)

# A literal 0.5 would be a float64, and so would all that is computed with it.
HALF, ONE, ROOT_HALF = np.float32(0.5), np.float32(1), np.float32(math.sqrt(0.5))
DENSITY, EPS = np.float32(1 / math.sqrt(2 * math.pi)), np.float32(1e-5)


@cuda.jit(device=True)
def probability(value):
    """Return that of a normal number below the value: its product with the value is the GELU."""
    return HALF * (ONE + np.float32(math.erf(value * ROOT_HALF)))


@cuda.jit
def forward(x, bias, gamma, beta, y, mean, rstd):
    """Write ``layer_norm(gelu(x + bias))``, and the statistics of its rows."""
    values = cuda.local.array(SLOTS, np.float32)
    row, thread, width = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    for k in range(SLOTS):
        column = thread + k * THREADS
        if column < width:
            value = x[row, column] + bias[column]
            values[k] = value * probability(value)
    found = layer_norm.forward(values, width, gamma, beta, EPS)
    for k in range(SLOTS):
        column = thread + k * THREADS
        if column < width:
            y[row, column] = values[k]
    if thread == 0:
        mean[row], rstd[row] = found


@cuda.jit
def backward(dy, x, bias, gamma, mean, rstd, dx, sums):
    """Write dx, and each block's sums for the gradients of gamma, beta and the bias."""
    values = cuda.local.array(SLOTS, np.float32)
    grads = cuda.local.array(SLOTS, np.float32)
    of_gamma = cuda.local.array(SLOTS, np.float32)
    of_beta = cuda.local.array(SLOTS, np.float32)
    of_bias = cuda.local.array(SLOTS, np.float32)
    thread, width = cuda.threadIdx.x, x.shape[1]
    for k in range(SLOTS):
        of_gamma[k] = of_beta[k] = of_bias[k] = 0
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for k in range(SLOTS):
            column = thread + k * THREADS
            if column < width:
                value = x[row, column] + bias[column]
                values[k] = value * probability(value)
                grads[k] = dy[row, column]
        layer_norm.xhat(values, width, mean[row], rstd[row])
        for k in range(SLOTS):
            if thread + k * THREADS < width:
                of_gamma[k] += grads[k] * values[k]
                of_beta[k] += grads[k]
        layer_norm.backward(grads, values, width, gamma, rstd[row])
        for k in range(SLOTS):
            column = thread + k * THREADS
            if column < width:
                value = x[row, column] + bias[column]
                density = DENSITY * np.float32(math.exp(-HALF * value * value))
                grad = grads[k] * (probability(value) + value * density)
                dx[row, column] = grad
                of_bias[k] += grad
    for k in range(SLOTS):
        column = thread + k * THREADS
        if column < width:
            sums[cuda.blockIdx.x, 0, column] = of_gamma[k]
            sums[cuda.blockIdx.x, 1, column] = of_beta[k]
            sums[cuda.blockIdx.x, 2, column] = of_bias[k]


def fused(x, bias, gamma, beta, dy):
    """Return y, dx, dgamma, dbeta and dbias for arrays of the host."""
    rows, width = x.shape
    x, bias, gamma, beta, dy = (cuda.to_device(array) for array in (x, bias, gamma, beta, dy))
    y, dx = cuda.device_array((rows, width), np.float32), cuda.device_array(x.shape, np.float32)
    mean, rstd = cuda.device_array(rows, np.float64), cuda.device_array(rows, np.float64)
    blocks = min(rows, BLOCKS)
    sums = cuda.device_array((blocks, 3, width), np.float32)
    forward[rows, THREADS](x, bias, gamma, beta, y, mean, rstd)
    backward[blocks, THREADS](dy, x, bias, gamma, mean, rstd, dx, sums)
    return y.copy_to_host(), dx.copy_to_host(), *sums.copy_to_host().sum(0)


def one_by_one(x, bias, gamma, beta, dy):
    """Return the same, computed by NumPy in float64."""
    x, bias, gamma, beta, dy = (np.float64(array) for array in (x, bias, gamma, beta, dy))
    value = x + bias
    below = (1 + erf(value * math.sqrt(0.5))) / 2
    density = np.exp(-value * value / 2) / math.sqrt(2 * math.pi)
    gelu = value * below
    rstd = 1 / np.sqrt(gelu.var(1, keepdims=True) + EPS)
    xhat = (gelu - gelu.mean(1, keepdims=True)) * rstd
    g = dy * gamma
    grad = rstd * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
    dx = grad * (below + value * density)
    return xhat * gamma + beta, dx, (dy * xhat).sum(0), dy.sum(0), dx.sum(0)


def main(rows=512, width=1000):
    """Compare the two, and return the largest differences, relative to the largest values."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, rows, width), np.float32)
    bias, gamma, beta = rng.standard_normal((3, width), np.float32)
    pairs = zip(*(f(x, bias, gamma, beta, dy) for f in (fused, one_by_one)), strict=True)
    errors = [abs(one - two).max() / abs(two).max() for one, two in pairs]
    for name, error in zip(("y", "dx", "dgamma", "dbeta", "dbias"), errors, strict=True):
        print(f"{name:>6}: off by {error:.1e} of the largest")
    return errors


if __name__ == "__main__":
    main()
