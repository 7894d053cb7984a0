"""Norms with statistics of rows in nopython code.

Each function has the name and the arguments of the public one, gets their types, and returns what
Numba compiles for them.
"""

from typing import Any

from numnorm.norms.layer import LAYER
from numnorm.numba.arguments import check_number, checked_eps
from numnorm.numba.forward import make_forward
from numnorm.numba.layouts import make_rows


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Compile `numnorm.layer_norm`."""
    check_number("eps", eps)
    rows = make_rows(x, axis)
    layout, forward = rows.layout, make_forward(LAYER, rows, x, gamma, beta, out, save=False)

    def call(x, gamma=None, beta=None, axis=-1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        return forward(x, gamma, beta, layout(x, axis), scaling, out)[0]

    return call
