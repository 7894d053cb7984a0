"""Sums over all steps of recurrent cells, and the shapes of their kernels."""

import itertools

import numpy as np
import pytest
from cell_steps import assert_close
from simulated_target import register

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.parameter_gradients import make_cell_sums
from numnorm.backends.cuda.recurrent.pass_arrays import cell_shape

DTYPES = ("float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, parts", [(1, 1), (40, 1), (75, 2)])
def test_sums_over_rows(rows, parts, dtype, order):
    rng, columns, places = np.random.default_rng(0), 140, 5
    grads, values = rng.normal(size=(2, rows, columns)).astype(dtype)
    table = rng.normal(size=(rows, places, NUMBERS)).astype(dtype)
    found = np.full((2, parts, columns), np.nan, dtype)
    kernel = make_cell_sums(ELEMENT_TYPES[dtype], normed=True)
    kernel.launch(
        2 * parts,
        0,
        *map(register, (grads, values, table, found)),
        rows,
        columns,
        parts,
        places,
        2,
        70,
    )
    scale, high, low, factor = (
        np.repeat(table[:, 2:4], 70, axis=1).astype(np.float64).T.swapaxes(1, 2)
    )
    xhat = (values * scale - high - low) * factor
    assert_close(found[0].sum(axis=0), (grads * xhat).sum(axis=0), dtype)
    assert_close(found[1].sum(axis=0), grads.sum(axis=0, dtype=np.float64), dtype)


def test_shapes_of_cells():
    for name, units in itertools.product(DTYPES, range(1, 5000)):
        element = ELEMENT_TYPES[name]
        shape = cell_shape(units, element, whole=units % 4 == 0)
        reach = shape.team * shape.vectors * element.vector
        assert units <= reach and shape.threads % 32 == 0
        assert reach == element.vector or units > reach // 2
        assert shape.vectors == 1 or shape.team == 512
