"""The steps of recurrent cells and their gradients, as scalar functions.

Each backend compiles them with its own compiler, for scalars or vectors. They contain no literals,
so that float32 arithmetic stays float32: the argument `one` is 1 in the compute type. A gradient
of a gate is the gradient before its sigmoid or tanh.
"""

from typing import Any


def lstm_cell(f: Any, i: Any, g: Any, c_prev: Any) -> Any:
    """Return the new cell, ``f * c_prev + i * g`` (Hochreiter and Schmidhuber 1997; Gers 2000)."""
    return f * c_prev + i * g


def lstm_state(o: Any, tanh_c: Any) -> Any:
    """Return the new state from the tanh of the normalized cell."""
    return o * tanh_c


def lstm_state_gradient(dh: Any, o: Any, tanh_c: Any, one: Any) -> Any:
    """Return the gradients of the normalized cell and of o from the gradient of the state."""
    return dh * o * (one - tanh_c * tanh_c), dh * tanh_c * o * (one - o)


def lstm_cell_gradient(dc: Any, c_prev: Any, f: Any, i: Any, g: Any, one: Any) -> Any:
    """Return the gradients of f, i, g and c_prev from the gradient of the new cell."""
    df = dc * c_prev * f * (one - f)
    di = dc * g * i * (one - i)
    dg = dc * i * (one - g * g)
    return df, di, dg, dc * f


def gru_candidate_input(from_x: Any, r: Any, from_h: Any) -> Any:
    """Return the candidate before its tanh.

    The gate r scales the product with the state, not the state itself: this is the GRU of cuDNN,
    PyTorch and ONNX with ``linear_before_reset``.
    """
    return from_x + r * from_h


def gru_state(keep: Any, candidate: Any, h_prev: Any, one: Any) -> Any:
    """Return the new state (Cho et al. 2014).

    `keep` is 1 - z. It is passed instead of z because it scales `h_prev`, which may be large, and
    so needs full relative accuracy.
    """
    return keep * h_prev + (one - keep) * candidate


def gru_gradient(
    dh: Any, h_prev: Any, keep: Any, r: Any, candidate: Any, from_h: Any, one: Any
) -> Any:
    """Return the gradients of z, r, the candidate's parts `from_h` and `from_x`, and h_prev."""
    z = one - keep
    d_candidate = dh * z * (one - candidate * candidate)
    dz = dh * (candidate - h_prev) * z * keep
    dr = d_candidate * from_h * r * (one - r)
    return dz, dr, d_candidate * r, d_candidate, dh * keep


def gru_update_gradient(dh: Any, h_prev: Any, keep: Any, candidate: Any, one: Any) -> Any:
    """Return the gradients of z, the candidate and h_prev; the latter without its part through r.

    This is for a GRU whose gate r scales the state before the product (Cho et al. 2014).
    """
    z = one - keep
    dz = dh * (candidate - h_prev) * z * keep
    return dz, dh * z * (one - candidate * candidate), dh * keep


def gru_reset_gradient(d_reset: Any, state: Any, r: Any, one: Any) -> Any:
    """Return the gradients of r and the state from the gradient of ``r * state``."""
    return d_reset * state * r * (one - r), d_reset * r


def tanh_gradient(dy: Any, y: Any, one: Any) -> Any:
    """Return the gradient of x from the gradient of ``y = tanh(x)``."""
    return dy * (one - y * y)


def zoneout_blend(new: Any, previous: Any, mask: Any) -> Any:
    """Return ``(1 - mask) * new + mask * previous``, exact where the mask is 1 (Krueger 2017)."""
    return (new - mask * new) + mask * previous


def zoneout_gradient(dy: Any, mask: Any) -> Any:
    """Return the gradients of `new` and `previous` of `zoneout_blend`."""
    return dy - mask * dy, mask * dy
