"""One step of a cell without gradients; the usual call with packed parameters takes a short way."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import scaling_by
from numnorm.rnn.parameters import Kind
from numnorm.rnn.passes import Options, Packed, forward
from numnorm.rnn.sequences import sequence_layout
from numnorm.rnn.specs import Spec

# Packed parameters remember how to take a step for this many batch sizes and epsilons.
_MOST_STEPS = 8


def step(
    kind: Kind,
    make_spec: Callable[..., Spec],
    choices: tuple[Any, ...],
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    options: tuple[Any, Any, Any, Any, Any],
) -> tuple[Any, ...]:
    """Return the states after one step; `choices` determine the spec.

    `options` are eps, zoneout, rng, dropout and recurrent_dropout. Usual arrays and packed
    parameters take a short way, from their second call on.
    """
    eps, zoneout, rng, dropout, recurrent_dropout = options
    key = known = None
    if (
        type(parameters) is Packed
        and parameters.kind is kind
        and type(x) is np.ndarray
        and type(eps) is type(zoneout) is type(dropout) is type(recurrent_dropout) is float
        and zoneout == dropout == recurrent_dropout == 0.0
        and rng is None
    ):
        # With the type, because True is equal to 1 and `make_spec` refuses 1.
        key = choices, type(choices[-1]), eps, x.shape, x.dtype
        try:
            known = parameters.steps.get(key)
        except TypeError:  # of a choice that has no hash; `make_spec` raises the error
            key = None
        if known is not None and (result := known(x, states)) is not None:
            return result
    given = Options(
        eps, zoneout=zoneout, rng=rng, dropout=dropout, recurrent_dropout=recurrent_dropout
    )
    result = forward(kind, make_spec(*choices), x, parameters, states, given, single=True)
    if key is not None and known is None and x.ndim == 2 and x.dtype == parameters.dtype:
        _remember_step(parameters, key, eps, x, result)
    return result


def _remember_step(packed: Packed, key: Any, eps: float, x: Any, states: tuple[Any, ...]) -> None:
    """Remember how to take a step like one that was taken."""
    layout, shape = sequence_layout(1, x.shape[0], None, False), states[0].shape
    take = packed.backend.prepared_step(
        packed.spec.cell, scaling_by(eps), x, layout.steps, packed.weights, states
    )

    def take_if_usual(x: Any, states: tuple[Any, ...]) -> Any:
        for state in states:
            if state is not None and not (
                type(state) is np.ndarray and state.shape == shape and state.dtype == x.dtype
            ):
                return None
        return None if take is None else take(x, states)

    if len(packed.steps) >= _MOST_STEPS:
        packed.steps.clear()
    packed.steps[key] = take_if_usual
