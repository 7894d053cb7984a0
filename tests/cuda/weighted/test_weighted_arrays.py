"""Masks and weights of device arrays: libraries, shapes, outputs, errors and running statistics."""

import re

import numpy as np
import pytest
from row_arrays import draw

import numnorm

X = draw((6, 5), seed=1)
KEEP = np.random.default_rng(2).random(X.shape) < 0.6
KEEP[:, 2] = False
WEIGHTS = np.random.default_rng(3).random(X.shape)
NORMS = {
    "layer_norm": {},
    "rms_norm": {"axis": 0},
    "batch_norm": {},
    "group_norm": {"groups": 5},
}


def host(values):
    return tuple(None if value is None else value.host for value in values)


def assert_close(found, expected, tolerance=1e-6):
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        largest = np.nanmax(np.abs(theirs), initial=1.0)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * largest)


def on_host(name, *arrays, **options):
    with np.errstate(all="ignore"):
        return getattr(numnorm, name)(*arrays, **options)


# The CPU is held to the definition by the same cases as the device.
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", NORMS)
def test_every_library(name, where, library, order):
    options, x = NORMS[name], X.copy()
    x[0, 0] = np.nan
    counting = {"where": KEEP, "weights": WEIGHTS, "nan_policy": "omit"}
    given = dict(counting)
    if where == "device":
        given |= {key: library.take(counting[key].copy()) for key in ("where", "weights")}
    expected = on_host(f"{name}_forward", x, **options, **counting, fill=3)
    found = getattr(numnorm, f"{name}_forward")(library.take(x), **options, **given, fill=3)
    assert type(found[0]) is type(library.take(x))
    assert_close(host(found), expected)
    dy = draw(X.shape, seed=4)
    wanted = on_host(f"{name}_backward", dy, x, *expected[1:], **options, **counting)
    saved = (library.take(np.array(one)) for one in expected[1:])
    arrays = library.take(dy), library.take(x), *saved
    got = getattr(numnorm, f"{name}_backward")(*arrays, **options, **given)
    assert_close(host(got), wanted, 1e-5)


@pytest.mark.parametrize("shape", [(6, 5), (5,), (6, 1), (1, 5), ()])
@pytest.mark.parametrize("name, options", [
    ("layer_norm", {}), ("layer_norm", {"axis": 0}), ("group_norm", {"groups": 1}),
    ("batch_norm", {}),
])  # fmt: skip
def test_masks_and_weights_broadcast(name, options, shape, library):
    keep = np.array(np.random.default_rng(5).random(shape) < 0.7)
    weights = np.array(np.random.default_rng(6).random(shape) + 0.1)
    if name == "batch_norm" and shape == (5,):
        weights = weights[None]  # which stand for the channels, not for the samples
    for given in ({"where": keep}, {"weights": weights}):
        ((keyword, value),) = given.items()
        expected = on_host(name, X, **options, **given)
        assert_close(
            host([getattr(numnorm, name)(library.take(X), **options, **given)]), [expected]
        )
        there = {keyword: library.take(value)}
        assert_close(
            host([getattr(numnorm, name)(library.take(X), **options, **there)]), [expected]
        )


def test_weights_of_samples_and_of_other_types(imported):
    take = imported("cupy").take
    for dtype in ("float16", "float32", "float64"):
        weights = WEIGHTS[:, 0].astype(dtype)
        expected = numnorm.batch_norm(X, weights=weights)
        for given in (weights, take(weights)):
            assert_close([numnorm.batch_norm(take(X), weights=given).host], [expected])
    expected = numnorm.layer_norm(X, weights=[1, 2, 3, 0, 1])
    assert_close([numnorm.layer_norm(take(X), weights=[1, 2, 3, 0, 1]).host], [expected])


def test_jax_without_float64(imported, monkeypatch):
    jax = imported("jax")
    monkeypatch.setattr(jax.config, "jax_enable_x64", False)
    for name in ("layer_norm", "batch_norm"):
        y, mean, rstd = getattr(numnorm, f"{name}_forward")(
            jax.take(X), where=KEEP, weights=WEIGHTS
        )
        expected = on_host(f"{name}_forward", X, where=KEEP, weights=WEIGHTS)
        assert mean.host.dtype == rstd.host.dtype == np.float32
        np.testing.assert_allclose(y.host, expected.y, atol=1e-5)
        arrays = map(jax.take, (X, X, mean.host, rstd.host))
        got = getattr(numnorm, f"{name}_backward")(*arrays, where=KEEP, weights=WEIGHTS)
        wanted = on_host(f"{name}_backward", X, X, *expected[1:], where=KEEP, weights=WEIGHTS)
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine.host, theirs, atol=1e-4)


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
def test_outputs(name, imported):
    take, dy = imported("cupy").take, draw(X.shape, seed=4)
    y, *saved = on_host(f"{name}_forward", X, where=KEEP)
    x, keep = take(X.copy()), take(KEEP)
    assert getattr(numnorm, name)(x, where=keep, out=x) is x
    assert_close([x.host], [y])
    wanted = on_host(f"{name}_backward", dy, X, *saved, where=KEEP)
    there = [take(np.array(one)) for one in saved]
    for place in (0, 1):
        arrays = take(dy.copy()), take(X.copy())
        into = arrays[place]
        found = getattr(numnorm, f"{name}_backward")(*arrays, *there, where=keep, out=into)
        assert found.dx is into
        assert_close(host(found), wanted, 1e-5)


