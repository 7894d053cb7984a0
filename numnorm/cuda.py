"""Norms as device functions, for kernels that you write with `numba.cuda`.

A team of threads holds a row in registers, and the function normalizes it there. What your kernel
computes before and after it stays in registers, too. ``import numnorm.cuda`` needs no GPU and no
compiler; its functions need numba-cuda, or numba-cuda-mlir. ::

    import numpy as np
    from numba import cuda
    import numnorm.cuda

    THREADS, SLOTS = 128, 8  # rows of up to 1024 elements, one a block
    layer_norm = numnorm.cuda.layer_norm_row(THREADS, SLOTS)

    @cuda.jit
    def add_and_normalize(x, residual, gamma, beta, y):
        values = cuda.local.array(SLOTS, np.float32)
        row, thread, width = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
        for k in range(SLOTS):
            column = thread + k * THREADS
            if column < width:
                values[k] = x[row, column] + residual[row, column]
        layer_norm.forward(values, width, gamma, beta, 1e-5)
        for k in range(SLOTS):
            column = thread + k * THREADS
            if column < width:
                y[row, column] = values[k]

    add_and_normalize[x.shape[0], THREADS](x, residual, gamma, beta, y)

**Teams.** A team of 32 threads is a warp; a block may have several, each with its own row. A warp
may have several teams of 16 threads or less. A wider team is a whole block: the block has exactly
the threads of the team. The threads of a team are neighbours along ``threadIdx.x``.

**Elements.** Element k of a team's thread t is column ``t + k * threads`` of the row, so that
neighbours read and write neighbours. Elements from `width` on are neither read nor written. Make
the array in your kernel by ``cuda.local.array(slots, dtype)``: up to 32 elements of an array stay
in registers, and about 100 of all arrays of a kernel. A block of 1024 threads has 64 registers for
each thread: tell the compiler by ``@cuda.jit(launch_bounds=1024)``.

**numba-cuda-mlir** has its `cuda` in ``numba_cuda_mlir``. If both are installed, the functions are
numba-cuda's. Version 0.6 loses the shared memory of a function that a kernel calls as an attribute:
give it a name of its own before, as ``normalize = layer_norm.forward``.

**Every thread must make the call**: all threads of a warp, and for a wider team all threads of the
block, because they exchange sums. A team without a row calls with a width of 0; ignore the result.

Calls need no barrier between them. For teams that are wider than a warp, the functions allocate
shared memory of their own, at most 1 KiB for float32.

The results have the accuracy of `numnorm.layer_norm` and the other norms at any offset and scale,
and do not depend on the order of threads. NaN and infinity stay in their row. The statistics are
float64, as in the other functions, because float32 would round a large mean. A kernel that does not
use them has no float64 operation.
"""

from typing import Any, NamedTuple

from numnorm.arguments import check_choice, check_dtype, check_flag, check_integer
from numnorm.array_types import Detach, EpsIn
from numnorm.backends.contract.norms import Detached, Norm
from numnorm.backends.cuda import part
from numnorm.norms.ada import ADA
from numnorm.norms.layer import DETACHABLE, DETACHED, LAYER
from numnorm.norms.rms import RMS

__all__ = ["RowFunctions", "ada_norm_row", "layer_norm_row", "rms_norm_row"]

_MOST_THREADS = 1024  # of a block, on every device


class RowFunctions(NamedTuple):
    """The device functions of a norm.

    Attributes
    ----------
    forward
        Normalizes x in place, and returns the row's statistics.
    xhat
        Turns x into the normalized value, in place, from the statistics that `forward` returned.
        It computes no sums and has no barrier.
    backward
        Turns dy into dx, in place, from the normalized values.

    Examples
    --------
    >>> import numnorm.cuda
    >>> functions = numnorm.cuda.rms_norm_row(32, 4)  # doctest: +SKIP

    and in a kernel ::

        rstd = functions.forward(values, width, gamma, 1e-5)
    """

    forward: Any
    xhat: Any
    backward: Any


def layer_norm_row(
    threads: int, slots: int, dtype: Any = "float32", *, detach: Detach | None = None
) -> RowFunctions:
    r"""Return device functions for the layer norm of a row that a team of threads holds.

    .. math::

        y = \gamma \hat x + \beta, \quad \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad
        dx = \frac{g - \overline{g} - \hat x \, \overline{g \hat x}}{\sqrt{\sigma^2 + \epsilon}},
        \quad g = \gamma \, dy

    Parameters
    ----------
    threads : int
        The number of threads that hold a row, a power of two up to 1024: 32 are a warp, and more
        are a block.
    slots : int
        The number of elements of each thread; the row has at most ``threads * slots``.
    dtype : dtype, default float32
        The type of the elements: float32 or float64. Convert half precision when you read and
        write it.
    detach : {None, "mean", "scale", "both"}
        The statistics that are constants in the backward pass.

    Returns
    -------
    RowFunctions
        ``forward(values, width, gamma, beta, eps)`` returns ``mean, rstd``, float64 numbers;
        ``xhat(values, width, mean, rstd)``; ``backward(grads, xhats, width, gamma, rstd)``.
        The values, grads (dy) and xhats are local arrays (slots,) of `dtype`; gamma and
        beta are arrays (width,) of any floats, or None.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.
    ImportError
        If neither numba-cuda nor numba-cuda-mlir is installed.

    Notes
    -----
    The same arguments give the same functions. The gradients of gamma and beta are sums of ``dy *
    xhat`` and of ``dy`` over rows: add them up between `xhat` and `backward`, which overwrites dy.

    Examples
    --------
    >>> import numnorm.cuda
    >>> layer_norm = numnorm.cuda.layer_norm_row(128, 8)  # doctest: +SKIP

    and in a kernel, with a local array for x and one for dy, ::

        mean, rstd = layer_norm.forward(values, width, gamma, beta, 1e-5)

        layer_norm.xhat(values, width, mean, rstd)
        for k in range(8):
            of_gamma[k] += grads[k] * values[k]
            of_beta[k] += grads[k]
        layer_norm.backward(grads, values, width, gamma, rstd)
    """
    detached = DETACHED[None if detach is None else check_choice("detach", detach, DETACHABLE)]
    return _row_functions(LAYER, threads, slots, dtype, detached)


