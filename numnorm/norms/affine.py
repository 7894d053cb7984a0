"""The maps of the normalized value that several norms share, as plain scalar functions."""


def affine(xhat, gamma, beta):
    """Return ``gamma * xhat + beta``."""
    return xhat * gamma + beta


def gain(xhat, gamma, beta):
    """Return ``gamma * xhat``."""
    return xhat * gamma


def affine_gradient(dy, xhat, gamma, beta):
    """Return the gradient of `affine` and of `gain` with respect to xhat."""
    return dy * gamma
