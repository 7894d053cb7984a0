"""The kernel that adds up the partial sums of a backward kernel to dgamma and dbeta."""

from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.compensated_sums import make_joined, two_sum
from numnorm.backends.cuda.threads.group_reductions import WARP

COLUMNS = WARP  # columns of a block


def make_parameter_gradients(element: ElementType, of: ElementType, strips: int = 32) -> Kernel:
    """Return the kernel that adds up the rows of ``sums (parameters, count, columns)``.

    It has a block for each `COLUMNS` columns of each parameter. It takes the addresses of sums,
    dgamma and dbeta, and the numbers ``count`` and ``columns``. The sums have the compute type of
    `element`, the gradients have the type `of`. If segments share parameters, the columns are the
    channels; otherwise they are the columns of all channels.

    Each of the `strips` of threads sums every strips-th row; the first strip of threads then adds
    these sums in order.
    """
    table = compute_element_type(element)
    load_one, store_one, joined = make_load_one(table), make_store_one(of), make_joined(table, of)
    compute_type, zero, slots = table.compute_type, constant(table, 0.0), strips * COLUMNS

    def kernel(sums, dgamma, dbeta, count, columns):
        hi_of = cuda.shared.array(slots, compute_type)
        lo_of = cuda.shared.array(slots, compute_type)
        thread, lane = cuda.threadIdx.x, cuda.threadIdx.x % COLUMNS
        blocks = (columns + COLUMNS - 1) // COLUMNS
        parameter, column = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * COLUMNS + lane
        hi, lo = zero, zero
        if column < columns:
            for row in range(thread // COLUMNS, count, strips):
                index = (parameter * count + row) * columns + column
                hi, lost = two_sum(hi, load_one(sums, index))
                lo += lost
        hi_of[thread], lo_of[thread] = hi, lo
        cuda.syncthreads()
        if thread < COLUMNS and column < columns:
            for strip in range(1, strips):
                hi, lost = two_sum(hi, hi_of[strip * COLUMNS + lane])
                lo += lost + lo_of[strip * COLUMNS + lane]
            store_one(dbeta if parameter else dgamma, column, joined(hi, lo))

    return Kernel(kernel, ("address",) * 3 + ("index",) * 2, slots)
