"""Arguments and checks for tests of the backward kernels of rows."""

import dataclasses

import numpy as np
import reference
import simulated_target
from kernel_arrays import addresses

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
from numnorm.backends.cuda.rows.arguments import Parameter, RowParameters, RowScaling
from numnorm.backends.cuda.rows.parameter_sums import COLUMNS, make_parameter_gradients
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.norms.affine import AFFINE

DTYPES = ["float16", "bfloat16", "float32", "float64"]
PARTS = 2


def element_type(name):
    return simulated_target._element_type(ELEMENT_TYPES[name])


def draw(dtype, *size, mean=0.0, seed=0):
    return np.random.default_rng(seed).normal(mean, 2, size).astype(dtype)


def saved_of(x):
    return FLOAT32 if x.dtype == np.float16 else FLOAT64


def statistics(x, eps=1e-5):
    _, mean, rstd = reference.layer_norm(x, eps=eps)
    return [np.asarray(of).astype(saved_of(x).name) for of in (mean, rstd)]


@dataclasses.dataclass
class Case:
    """The arguments of the kernels, except for the arrays of rows."""

    shape: RowShape
    formula: object = AFFINE
    parameters: int = 2
    weights: tuple = (None, None)
    numbers: tuple = (1.0, 0.0)
    segment: int | None = None
    channels: int = 1
    shared: bool = False
    parts: int = PARTS
    shares: tuple | None = None
    eps_on_deviation: float = 0.0
    in_place: bool = False


def elements_of(array):
    return None if array is None else ELEMENT_TYPES[array.dtype.name]


def parameter_gradients(element, sums, dtype, strips=8):
    parameters, count, columns = sums.shape
    found = np.full((2, columns), np.nan, dtype)
    kernel = make_parameter_gradients(element, ELEMENT_TYPES[np.dtype(dtype).name], strips)
    blocks = parameters * -(-columns // COLUMNS)
    kernel.launch(blocks, 0, *addresses(sums, found[0], found[1]), count, columns)
    return found[:parameters]


def epsilon_of(dtype):
    return float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps)


def check(found, expected, dtype, terms=1, roundings=16):
    """Check to some roundings of the largest value in the compute type, and one of the storage.

    A sum of `terms` numbers may have one more rounding for each.
    """
    storage = float(reference.exact(np.spacing(np.ones(1, found.dtype)))[0])
    largest = np.abs(expected).max() if expected.size else 0
    bound = (roundings + terms) * epsilon_of(dtype) * largest + storage / 2 * np.abs(expected)
    assert np.all(np.abs(reference.exact(found) - expected) <= bound)


def parameters_of(case):
    return RowParameters(*map(Parameter, addresses(*case.weights), case.numbers))


def scaling_of(case, width):
    return RowScaling(*(case.shares or (1 / width, 1 / width)), case.eps_on_deviation)
