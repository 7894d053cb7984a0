"""Strategies of hypothesis: norms of any shape with their options, and arrays for them."""

import numpy as np
from hypothesis import strategies as st
from norm_checks import Norm

NAMES = ["layer_norm", "rms_norm", "ada_norm", "batch_norm", "group_norm", "instance_norm"]
NAMES += ["weight_norm"]
# Means and deviations that are in the range of float16, where sums of such gradients are not.
FAR = [(100, 1), (0, 30)]


@st.composite
def shapes(draw, least):
    """Up to four short axes, one of which may be longer than a vector register."""
    shape = draw(st.lists(st.integers(1, 5), min_size=least, max_size=4))
    longer = draw(st.integers(0, len(shape) - 1))
    shape[longer] *= draw(st.sampled_from([1, 1, 4, 17]))
    return tuple(shape)


@st.composite
def axis_options(draw, shape):
    """One or more axes, in any order and counted from either end."""
    ndim = len(shape)
    axes = draw(st.lists(st.integers(0, ndim - 1), min_size=1, max_size=ndim, unique=True))
    axes = tuple(axis - draw(st.sampled_from([0, ndim])) for axis in axes)
    return {"axis": axes[0] if len(axes) == 1 and draw(st.booleans()) else axes}


@st.composite
def channel_options(draw, shape, name):
    ndim = len(shape)
    first = 0 if name == "batch_norm" else 1
    axis = draw(st.integers(first, ndim - 1))
    options = {"channel_axis": axis - draw(st.sampled_from([0, ndim]))}
    if name == "group_norm":
        divisors = [n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0]
        options["groups"] = draw(st.sampled_from(divisors))
    return options


@st.composite
def ada_options(draw, width):
    return {
        "eps_in": draw(st.sampled_from(["variance", "std"])),
        "ddof": draw(st.integers(0, min(3, width - 1))),
        "scale": draw(st.sampled_from([0.5, 1.0, 2.0])),
        "k": draw(st.sampled_from([-0.5, 0.0, 0.1, 0.7])),
    }


@st.composite
def norms(draw, name):
    """A norm with a shape and options, its defaults among them."""
    shape = draw(shapes(least=2 if name in ("group_norm", "instance_norm") else 1))
    by_axis = Norm(name, shape).by_axis
    options = draw(axis_options(shape) if by_axis else channel_options(shape, name))
    backward_only = {}
    if name != "weight_norm" and draw(st.booleans()):
        options["eps"] = draw(st.sampled_from([0.0, 1e-12, 1e-3, 2.0]))
    if name == "layer_norm":
        backward_only["detach"] = draw(st.sampled_from([None, "mean", "scale", "both"]))
    if name == "ada_norm":
        width = Norm(name, shape, options).rows(np.empty(shape)).shape[1]
        options |= draw(ada_options(width))
        backward_only["detach_factor"] = draw(st.booleans())
    return Norm(name, shape, options, backward_only)


@st.composite
def arrays(draw, shape, dtype, far=()):
    """Random numbers, few different ones, rows without variance, or a single spike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["normal", "normal", "few", "constant", "spike"]))
    values = {
        "normal": rng.normal(size=shape),
        "few": rng.integers(-1, 2, shape).astype(float),
        "constant": np.zeros(shape),
        "spike": np.arange(np.prod(shape, dtype=int)).reshape(shape) == 3,
    }[kind]
    offset, scale = draw(st.sampled_from([(0, 1), (0.7, 1.5), (-3, 0.01), *far]))
    return (offset + scale * values).astype(dtype)
