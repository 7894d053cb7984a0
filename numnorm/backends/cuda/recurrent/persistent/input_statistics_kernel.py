"""The kernel of the statistics of a cell's products with x, for all steps at once."""

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, cuda, make_load_one
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    SMEM_PER_WARP,
    Parts,
    make_cell_statistics,
    make_store_statistics,
    smem_for_parts,
)
from numnorm.backends.cuda.recurrent.common.step_parameters import ScalingNumbers
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import group_of
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_product_statistics(
    norm: Norm, count: int, element: ElementType, shape: RowShape
) -> Kernel:
    """Return the kernel for a norm that takes `count` gates of a row together.

    ``kernel(xp, table, rows, width, gates, first, sites, site, scaling)`` takes the addresses of
    ``xp (rows, gates * H)`` and of ``table (rows, sites, NUMBERS)``, the number of rows, H, the
    number of gates of a product, the first of the `count` gates, the number of statistics of a
    row, the number of those that the kernel writes, and `ScalingNumbers`.
    """
    columns, compute_type = row_columns(element, shape), element.compute_type
    read, load_one = make_read_columns(element, columns), make_load_one(element)
    statistics = make_cell_statistics(norm.formula, element, shape, Parts(1, count))
    save_stats, team, teams = make_store_statistics(element, 1), shape.team, shape.teams
    lanes, slots = columns.lanes, columns.slots
    size, smem_size = count * columns.slots, SMEM_PER_WARP * smem_for_parts(1, shape)

    def kernel(xp, table, rows, width, gates, first, sites, site, scaling):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(size, compute_type)
        origins = cuda.local.array(1, compute_type)
        stats = cuda.local.array(NUMBERS, compute_type)
        row = cuda.blockIdx.x * teams + cuda.threadIdx.x // team
        at = cuda.threadIdx.x % team * lanes
        active = row < rows
        row = row if active else rows - 1
        start = (row * gates + first) * width
        origins[0] = load_one(xp, start)
        for gate in range(count):
            read(xp, start + gate * width, at, width, values[gate * slots :])
        statistics(values, origins, stats, at, width, scaling, smem)
        if active and cuda.threadIdx.x % team == 0:
            save_stats(table, row, sites, site, stats)

    scaling = group_of(ScalingNumbers, element.compute_name)
    return Kernel(kernel, (*("address",) * 2, *("index",) * 6, scaling), shape.threads)
