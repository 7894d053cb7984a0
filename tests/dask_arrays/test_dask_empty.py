"""Arrays of Dask without elements: what NumPy's call gives, in the chunks of x."""

import inspect
import math

import numpy as np
import pytest
from lazy_norms import computed

import numnorm
from numnorm.norms.declared import BY_NAME

da = pytest.importorskip("dask.array")

SHAPES = [(0,), (2, 0, 4), (2, 5, 0)]


def halves(shape):
    """Return chunks of about half the lengths."""
    return tuple((n // 2, n - n // 2) if n > 1 else (n,) for n in shape)


def calls(spec, shape):
    """Yield options of a norm for a shape, with each keyword that is no number."""
    last = len(shape) - 1
    if spec.axis == "axis":
        axes = [last, 0] + [tuple(range(last + 1))[1:]] * (spec.family == "rows" and last > 1)
    else:
        axes = [1, last] if last else []
    given = {k: v for k, v in spec.example_arguments.items() if k not in ("axis", "channel_axis")}
    taken = inspect.signature(spec.function).parameters
    for axis in axes:
        options = {**given, spec.axis: axis}
        own = axis if isinstance(axis, tuple) else (axis,)
        # No polynomial, which `emsc` would refuse.
        lengths = [shape[a] for a in own]
        options |= {
            name: 1.0 + (np.arange(math.prod(lengths)) == 0).reshape(lengths)
            for name in spec.constants
        }
        yield options
        yield options | {"where": np.ones(shape, bool)}
        if "labels" in taken and shape[0]:
            yield options | {"labels": np.arange(shape[0])}


def check(found, expected, x):
    first, *_ = found if isinstance(found, tuple) else (found,)
    assert first.chunks == x.chunks
    found = computed(found)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, strict=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BY_NAME)
def test_any_norm_as_in_memory(name, shape):
    spec, x = BY_NAME[name], np.zeros(shape)
    lazy = da.from_array(x, chunks=halves(shape))
    for options in calls(spec, shape):
        try:
            expected = spec.forward(x, **options)
        except ValueError as error:  # a norm that needs elements
            with pytest.raises(ValueError) as found:
                computed(spec.forward(lazy, **options))
            assert str(found.value) == str(error)
            continue
        check(spec.forward(lazy, **options), expected, lazy)
        taken = inspect.signature(spec.backward).parameters
        own = {key: value for key, value in options.items() if key in taken}
        saved = expected[1 : 1 + len(spec.saved)]
        found = spec.backward(lazy, lazy, *saved, **own)
        check(found, spec.backward(x, x, *saved, **own), lazy)


def test_gradients_of_gains_that_broadcast():
    x, gamma = np.zeros((2, 4, 0)), np.ones((2, 4, 1))
    _, *saved = numnorm.group_norm_forward(x, gamma, groups=2)
    lazy = da.from_array(x, chunks=(1, 2, 0))
    expected = numnorm.group_norm_backward(x, x, *saved, gamma, groups=2)
    check(numnorm.group_norm_backward(lazy, lazy, *saved, gamma, groups=2), expected, lazy)


def test_groups_without_channels():
    found = numnorm.group_norm_forward(da.zeros((2, 0), chunks=(1, 0)), groups=2)
    assert found.y.shape == (2, 0)
    np.testing.assert_array_equal(computed(found.mean), np.full((2, 2), np.nan))


def test_moments_of_no_label():
    x = da.zeros((0, 4), chunks=(0, 2))
    nothing = numnorm.batch_moments(x, labels=[])
    assert nothing.moments.mean.chunks == ((0,), (2, 2))
    some = numnorm.batch_moments(da.ones((2, 4), chunks=2), labels=["b", "a"], after=nothing)
    assert list(some.labels) == ["a", "b"]
    np.testing.assert_array_equal(some.moments.count.compute(), np.ones((2, 4)))
    assert numnorm.batch_moments(x, labels=[], after=some) is some
