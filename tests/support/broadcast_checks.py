"""Gamma and beta that broadcast against x: shapes, and a check against the definition."""

import ml_dtypes
import numpy as np
import reference

RNG = np.random.default_rng(14)
# The name of a norm, its options, and the shapes of x, gamma and beta (None: not given).
CASES = [
    ("layer_norm", {}, (4, 6), (4, 1), (4, 1)),
    ("layer_norm", {}, (4, 6), (4, 6), None),
    ("layer_norm", {}, (4, 6), (1, 6), (4, 6)),
    ("layer_norm", {}, (2, 3, 6), (2, 1, 6), (6,)),
    ("layer_norm", {}, (2, 3, 6), (6,), (2, 1, 6)),
    ("layer_norm", {}, (2, 3, 6), None, (2, 1, 6)),
    ("layer_norm", {"axis": 0}, (5, 3), (1, 3), (5,)),
    ("layer_norm", {"axis": (0, 2)}, (4, 3, 5), (1, 3, 1), (4, 5)),
    ("rms_norm", {}, (4, 6), (4, 1), None),
    ("rms_norm", {"axis": 0}, (4, 6), (1, 6), None),
    ("group_norm", {"groups": 2}, (3, 4, 5), (3, 4, 1), (3, 4, 1)),
    ("group_norm", {"groups": 2}, (3, 4, 5), (3, 4, 1), (4,)),
    ("group_norm", {"groups": 2, "channel_axis": -1}, (3, 5, 4), (3, 1, 4), (4,)),
    ("group_norm", {"groups": 2}, (3, 8), (3, 8), (8,)),
    ("instance_norm", {}, (3, 4, 5), (3, 4, 1), (1, 4, 5)),
    ("instance_norm", {"channel_axis": 2}, (3, 5, 4), (4,), (3, 1, 4)),
    ("batch_norm", {}, (6, 4), (6, 4), (4,)),
    ("batch_norm", {}, (3, 4, 5), (3, 4, 1), (4,)),
    ("batch_norm", {"channel_axis": -1}, (3, 5, 4), (4,), (3, 1, 4)),
    ("batch_norm", {"channel_axis": 0}, (3, 5, 4), (1, 5, 1), None),
    ("weight_norm", {}, (4, 6), (4, 1), None),
    ("weight_norm", {"axis": (1, 2)}, (4, 3, 2), (4, 1, 1), None),
    ("weight_norm", {"axis": 0}, (4, 6), (4, 1), None),
]


def draw(shape, dtype):
    return None if shape is None else RNG.uniform(0.5, 2.0, shape).astype(dtype)


def usual_axes(norm, options, ndim):
    """The axes of x that a parameter of the usual shape has."""
    if "channel_axis" in options or norm in ("batch_norm", "group_norm", "instance_norm"):
        return reference.normalized_axes(ndim, options.get("channel_axis", 1))
    axes = reference.normalized_axes(ndim, options.get("axis", -1))
    return reference.other_axes(ndim, axes) if norm == "weight_norm" else axes


def expanded(parameter, norm, options, ndim, missing):
    """A parameter in extended precision that broadcasts against x as NumPy's arrays do."""
    if parameter is not None and parameter.ndim == ndim:
        return reference.exact(parameter)
    return reference.along(parameter, ndim, usual_axes(norm, options, ndim), missing)


def bound(dtype, roundings, expected):
    """So many half units in the last place of the largest value, as docs/numerics.md has it."""
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2
    return roundings * half_unit * float(abs(expected).max())


def check_broadcast(norms, norm, options, shape, of_gamma, of_beta, dtype):
    """Check both passes; return what the forward pass was given, and y.

    `norms` has the functions of numnorm.
    """
    x = RNG.normal(1.0, 2.0, shape).astype(dtype)
    dy = RNG.normal(size=shape).astype(dtype)
    gamma, beta = draw(of_gamma, dtype), draw(of_beta, dtype)
    wide_gamma = expanded(gamma, norm, options, x.ndim, 1)
    wide_beta = expanded(beta, norm, options, x.ndim, 0)
    xhat = getattr(reference, norm)(x, **options)[0]
    expected = xhat * wide_gamma + wide_beta

    given = [gamma] if norm in ("rms_norm", "weight_norm") else [gamma, beta]
    y, *saved = getattr(norms, f"{norm}_forward")(x, *given, **options)
    assert y.dtype == dtype
    # 6 roundings on the way to xhat, and 2 more by gamma and beta.
    assert abs(reference.exact(y) - expected).max() <= bound(dtype, 8, expected)

    gradients = getattr(norms, f"{norm}_backward")(dy, x, *saved, gamma, **options)
    exact_dy = reference.exact(dy)
    plain = getattr(reference, f"{norm}_backward")(exact_dy * wide_gamma, x, **options)
    assert abs(reference.exact(gradients[0]) - plain[0]).max() <= bound(dtype, 16, plain[0])
    if gamma is None or gamma.ndim != x.ndim:
        return x, given, y
    axes = tuple(axis for axis, n in enumerate(gamma.shape) if n == 1)
    sums = [(exact_dy * xhat).sum(axes, keepdims=True), exact_dy.sum(axes, keepdims=True)]
    for gradient, of_all in zip(gradients[1:], sums, strict=False):
        assert gradient.shape == gamma.shape
        assert gradient.dtype == dtype
        # 16 roundings of the terms, whose sum may be small: relative to the sum of their sizes.
        size = abs(exact_dy * xhat).sum(axes, keepdims=True).max() + abs(of_all).max()
        assert abs(reference.exact(gradient) - of_all).max() <= bound(dtype, 16, size)
    return x, given, y
