"""Inputs and outputs of the layer norms of a trained network."""

from __future__ import annotations

import numpy as np

import numnorm
from numnorm import rnn
from numnorm.commands.demo.layers import Array
from numnorm.commands.demo.recurrent.corners import Walker
from numnorm.commands.demo.recurrent.digits import ROWS, Reader

Pair = tuple[Array, Array]


def of_the_reader(reader: Reader, images: Array) -> dict[str, Pair]:
    """Return inputs and outputs of the layer norms of an LSTM over images of digits.

    Parameters
    ----------
    reader : Reader
        A network with layer-normalized cells.
    images : ndarray
        Images with all rows.

    Returns
    -------
    dict
        For each norm its inputs and its outputs, including gain and bias.
    """
    own = reader.cell.parameters
    x = images.reshape(-1, ROWS, ROWS).swapaxes(0, 1)
    h = c = None
    states, cells = [], []
    for step in range(ROWS):
        _, h, c, _ = rnn.lstm_forward(x[step : step + 1], own, h, c)
        states.append(h)
        cells.append(c)
    # The state before the first step is 0.
    products_h = np.matmul(np.array(states[:-1]), own.weight_h.T)
    return {
        f"W_x x, steps 1 to {ROWS}": _normalized(
            np.matmul(x, own.weight_x.T), own.gamma_x, own.beta_x
        ),
        f"W_h h, steps 2 to {ROWS}": _normalized(products_h, own.gamma_h, own.beta_h),
        f"c, steps 1 to {ROWS}": _normalized(np.array(cells), own.gamma_c, own.beta_c),
    }


def of_the_walker(walker: Walker, walks: Array) -> Pair:
    """Return the projected points with their positions, before and after the layer norm.

    Parameters
    ----------
    walker : Walker
        The network.
    walks : ndarray (B, 4, 2)
        The walks; the last point is not read.

    Returns
    -------
    tuple of ndarray
        The values before and after.
    """
    encoded = walker.encoded(walks.swapaxes(0, 1)[:-1])
    return _normalized(encoded, walker.layer_norm.gain, walker.layer_norm.bias)


def _normalized(values: Array, gain: Array, bias: Array) -> Pair:
    return values, numnorm.layer_norm_forward(values, gain, bias).y
