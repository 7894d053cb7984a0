"""The recurrent cells by their definition in float64, the reference for every result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numnorm import rnn

from .arrays import Array, Sequences
from .cases import EPS, Case


def results(case: Case, arrays: Sequences) -> list[Array]:
    """Return the states, or the gradients of the input and of the parameters."""
    x, dy = (array.astype(np.float64) for array in arrays[:2])
    given = (None if p is None else p.astype(np.float64) for p in arrays.parameters)
    cell = _Lstm(x, rnn.LSTMParameters(*given))
    return [cell.states[1:]] if case.direction == "forward" else cell.gradients(dy)


class _Normalized(NamedTuple):
    """The result of a layer norm, and what its gradient needs; without a norm, the array itself."""

    y: Array
    xhat: Any = None
    rstd: Any = None


def _norm(x: Array, gamma: Any, beta: Any) -> _Normalized:
    if gamma is None:
        return _Normalized(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = ((centred * centred).mean(axis=-1, keepdims=True) + EPS) ** -0.5
    return _Normalized(centred * rstd * gamma + beta, centred * rstd, rstd)


def _norm_gradient(dy: Array, of: _Normalized, gamma: Any) -> Array:
    if gamma is None:
        return dy
    g = dy * gamma
    along = of.xhat * (g * of.xhat).mean(axis=-1, keepdims=True)
    return (g - g.mean(axis=-1, keepdims=True) - along) * of.rstd


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class _Lstm:
    """All steps of an LSTM, with a layer norm for each given gain."""

    def __init__(self, x: Array, p: rnn.LSTMParameters) -> None:
        self._x, self._p = x, p
        self._of_x = _norm(x @ p.weight_x.T, p.gamma_x, p.beta_x)
        start = np.zeros((x.shape[1], p.weight_h.shape[1]))
        states, self._cells, self._steps = [start], [start], []
        for z in self._of_x.y:
            of_h = _norm(states[-1] @ p.weight_h.T, p.gamma_h, p.beta_h)
            f, i, o, g = np.split(z + of_h.y + p.bias, 4, axis=1)
            f, i, o, g = _sigmoid(f), _sigmoid(i), _sigmoid(o), np.tanh(g)
            self._cells.append(f * self._cells[-1] + i * g)
            of_c = _norm(self._cells[-1], p.gamma_c, p.beta_c)
            states.append(o * np.tanh(of_c.y))
            self._steps.append((of_h, of_c, f, i, o, g))
        self.states = np.array(states)

    def gradients(self, dy: Array) -> list[Array]:
        """Return the gradients of x and of the given parameters, in numnorm's order."""
        p, time = self._p, len(dy)
        of_h, of_c = ([step[k] for step in self._steps] for k in (0, 1))
        dz, dproducts, dnormed = [None] * time, [None] * time, [None] * time
        dh = dc = np.zeros_like(dy[0])
        for t in reversed(range(time)):
            f, i, o, g = self._steps[t][2:]
            dh = dh + dy[t]
            top = np.tanh(of_c[t].y)
            dnormed[t] = dh * o * (1 - top * top)
            dc = dc + _norm_gradient(dnormed[t], of_c[t], p.gamma_c)
            grads = (
                *(dc * self._cells[t] * f * (1 - f), dc * g * i * (1 - i)),
                *(dh * top * o * (1 - o), dc * i * (1 - g * g)),
            )
            dz[t] = np.concatenate(grads, axis=1)
            dproducts[t] = _norm_gradient(dz[t], of_h[t], p.gamma_h)
            dh, dc = dproducts[t] @ p.weight_h, dc * f
        dz = np.array(dz)
        dof_x = _norm_gradient(dz, self._of_x, p.gamma_x)
        weights = [_outer(dof_x, self._x), _outer(np.array(dproducts), self.states[:-1])]
        gradients = [dof_x @ p.weight_x, *weights, dz.sum(axis=(0, 1))]
        if p.gamma_x is not None:
            xhats = (self._of_x.xhat, [one.xhat for one in of_h], [one.xhat for one in of_c])
            for grad, xhat in zip((dz, dz, np.array(dnormed)), xhats, strict=True):
                gradients += [(grad * xhat).sum(axis=(0, 1)), grad.sum(axis=(0, 1))]
        return gradients


def _outer(left: Array, right: Array) -> Array:
    """Return the sum over steps and sequences of the products of all pairs of elements."""
    return left.reshape(-1, left.shape[2]).T @ right.reshape(-1, right.shape[2])