def rms_norm_row(threads: int, slots: int, dtype: Any = "float32") -> RowFunctions:
    r"""Return device functions for the RMS norm of a row that a team of threads holds.

    .. math::

        y = \gamma \hat x, \quad \hat x = \frac{x}{\sqrt{\overline{x^2} + \epsilon}}, \qquad
        dx = \frac{g - \hat x \, \overline{g \hat x}}{\sqrt{\overline{x^2} + \epsilon}},
        \quad g = \gamma \, dy

    Parameters
    ----------
    threads, slots, dtype
        As for `layer_norm_row`.

    Returns
    -------
    RowFunctions
        ``forward(values, width, gamma, eps)`` returns ``rstd``, a float64 number;
        ``xhat(values, width, rstd)``; ``backward(grads, xhats, width, gamma, rstd)``.
        The arrays are as for `layer_norm_row`.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `layer_norm_row` does.

    Examples
    --------
    A warp for each row, so that a block has as many rows as warps:

    >>> import numnorm.cuda
    >>> rms_norm = numnorm.cuda.rms_norm_row(32, 4)  # doctest: +SKIP

    and in a kernel ::

        row = cuda.blockIdx.x * (cuda.blockDim.x // 32) + cuda.threadIdx.x // 32
        width = x.shape[1] if row < x.shape[0] else 0
        for k in range(4):
            column = cuda.threadIdx.x % 32 + k * 32
            if column < width:
                values[k] = x[row, column]
        rstd = rms_norm.forward(values, width, gamma, 1e-5)
    """
    return _row_functions(RMS, threads, slots, dtype, Detached())


def ada_norm_row(
    threads: int,
    slots: int,
    dtype: Any = "float32",
    *,
    eps_in: EpsIn = "variance",
    ddof: int = 0,
    detach_factor: bool = True,
) -> RowFunctions:
    r"""Return device functions for the AdaNorm of a row that a team of threads holds.

    .. math:: z = C (1 - k y) y, \quad y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}

    and the gradient of `numnorm.ada_norm_backward`.

    Parameters
    ----------
    threads, slots, dtype
        As for `layer_norm_row`.
    eps_in : {"variance", "std"}
        Whether eps is added to the variance or to the standard deviation.
    ddof : int, default 0
        The variance is the sum of squares divided by width - ddof, which must be positive.
    detach_factor : bool, default True
        Whether the factor C (1 - k y) is a constant in the backward pass.

    Returns
    -------
    RowFunctions
        ``forward(values, width, scale, k, eps)`` returns ``mean, rstd``, float64 numbers;
        ``xhat(values, width, mean, rstd)``;
        ``backward(grads, xhats, width, scale, k, eps, rstd)``. Scale (C) and k are numbers, the
        arrays are as for `layer_norm_row`, and xhat is y.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `layer_norm_row` does.

    Examples
    --------
    >>> import numnorm.cuda
    >>> ada_norm = numnorm.cuda.ada_norm_row(256, 4)  # doctest: +SKIP

    and in a kernel ::

        mean, rstd = ada_norm.forward(values, width, 1.0, 0.1, 1e-5)
    """
    on_deviation = check_choice("eps_in", eps_in, ("variance", "std")) == "std"
    factor_flows = not check_flag("detach_factor", detach_factor)
    ddof = check_integer("ddof", ddof, 0)
    return _row_functions(
        ADA, threads, slots, dtype, Detached(), ddof, (on_deviation, factor_flows)
    )


def _row_functions(
    norm: Norm,
    threads: Any,
    slots: Any,
    dtype: Any,
    detached: Detached,
    ddof: int = 0,
    choices: tuple[bool, ...] = (),
) -> RowFunctions:
    team, slots = check_integer("threads", threads, 1), check_integer("slots", slots, 1)
    if team > _MOST_THREADS or team & (team - 1):
        raise ValueError(f"threads must be a power of two up to {_MOST_THREADS}, got {team}")
    name = check_dtype(dtype, ("float32", "float64")).name
    functions = part("device_functions", "device functions")
    row = functions.team_row(norm, name, team, slots, ddof)
    return RowFunctions(*functions.make_row_functions(row, detached, *choices))
