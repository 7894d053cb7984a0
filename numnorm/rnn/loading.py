"""Parameters of recurrent cells from arrays by name, such as those of a file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numnorm.arguments import brief
from numnorm.rnn.parameters import GRU, LSTM, PROJECTED_LSTM, RNN

_KINDS = tuple(kind.parameters for kind in (LSTM, PROJECTED_LSTM, GRU, RNN))


def load_parameters(kind: Any, arrays: Mapping[str, Any]) -> Any:
    """Return parameters from arrays by name, such as the file of ``numpy.savez``.

    A parameter that is None is stored by ``savez`` as an object, which ``numpy.load`` does not read
    unless it may unpickle; here it becomes None again without that.

    Parameters
    ----------
    kind : type
        `LSTMParameters`, `ProjectedLSTMParameters`, `GRUParameters` or `RNNParameters`.
    arrays : mapping of str to array
        Has no names but those of the parameters; a parameter that it lacks is None.

    Returns
    -------
    LSTMParameters, ProjectedLSTMParameters, GRUParameters or RNNParameters

    Raises
    ------
    TypeError
        If `kind` is no such type, or `arrays` is no mapping.
    ValueError
        If a weight is missing, or a name is unknown.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> file = io.BytesIO()  # or the name of a file, which needs no `seek`
    >>> parameters = rnn.RNNParameters(np.ones((2, 3)), np.eye(2))
    >>> np.savez(file, **parameters._asdict())
    >>> start = file.seek(0)
    >>> loaded = rnn.load_parameters(rnn.RNNParameters, np.load(file))
    >>> loaded.weight_x.shape, loaded.bias
    ((2, 3), None)
    """
    if kind not in _KINDS:
        names = ", ".join(known.__name__ for known in _KINDS)
        raise TypeError(f"kind must be one of {names}, got {brief(kind)}")
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays must be a mapping, such as of numpy.load, got {brief(arrays)}")
    for name in arrays:
        if name not in kind._fields:
            raise ValueError(f"arrays must have names of {kind.__name__}, got {name!r}")
    values = {name: _present(arrays, name) for name in arrays}
    for name in kind._fields:
        if name not in kind._field_defaults and values.get(name) is None:
            raise ValueError(f"arrays must have {name!r}, which is missing")
    return kind(**values)


def _present(arrays: Mapping[str, Any], name: str) -> Any:
    """Return an array, or None for one that stands for None."""
    try:
        value = arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        return None
    return None if isinstance(value, np.ndarray) and value.dtype == object else value
