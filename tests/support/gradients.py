"""Gradients by central differences, to check the formulas of the backward passes."""

import numpy as np

EPSILON = np.finfo(np.longdouble).eps

# A central difference has an error of h^2 by truncation and of EPSILON / h by rounding. They are
# equal at h = EPSILON^(1/3): EPSILON^(2/3), or 2e-13 for 64 bits of mantissa.
STEP = EPSILON ** (np.longdouble(1) / 3)

# A thousand times that allows for third derivatives and for sums over a few dozen outputs: 2e-10 on
# x86, and 4e-8 if longdouble is float64.
TOLERANCE = float(1000 * EPSILON ** (np.longdouble(2) / 3))


def numerical_gradients(function, arrays, dy):
    """The gradient of sum(function(*arrays) * dy) with respect to each of `arrays`."""
    arrays = [np.array(array, np.longdouble) for array in arrays]

    def weighted_sum():
        return np.sum(function(*arrays) * dy)

    return [numerical_gradient(weighted_sum, array) for array in arrays]


def numerical_gradient(scalar_function, array):
    """The gradient of `scalar_function()` with respect to `array`, which it reads."""
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        value = array[index]
        step = STEP * max(abs(value), np.longdouble(1))
        array[index] = value + step
        above = scalar_function()
        array[index] = value - step
        below = scalar_function()
        array[index] = value
        gradient[index] = (above - below) / (2 * step)
    return gradient
