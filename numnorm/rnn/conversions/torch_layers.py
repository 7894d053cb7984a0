"""All layers of a recurrent module of PyTorch, by the names in its ``state_dict``."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from numnorm.arguments import brief

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def layers_from_torch(state: Mapping[str, Any], from_torch: Callable[..., Any]) -> list[Any]:
    """Return the layers of a recurrent module of PyTorch, for `stacked` with ``norm=None``.

    Parameters
    ----------
    state : mapping of str to array_like
        The module's ``state_dict()``: ``weight_ih_l0``, ``bias_hh_l1_reverse`` and so on. Of
        a module around it, take that part:
        ``{n.removeprefix("lstm."): a for n, a in state.items() if n.startswith("lstm.")}``.
    from_torch : callable
        What takes over one direction of one layer, such as `lstm_from_torch`.

    Returns
    -------
    list
        For each layer what `from_torch` returns, for both directions a pair.

    Raises
    ------
    TypeError
        If `state` is no mapping, or `from_torch` cannot be called.
    ValueError
        If a name is missing, or is there that `stacked` has no use for, such as those of
        projections (``proj_size``), or if an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> state = {  # as of torch.nn.LSTM(3, 2, num_layers=2, bias=False).state_dict()
    ...     "weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2)),
    ...     "weight_ih_l1": np.ones((8, 2)), "weight_hh_l1": np.ones((8, 2)),
    ... }
    >>> layers = rnn.layers_from_torch(state, rnn.lstm_from_torch)
    >>> rnn.stacked(np.ones((5, 1, 3)), layers, norm=None).y.shape
    (5, 1, 2)
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping, such as a state_dict(), got {brief(state)}")
    if not callable(from_torch):
        raise TypeError(
            f"from_torch must be a function, such as lstm_from_torch, got {brief(from_torch)}"
        )
    count = next(n for n in itertools.count() if n and f"weight_ih_l{n}" not in state)
    suffixes = ("", "_reverse") if "weight_ih_l0_reverse" in state else ("",)
    sites = [[f"_l{n}{suffix}" for suffix in suffixes] for n in range(count)]
    known = {kind + place for layer in sites for place in layer for kind in _KINDS}
    for name in state:
        if name not in known:
            raise ValueError(
                f"state must have nothing but {', '.join(_KINDS)} of {count} x {len(suffixes)} "
                f"layers and directions, from 'weight_ih_l0' on, got {name!r}"
            )
    layers = []
    for layer in sites:
        directions = tuple(_direction(state, place, from_torch) for place in layer)
        layers.append(directions if len(directions) == 2 else directions[0])
    return layers


def _direction(state: Mapping[str, Any], place: str, from_torch: Callable[..., Any]) -> Any:
    for kind in _KINDS[:2]:
        if kind + place not in state:
            raise ValueError(f"state must have {kind + place!r}, which is missing")
    try:
        return from_torch(*(state.get(kind + place) for kind in _KINDS))
    except (TypeError, ValueError) as error:
        kind_of_error = TypeError if isinstance(error, TypeError) else ValueError
        raise kind_of_error(f"{place.removeprefix('_')}: {error}") from error
