"""The steps of streams on a device: the bytes of one call, missing steps, states and errors."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import numnorm

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
NORMS = {"moving_norm": 20, "exponential_norm": 0.1}
# Where the chunks of 60 steps begin. Some of them are empty.
BOUNDS = [0, 3, 4, 17, 17, 40, 58]


def draw(*shape, seed=0, offset=0.0):
    return np.random.default_rng(seed).normal(size=shape) + offset


def mask(*shape):
    return np.random.default_rng(9).random(shape) < 0.6


def streamed(library, name, x, number, axis, **options):
    """Return the results for all chunks, and the last state."""
    state, parts = None, []
    step = getattr(numnorm, f"{name}_step")
    of_chunks = {k: v for k, v in options.items() if isinstance(v, np.ndarray)}
    for start, stop in itertools.pairwise([*BOUNDS, x.shape[axis]]):
        chunk = (slice(None),) * axis + (slice(start, stop),)
        own = options | {k: library.take(v[chunk].copy()) for k, v in of_chunks.items()}
        there = library.take(x[chunk].copy())
        y, state = step(there, number, state, axis=axis, **own)
        assert all(type(v) in (type(there), int, type(None)) for v in (y, *state))
        parts.append(y.host)
    return np.concatenate(parts, axis), state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 7, 20, 37])
def test_windows_have_the_bytes_of_one_call(imported, window, dtype):
    library, x = imported("torch"), draw(60, 2, offset=1e3).astype(dtype)
    expected = numnorm.moving_norm(library.take(x), window, axis=0).host
    found, state = streamed(library, "moving_norm", x, window, 0)
    np.testing.assert_array_equal(found, expected)
    assert (state.steps, state.values.host.dtype, state.kept) == (60, dtype, None)
    np.testing.assert_array_equal(state.values.host, x[60 - window + 1 :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adjust", [True, False])
def test_decay_has_the_bytes_of_one_call(imported, adjust, dtype):
    library, x = imported("torch"), draw(60, 2, offset=1e3).astype(dtype)
    options = {"adjust": adjust}
    expected = numnorm.exponential_norm(library.take(x), 0.1, axis=0, **options).host
    found, state = streamed(library, "exponential_norm", x, 0.1, 0, **options)
    np.testing.assert_array_equal(found, expected)
    weight, *statistics, _ = numnorm.exponential_norm_step(x, 0.1, axis=0, **options)[1]
    np.testing.assert_allclose(state.weight.host, [weight] * 2, rtol=1e-14)
    assert state.time is None
    for got, wanted in zip(state[1:-1], statistics, strict=True):
        assert got.host.dtype == np.float64
        np.testing.assert_allclose(got.host, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape, axis", [((60,), 0), ((2, 60, 3), 1), ((2, 60), 1)])
@pytest.mark.parametrize("name", NORMS)
def test_every_library(library, name, shape, axis):
    x = draw(*shape)
    found, state = streamed(library, name, x, NORMS[name], axis)
    np.testing.assert_allclose(
        found, getattr(numnorm, name)(x, NORMS[name], axis=axis), rtol=1e-11, atol=1e-12
    )
    expected = getattr(numnorm, f"{name}_step")(x, NORMS[name], axis=axis)[1]
    for field in ("values",) if name == "moving_norm" else ("mean", "mean_lo", "variance"):
        assert getattr(state, field).shape == getattr(expected, field).shape


@pytest.mark.parametrize("name", NORMS)
def test_any_order_of_threads(imported, name, order):
    library, x, keep = imported("torch"), draw(60, 2), mask(60, 2)
    expected = getattr(numnorm, name)(x, NORMS[name], axis=0, where=keep)
    found, _ = streamed(library, name, x, NORMS[name], 0, where=keep)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


# Missing steps


@pytest.mark.parametrize("name", NORMS)
def test_missing_steps_have_the_bytes_of_one_call(library, name):
    x, keep = draw(60, 2), mask(60, 2)
    x[draw(60, 2, seed=3) > 1] = np.nan
    keep[:5, 0] = False
    options = {"nan_policy": "omit", "fill": -7.0} if name == "moving_norm" else {
        "nan_policy": "omit"
    }  # fmt: skip
    given = library.take(x), NORMS[name]
    expected = getattr(numnorm, name)(*given, axis=0, where=library.take(keep), **options).host
    found, state = streamed(library, name, x, NORMS[name], 0, where=keep, **options)
    np.testing.assert_array_equal(found, expected)
    on_host = getattr(numnorm, f"{name}_step")(x, NORMS[name], axis=0, where=keep, **options)[1]
    if name == "moving_norm":
        np.testing.assert_array_equal(state.kept.host, on_host.kept)
    else:
        np.testing.assert_allclose(state.weight.host, on_host.weight, rtol=1e-13)


@pytest.mark.parametrize("name", NORMS)
def test_chunks_of_which_some_have_no_mask(imported, name):
    library, x, keep = imported("torch"), draw(60, 2), np.ones((60, 2), bool)
    keep[20:40] = mask(20, 2)
    keep[:20, 1] = False
    x[10:15, 1] = np.nan
    given = [slice(20), slice(20, 40), slice(40, 60)]
    for masked in ((0, 1), (0, 1, 2)):
        states, results = [None, None], [[], []]
        for number, part in enumerate(given):
            for place, like in enumerate((np.array, library.take)):
                own = {"where": like(keep[part].copy())} if number in masked else {}
                y, states[place] = getattr(numnorm, f"{name}_step")(
                    like(x[part].copy()), NORMS[name], states[place], axis=0, **own
                )
                results[place].append(getattr(y, "host", y))
        for wanted, got in zip(*results, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-12)


def test_values_that_were_left_out_stay_so(imported):
    library, x = imported("torch"), draw(40)
    x[15:18] = np.nan
    state = numnorm.moving_norm_step(library.take(x[:20].copy()), 10, nan_policy="omit")[1]
    y = numnorm.moving_norm_step(library.take(x[20:].copy()), 10, state)[0]
    expected = numnorm.moving_norm(x, 10, nan_policy="omit")[20:]
    np.testing.assert_allclose(y.host, expected, rtol=1e-11, atol=1e-12)


def test_a_first_chunk_without_values(imported):
    library, x = imported("torch"), draw(30)
    nothing = library.take(np.zeros(10, bool))
    first, state = numnorm.exponential_norm_step(library.take(x[:10].copy()), 0.1, where=nothing)
    np.testing.assert_array_equal(first.host, 0)
    y, state = numnorm.exponential_norm_step(library.take(x[10:].copy()), 0.1, state)
    np.testing.assert_allclose(
        y.host, numnorm.exponential_norm(x[10:], 0.1), rtol=1e-11, atol=1e-12
    )


# Arrays and errors


@pytest.mark.parametrize("name", NORMS)
def test_out_may_be_the_chunk(imported, name):
    library, x = imported("torch"), draw(40, 2)
    step = getattr(numnorm, f"{name}_step")
    state = step(library.take(x[:20].copy()), NORMS[name], axis=0)[1]
    out = library.take(x[20:].copy())
    assert step(out, NORMS[name], state, axis=0, out=out)[0] is out
    expected = getattr(numnorm, name)(x, NORMS[name], axis=0)[20:]
    np.testing.assert_allclose(out.host, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,)])
@pytest.mark.parametrize("name", NORMS)
def test_nothing(imported, name, shape):
    library = imported("torch")
    for keywords in ({}, {"nan_policy": "omit"}):
        given = library.take(np.empty(shape, np.float32)), NORMS[name]
        step = getattr(numnorm, f"{name}_step")
        y, state = step(*given, axis=0, **keywords)
        again, state = step(*given, state, axis=0, **keywords)
        assert y.shape == again.shape == shape
        if name == "exponential_norm":
            np.testing.assert_array_equal(state.weight.host, 0)


def test_errors(imported):
    library = imported("torch")
    x, narrow = library.take(np.ones((5, 2))), library.take(np.ones((5, 2), np.float32))
    for name, number in NORMS.items():
        state = getattr(numnorm, f"{name}_step")(x, number, axis=0)[1]
        step = getattr(numnorm, f"{name}_step")
        with pytest.raises(ValueError, match=r"^state(.mean| |.weight)"):
            step(library.take(np.ones((5, 3))), number, state, axis=0)
        with pytest.raises(ValueError, match=r"^out must have shape"):
            step(x, number, state, axis=0, out=library.take(np.ones((5, 3))))
        on_host = getattr(numnorm, f"{name}_step")(np.ones((5, 2)), number, axis=0)[1]
        with pytest.raises(TypeError, match=r"must be a torch.Tensor on device 0"):
            step(x, number, on_host, axis=0)
    state = numnorm.moving_norm_step(x, 3, axis=0, where=library.take(np.ones((5, 2), bool)))[1]
    with pytest.raises(ValueError, match=r"^state must be of chunks like x, .* dtype float32"):
        numnorm.moving_norm_step(narrow, 3, state, axis=0)
    with pytest.raises(ValueError, match=r"^state must be of a window of 9 steps"):
        numnorm.moving_norm_step(x, 9, state, axis=0)
    kept = library.take(np.ones((1, 2), bool))
    with pytest.raises(ValueError, match=r"^state.kept must be a mask of \(2, 2\) values"):
        numnorm.moving_norm_step(x, 3, state._replace(kept=kept), axis=0)
    with pytest.raises(TypeError, match=r"^state.kept must have dtype bool"):
        numnorm.moving_norm_step(x, 3, state._replace(kept=x), axis=0)


@pytest.mark.parametrize("field", ["weight", "mean", "mean_lo", "variance"])
def test_a_result_over_the_state(field, imported, order):
    """The thread of one channel must not write a result where another has yet to read its state."""
    take, x = imported("cupy").take, draw(6, 64)
    _, state = numnorm.exponential_norm_step(take(x), 0.2, axis=0)
    expected, _ = numnorm.exponential_norm_step(take(x), 0.2, state, axis=0)
    memory, values = np.zeros(x.shape), getattr(state, field).host
    held = memory.reshape(-1)[197 : 197 + 64]
    held[:] = values
    numnorm.exponential_norm_step(
        take(x), 0.2, state._replace(**{field: take(held)}), axis=0, out=take(memory)
    )
    np.testing.assert_array_equal(memory, expected.host)
