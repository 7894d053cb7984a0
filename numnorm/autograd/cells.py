"""The recurrent cells over sequences: each has the arguments of the function of `numnorm.rnn`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from autograd.tracer import getval, isbox

from numnorm import rnn as cells
from numnorm.array_types import CellNorm, LSTMNorm, LSTMVariant, Nonlinearity, Number
from numnorm.autograd.primitives import Differentiable
from numnorm.derived import derived, parameters_section, signature_for
from numnorm.rnn.cells import CELLS, Cell
from numnorm.rnn.parameters import KINDS, LSTM, kind_of, named


class _Types:
    """The types of the arguments that are no arrays."""

    norm: CellNorm | None
    variant: LSTMVariant
    reset_after: bool
    nonlinearity: Nonlinearity
    eps: Number
    batch_first: bool
    reverse: bool
    dropout: Number
    recurrent_dropout: Number
    zoneout: Number
    rng: np.random.Generator | None


class _TypesOfLSTM:
    """The types of the arguments for which an LSTM takes more."""

    norm: LSTMNorm | cells.RecurrentBatchNorm | None
    zoneout: Number | tuple[Number, Number]


_PARAMETERS = """\
parameters : {parameters} or tuple
    Not packed. Autograd differentiates with respect to a tuple or a dictionary of arrays:
    make `{first}` of it in the function."""

_DOCSTRING = """Return `numnorm.rnn.{name}`, with gradients with respect to x, parameters{states}.

{section}

Returns
-------
{results}
    ``(y, {outputs})``.

Notes
-----
With ``norm="ada"`` the norm's factor is a constant for the gradient, as in `ada_norm`.

Examples
--------
>>> import autograd
>>> import numpy as np
>>> import numnorm.autograd
>>> from numnorm import rnn
>>> rng = np.random.default_rng(0)
>>> x = rng.normal(size=(5, 4, 3))
>>> def loss(weights):
...     return (numnorm.autograd.{name}(x, rnn.{first}(**weights)).y ** 2).sum()
>>> gradients = autograd.grad(loss)(rnn.{name}_init(3, 2, rng=rng)._asdict())
>>> gradients["weight_x"].shape
({rows}, 3)
"""


def _cell(cell: Cell) -> Callable[..., Any]:
    """Return a cell as a function that autograd differentiates."""
    kind = cell.kind
    make_results = inspect.signature(cell.call).return_annotation
    types = dict(inspect.get_annotations(_Types))
    if kind is LSTM:
        types |= inspect.get_annotations(_TypesOfLSTM)
    signature = signature_for(cell.call, types, f"cells.{make_results.__name__}")
    of_kind = [k.parameters.__name__ for k in KINDS if k.name == kind.name]
    *states, last = kind.states
    own = _PARAMETERS.format(parameters=", ".join(of_kind), first=of_kind[0])
    docstring = _DOCSTRING.format(
        name=kind.name,
        states="".join(f", {state}" for state in states) + f" and {last}",
        section=parameters_section(cell.call, signature.parameters, {"parameters": own}),
        results=make_results.__name__,
        outputs=", ".join(kind.states),
        first=of_kind[0],
        rows=2 * len(kind.gates),
    )
    differentiable = _differentiable(cell)
    count = len(kind.states)

    def run(x: Any, parameters: Any, *states: Any, **options: Any) -> Any:
        if isbox(parameters) and isinstance(getval(parameters), tuple | list):
            parameters = tuple(parameters)
        exact = kind_of(kind, parameters)
        values = named(exact, parameters)
        outputs = differentiable(x, *states, *values, make=exact.parameters, **options)
        return make_results(*(outputs[i] for i in range(count + 1)))

    return derived(globals(), kind.name, signature, run, docstring)


def _differentiable(cell: Cell) -> Differentiable:
    """Return a cell as a function of x, its first states, and its parameters one by one."""
    count = len(cell.kind.states)

    def result(x: Any, *arrays: Any, make: Any, **options: Any) -> tuple[tuple[Any, ...], Any]:
        states = arrays[:count]
        values = arrays[count:]
        *outputs, saved = cell.forward(x, make(*values), *states, **options)
        return tuple(outputs), saved

    def gradients(dys: Any, saved: Any, *_: Any, **options: Any) -> tuple[Any, ...]:
        dy, *dstates = dys
        dx, *dfirst, dparameters = cell.backward(dy, saved, *dstates)
        return dx, *dfirst, *dparameters

    result.__name__ = cell.kind.name
    return Differentiable(result, gradients)


lstm: Callable[..., cells.LSTMStates] = _cell(CELLS["lstm"])
gru: Callable[..., cells.GRUStates] = _cell(CELLS["gru"])
rnn: Callable[..., cells.RNNStates] = _cell(CELLS["rnn"])