@pytest.mark.parametrize("gain", [None, (6, 1)], ids=["", "gain of rows"])
@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("step", ["a row of weights", "weights begin later", "a mask"])
def test_results_over_weights_and_masks(name, step, gain, imported, order):
    """Threads that write results early must not change what others have yet to read."""
    take = imported("cupy").take
    x, dy = draw((6, 32), seed=1), draw((6, 32), seed=2)
    memory = np.ones(2 * x.size, np.float32)
    memory[: 2 * x.size] = np.random.default_rng(3).random(memory.size) + 0.5
    out = memory[: x.size].reshape(x.shape)
    given = {
        "a row of weights": {"weights": out[:1]},
        "weights begin later": {"weights": memory[8 : 8 + x.size].reshape(x.shape)},
        "a mask": {"where": memory.view(bool)[: x.size].reshape(x.shape)},
    }[step]
    if step == "a mask":
        memory.view(np.uint8)[:] = np.random.default_rng(4).random(memory.nbytes) < 0.7
    ((keyword, values),), held = given.items(), memory.copy()
    gamma = {} if gain is None else {"gamma": draw(gain, seed=5)}
    here, there = {keyword: values.copy(), **gamma}, {keyword: take(values)}
    there |= {each: take(array) for each, array in gamma.items()}
    expected = on_host(f"{name}_forward", x, **here)
    wanted = on_host(f"{name}_backward", dy, x, *expected[1:], **here)
    y = getattr(numnorm, name)(take(x), **there, out=take(out)).host.copy()
    memory[:] = held
    saved = [take(np.array(one)) for one in expected[1:]]
    found = getattr(numnorm, f"{name}_backward")(take(dy), take(x), *saved, **there, out=take(out))
    assert_close([y, found.dx.host], [expected.y, wanted.dx], 1e-5)


def test_a_gradient_of_another_dtype(imported):
    take = imported("cupy").take
    for name in ("layer_norm", "batch_norm"):
        x, dy = draw(X.shape, "float16", 1), draw(X.shape, "float64", 4)
        saved = on_host(f"{name}_forward", x, where=KEEP)[1:]
        wanted = on_host(f"{name}_backward", dy, x, *saved, where=KEEP)
        arrays = (take(np.array(one)) for one in (dy, x, *saved))
        found = getattr(numnorm, f"{name}_backward")(*arrays, where=take(KEEP))
        assert_close(host(found), wanted, 2e-3)


def test_running_statistics(library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    for keyword in ({"where": KEEP}, {"weights": WEIGHTS}, {"nan_policy": "omit"}):
        mean, var = draw(5, "float32", 6), np.abs(draw(5, "float64", 7))
        there = library.take(mean.copy()), library.take(var.copy())
        on_host("batch_norm", X, running_mean=mean, running_var=var, **keyword)
        numnorm.batch_norm(library.take(X), running_mean=there[0], running_var=there[1], **keyword)
        assert_close(host(there), (mean, var))
        y = on_host("batch_norm", X, running_mean=mean, running_var=var, training=False, **keyword)
        options = {"running_mean": there[0], "running_var": there[1], "training": False}
        assert_close([numnorm.batch_norm(library.take(X), **options, **keyword).host], [y])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
def test_nothing(shape, imported):
    take, x = imported("cupy").take, np.empty(shape, np.float32)
    for name in ("layer_norm", "batch_norm"):
        found = getattr(numnorm, f"{name}_forward")(take(x), nan_policy="omit")
        expected = on_host(f"{name}_forward", x, nan_policy="omit")
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine.host, theirs)


@pytest.mark.parametrize("wrong", [-1.0, np.inf, np.nan])
def test_what_is_no_weight_makes_its_statistics_nan(wrong, imported):
    take, weights = imported("cupy").take, np.ones(X.shape)
    weights[1, 3], keep = wrong, np.ones(X.shape, bool)
    with pytest.raises(ValueError, match="weights must be finite"):
        numnorm.layer_norm(take(X), weights=weights)
    y = numnorm.layer_norm(take(X), weights=take(weights)).host
    assert np.isnan(y[1]).all() and np.isfinite(np.delete(y, 1, 0)).all()
    y = numnorm.batch_norm(take(X), weights=take(weights)).host
    assert np.isnan(y[:, 3]).all() and np.isfinite(np.delete(y, 3, 1)).all()
    keep[1, 3] = False
    y = numnorm.layer_norm(take(X), weights=take(weights), where=keep).host
    assert np.isfinite(y).all()


def test_errors(imported):
    take = imported("cupy").take
    x, torch = take(X), imported("torch")
    for error, message, options in [
        (NotImplementedError, "nan_policy='raise' is not supported on a device: check x first",
         {"nan_policy": "raise"}),
        (TypeError, "where must have dtype bool on a device, got int64: use mask != 0",
         {"where": take(KEEP.astype(np.int64))}),
        (TypeError, "where must lie on the host, or be a cupy.ndarray on device 0, as x is, got ",
         {"where": torch.take(KEEP)}),
        (TypeError, "where must have dtype bool", {"where": [0.5] * 5}),
        (ValueError, "where must broadcast against x of shape (6, 5), got (6,)",
         {"where": take(KEEP[:, 0].copy())}),
        (ValueError, "weights must broadcast against x of shape (6, 5), got (6,)",
         {"weights": take(WEIGHTS[:, 0].copy())}),
        (TypeError, "weights must lie on the host", {"weights": torch.take(WEIGHTS)}),
    ]:  # fmt: skip
        with pytest.raises(error, match="^" + re.escape(message)):
            numnorm.layer_norm(x, **options)
    with pytest.raises(TypeError, match=r"^where must lie on the host"):
        numnorm.layer_norm(X, where=take(KEEP))
