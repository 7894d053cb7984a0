"""Recurrent batch norm: its running statistics for each step, and their checks."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import (
    brief,
    check_choice,
    check_dtype,
    check_flag,
    check_integer,
    check_number,
    check_shape,
)
from numnorm.array_types import Convention, LSTMVariant
from numnorm.backends.contract.backend import RecurrentBackend
from numnorm.backends.contract.recurrent import LSTMSpec, PackedSteps, RunningSteps
from numnorm.norms.running import new_batch_weight
from numnorm.rnn.specs import lstm_spec


class LSTMStatistics(NamedTuple):
    """The running statistics of an LSTM with H units, for each of its first S steps.

    Attributes
    ----------
    mean_x, var_x : array (S, 4H), optional
        Mean and variance of W_x x; gates in the order f, i, o, g.
    mean_h, var_h : array (S, 4H), optional
        Mean and variance of W_h h; of W_h h + W_x x with ``variant="per_gate"``.
    mean_c, var_c : array (S, H)
        Mean and variance of the cell. Statistics that a variant does not use are None.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.lstm_init(3, 2, rng=rng, norm="batch")
    >>> norm = rnn.RecurrentBatchNorm(rnn.lstm_statistics_init(5, 2))
    >>> y, h, c = rnn.lstm(rng.normal(size=(5, 4, 3)), parameters, norm=norm)
    >>> norm.statistics.mean_x.shape, bool((norm.statistics.mean_x != 0).all())
    ((5, 8), True)
    """

    mean_x: Any = None
    var_x: Any = None
    mean_h: Any = None
    var_h: Any = None
    mean_c: Any = None
    var_c: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class RecurrentBatchNorm:
    r"""Batch norm in a recurrent cell, with separate running statistics for each step.

    .. math::

        (f, i, o, g) &= BN_t(W_h h_{t-1}; \gamma_h, \beta_h)
                        + BN_t(W_x x_t; \gamma_x, \beta_x) + b \\
        c_t &= \sigma(f) \, c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(BN_t(c_t; \gamma_c, \beta_c))

    At step t every feature is normalized over the sequences that have that step [1]_. In training
    the mean and the biased variance are those of these sequences, and update the running
    statistics of step t. In inference the running statistics are used; steps beyond the last
    one that they have use the last one.

    Parameters
    ----------
    statistics : LSTMStatistics
        Of any float dtype, where x is, on a device in its library. In training they are updated
        in place, which JAX's arrays do not allow.
    training : bool, default True
        Whether to normalize with the statistics of the batch.
    momentum : float, optional
        As for `numnorm.batch_norm`: in the convention "torch" the weight of the new batch, by
        default 0.1; in the convention "keras" the weight of the old statistics, by default 0.99.
    convention : {"torch", "keras"}
        The meaning of `momentum`, and whether the running variances are unbiased (torch) or
        biased (keras).
    unbiased : bool, optional
        Whether the running variances have Bessel's correction; overrides the convention.
    first_step : int, default 0
        The number of steps of these sequences in previous calls.

    Notes
    -----
    In training, steps beyond the last one of the running statistics do not update them. Neither
    does a step that only one sequence has: it has no variance, and is normalized to 0. A batch
    of one sequence raises a ValueError.

    The states before the first step are 0 by default, so that W_h h has no variance there. The
    authors initialize the gains to 0.1, and add noise to the first states where features are
    constant.

    References
    ----------
    .. [1] T. Cooijmans, N. Ballas, C. Laurent, C. Gulcehre, A. Courville, "Recurrent Batch
       Normalization", ICLR 2017.

    Examples
    --------
    >>> from numnorm import rnn
    >>> statistics = rnn.lstm_statistics_init(50, 8)
    >>> norm = rnn.RecurrentBatchNorm(statistics, momentum=0.05)
    >>> norm.training, norm.statistics.var_c.shape
    (True, (50, 8))
    """

    statistics: LSTMStatistics
    _: dataclasses.KW_ONLY
    training: bool = True
    momentum: float | None = None
    convention: Convention = "torch"
    unbiased: bool | None = None
    first_step: int = 0


def lstm_statistics_init(
    steps: int, hidden: int, *, variant: LSTMVariant = "paper", dtype: Any = np.float32
) -> LSTMStatistics:
    """Return the initial running statistics of an LSTM with batch norm: means 0, variances 1.

    Parameters
    ----------
    steps, hidden : int
        S and H. The authors of recurrent batch norm use the length of the longest training
        sequence as S.
    variant : str, default "paper"
        As for `lstm`.
    dtype : dtype, default float32
        The dtype of all statistics: float16, bfloat16, float32 or float64.

    Returns
    -------
    LSTMStatistics
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or value.

    Examples
    --------
    >>> from numnorm import rnn
    >>> statistics = rnn.lstm_statistics_init(3, 1, variant="cell_only")
    >>> statistics.mean_h, statistics.var_c
    (None, array([[1.],
           [1.],
           [1.]], dtype=float32))
    """
    steps, hidden = check_integer("steps", steps, 1), check_integer("hidden", hidden, 1)
    arrays, dtype = {}, check_dtype(dtype)
    spec: Any = lstm_spec("batch", variant).cell
    for site, size in spec.sites(hidden).items():
        arrays[f"mean_{site}"] = np.zeros((steps, size), dtype)
        arrays[f"var_{site}"] = np.ones((steps, size), dtype)
    return LSTMStatistics(**arrays)


def running_statistics(
    norm: RecurrentBatchNorm,
    spec: LSTMSpec,
    hidden: int,
    steps: PackedSteps,
    x: Any,
    backend: RecurrentBackend,
) -> dict[str, RunningSteps]:
    """Return the checked running statistics of each site of a norm in the cell."""
    training = check_flag("norm.training", norm.training)
    if isinstance(norm.momentum, str):
        raise ValueError(f"norm.momentum must be a number or None, got {brief(norm.momentum)}")
    if norm.momentum is not None:
        check_number("norm.momentum", norm.momentum, least=0.0, most=1.0)
    check_choice("norm.convention", norm.convention, ("torch", "keras"))
    weight = new_batch_weight(norm.momentum, None, norm.convention)
    unbiased = norm.convention == "torch"
    if norm.unbiased is not None:
        unbiased = check_flag("norm.unbiased", norm.unbiased)
    first = check_integer("norm.first_step", norm.first_step, 0)
    sizes = spec.sites(hidden)
    arrays = _checked(norm.statistics, sizes, training, x, backend)
    if training and steps.batch_sizes.size and steps.batch_sizes[0] == 1:
        raise ValueError(
            "x must have at least 2 sequences that have a step to update norm.statistics, got 1"
        )
    return {
        site: RunningSteps(
            arrays[f"mean_{site}"], arrays[f"var_{site}"], training, weight, int(unbiased), first
        )
        for site in sizes
    }


def _checked(
    statistics: Any, sizes: dict[str, int], update: bool, x: Any, backend: RecurrentBackend
) -> dict[str, Any]:
    """Return the statistics as the backend's arrays, without a copy if they will be updated."""
    if not isinstance(statistics, LSTMStatistics):
        raise TypeError(
            f"norm.statistics must be an LSTMStatistics, got an object of type "
            f"{type(statistics).__name__}"
        )
    arrays: dict[str, Any] = {}
    steps = None
    for field, value in statistics._asdict().items():
        name, size = f"norm.statistics.{field}", sizes.get(field[-1])
        if size is None:
            if value is not None:
                raise ValueError(f"{name} must be None, as this variant does not use it")
            continue
        array = arrays[field] = backend.step_statistics(name, value, x, update)
        if steps is None:
            if len(array.shape) != 2 or array.shape[0] == 0:
                raise ValueError(
                    f"{name} must have shape (S, {size}) with S at least 1, got {array.shape}"
                )
            steps = array.shape[0]
        check_shape(name, array.shape, (steps, size), "that of the steps and units")
    if update:
        for (one, first), (other, second) in itertools.combinations(arrays.items(), 2):
            if backend.share_memory(first, second):
                raise ValueError(
                    f"norm.statistics.{other} must not share memory with {one}, got such an array"
                )
    return arrays
