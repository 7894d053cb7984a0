"""The setting that lets a device run all steps of a recurrent cell in one kernel."""

import contextlib
from collections.abc import Iterator

from numnorm.backends.contract.recurrent import wants_persistent_kernels


@contextlib.contextmanager
def persistent_kernels() -> Iterator[None]:
    """Run all steps of a recurrent cell in one kernel, if the weights fit a CUDA device.

    Without this setting, each step on a device is a matrix product by the library of the arrays
    and a kernel of numnorm. A persistent kernel [1]_ keeps the weights of the states in shared
    memory from the first step to the last. Cells that do not fit, cells with batch norm, and
    arrays on the host still run step by step. Results differ only by rounding.

    The setting applies to forward and backward passes inside the ``with`` statement, in the same
    thread or task.

    See Also
    --------
    numnorm.rnn.lstm, numnorm.rnn.gru, numnorm.rnn.rnn

    Notes
    -----
    All blocks of such a kernel run at the same time and wait for each other. They have been
    tested in a simulation, not on a device.

    References
    ----------
    .. [1] G. Diamos et al., "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3))  # or an array of a device: time, batch, features
    >>> with rnn.persistent_kernels():
    ...     y, h, c = rnn.lstm(x, parameters)
    >>> y.shape
    (5, 2, 4)
    """
    token = wants_persistent_kernels.set(True)
    try:
        yield
    finally:
        wants_persistent_kernels.reset(token)
