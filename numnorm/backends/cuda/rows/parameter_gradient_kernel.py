"""From the sums that the blocks of a backward kernel left to the gradients of the parameters."""

from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.compensated_sums import make_joined, two_sum
from numnorm.backends.cuda.threads.group_reductions import WARP

COLUMNS = WARP  # of a block


def make_parameter_gradients(element: Element, of: Element, strips: int = 8) -> Kernel:
    """Return the kernel that adds up the rows of ``sums (parameters, count, columns)``.

    Launched with a block for each `COLUMNS` columns of each parameter, it takes ``sums, dgamma,
    dbeta`` as addresses, and ``count, columns``. The gradients are of the type `of`; the sums
    those of a kernel for `element`. For parameters that a run shares, the columns are the
    channels; else those of all channels' rows, of which there are the parts over the channels.

    So many `strips` of threads add up every so manieth row, and then they are added in order.
    """
    table = working_element(element)
    load_one, store_one, joined = make_load_one(table), make_store_one(of), make_joined(table, of)
    working, zero, places = table.working, constant(table, 0.0), strips * COLUMNS

    def kernel(sums, dgamma, dbeta, count, columns):
        high_of = cuda.shared.array(places, working)
        low_of = cuda.shared.array(places, working)
        thread, lane = cuda.threadIdx.x, cuda.threadIdx.x % COLUMNS
        blocks = (columns + COLUMNS - 1) // COLUMNS
        parameter, column = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * COLUMNS + lane
        high, low = zero, zero
        if column < columns:
            for row in range(thread // COLUMNS, count, strips):
                place = (parameter * count + row) * columns + column
                high, lost = two_sum(high, load_one(sums, place))
                low += lost
        high_of[thread], low_of[thread] = high, low
        cuda.syncthreads()
        if thread < COLUMNS and column < columns:
            for strip in range(1, strips):
                high, lost = two_sum(high, high_of[strip * COLUMNS + lane])
                low += lost + low_of[strip * COLUMNS + lane]
            store_one(dbeta if parameter else dgamma, column, joined(high, low))

    return Kernel(kernel, ("address",) * 3 + ("index",) * 2, places)
