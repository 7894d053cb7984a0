"""The formulas that several norms share: gain and bias, or gain alone."""

from typing import Any

from numnorm.backends.contract.norms import Formula


def affine(xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return ``gamma * xhat + beta``."""
    return xhat * gamma + beta


def gain(xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return ``gamma * xhat``."""
    return xhat * gamma


def affine_gradient(dy: Any, xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return the gradient of `affine` and of `gain` with respect to xhat."""
    return dy * gamma


AFFINE = Formula("affine", centred=True, forward=affine, backward=affine_gradient)
GAIN = Formula("gain", centred=False, forward=gain, backward=affine_gradient)
