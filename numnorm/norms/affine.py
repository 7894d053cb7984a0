"""The maps of the normalized value that several norms share, as plain scalar functions."""

from typing import Any


def affine(xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return ``gamma * xhat + beta``."""
    return xhat * gamma + beta


def gain(xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return ``gamma * xhat``."""
    return xhat * gamma


def affine_gradient(dy: Any, xhat: Any, gamma: Any, beta: Any) -> Any:
    """Return the gradient of `affine` and of `gain` with respect to xhat."""
    return dy * gamma
