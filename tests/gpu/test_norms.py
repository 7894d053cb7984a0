"""The public functions on real device arrays: those of Numba, and of what else is installed."""

import numpy as np
import pytest
import reference
from device_arrays import check, draw, dtype_of

import numnorm

pytestmark = pytest.mark.gpu

# name: the shape of x, that of the parameters, how many there are, options, those of backward
NORMS = {
    "layer_norm": ((257, 1000), (1000,), 2, {}, {}),
    "layer_norm wide": ((70, 40000), (40000,), 2, {}, {}),
    "layer_norm wide, odd": ((5, 20011), (20011,), 2, {}, {}),
    "layer_norm narrow": ((5001, 17), (17,), 2, {}, {}),
    "rms_norm": ((300, 512), (512,), 1, {"eps": 1e-3}, {}),
    "ada_norm": ((65, 768), (), 0, {"ddof": 1, "eps_in": "std"}, {"ddof": 1, "eps_in": "std"}),
    "ada_norm wide": ((9, 12345), (), 0, {}, {}),
    "group_norm": ((6, 12, 31), (12,), 2, {"groups": 3}, {"groups": 3}),
    "group_norm wide": ((6, 120, 31, 31), (120,), 2, {"groups": 3}, {"groups": 3}),
    "instance_norm": ((5, 3, 28, 28), (3,), 2, {}, {}),
    "instance_norm wide": ((5, 3, 112, 112), (3,), 2, {}, {}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("case", NORMS)
def test_forward_and_backward(library, case, dtype):
    if dtype not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    shape, of_parameters, count, options, of_backward = NORMS[case]
    norm, kind = case.partition(" ")[0], dtype_of(dtype)
    x, dy = draw(shape, kind), (draw(shape, kind, 9) / 8).astype(kind)  # no sum leaves float16
    parameters = [draw(of_parameters, kind, seed) for seed in range(1, count + 1)]
    device = [library.take(array) for array in (x, *parameters)]
    found = getattr(numnorm, f"{norm}_forward")(*device, **options)
    expected = getattr(reference, norm)(x, *parameters, **options)
    assert type(found[0]) is type(device[0])
    check(library.give(found[0]), expected[0], 8)
    gamma = {"gamma": parameters[0]} if count else {}
    backward = getattr(numnorm, f"{norm}_backward")
    got = backward(
        library.take(dy), device[0], *found[1:], *device[1 : 1 + len(gamma)], **of_backward
    )
    wanted = getattr(reference, f"{norm}_backward")(
        dy, x, **gamma, **(of_backward | ({"eps": 1e-3} if norm == "rms_norm" else {}))
    )
    dx, *sums = [got] if norm == "ada_norm" else got
    exact_dx, *exact_sums = [wanted] if norm == "ada_norm" else wanted
    check(library.give(dx), exact_dx, 64)
    terms = np.abs(reference.exact(dy) * getattr(reference, norm)(x, **options)[0])
    over = tuple(a for a in range(x.ndim) if a != 1) if len(shape) > 2 else 0
    for mine, exact in zip(sums, exact_sums, strict=True):
        check(library.give(mine), exact, 8, terms.sum(over))


@pytest.mark.parametrize("dtype, wide", [("float16", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("case", ["layer_norm", "rms_norm", "group_norm", "instance_norm wide"])
def test_gradient_of_a_wider_dtype(library, case, dtype, wide):
    if wide not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    shape, of_parameters, _, options, of_backward = NORMS[case]
    norm = case.partition(" ")[0]
    x, dy, gamma = draw(shape, dtype), draw(shape, wide, 9), draw(of_parameters, wide, 1)
    of_x, of_gamma = library.take(x), library.take(gamma)
    saved = getattr(numnorm, f"{norm}_forward")(of_x, of_gamma, **options)[1:]
    backward, exactly = (getattr(of, f"{norm}_backward") for of in (numnorm, reference))
    dx, *sums = map(library.give, backward(library.take(dy), of_x, *saved, of_gamma, **of_backward))
    exact_dx, *exact_sums = exactly(dy, x, gamma=gamma, **options)
    assert dx.dtype == dtype and all(array.dtype == wide for array in sums)
    check(dx, exact_dx, 64)
    terms = np.abs(reference.exact(dy) * getattr(reference, norm)(x, **options)[0])
    over = tuple(a for a in range(x.ndim) if a != 1) if len(shape) > 2 else 0
    for mine, exact in zip(sums, exact_sums, strict=True):
        # The forward pass computed the statistics in float32.
        check(mine.astype(np.float32), exact, 8, terms.sum(over))


def test_twice_the_same_bytes(library):
    x, dy = draw((4000, 640), np.float32), draw((4000, 640), np.float32, 1)
    runs = []
    for _ in range(2):
        on_device = library.take(x)
        y, mean, rstd = numnorm.layer_norm_forward(on_device)
        gradients = numnorm.layer_norm_backward(library.take(dy), on_device, mean, rstd)
        runs.append([library.give(array).tobytes() for array in (y, *gradients)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("shape", [(300, 333), (7, 5000)])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "batch_norm"])
def test_missing_values_and_weights(library, norm, shape):
    rng = np.random.default_rng(3)
    x, dy = draw(shape, np.float32), draw(shape, np.float32, 1)
    x[rng.random(shape) < 0.1] = np.nan
    options = {"where": rng.random(shape) < 0.8, "weights": rng.random(shape)}
    options["nan_policy"] = "omit"
    expected = getattr(numnorm, f"{norm}_forward")(x, **options)  # which has its own definition
    found = getattr(numnorm, f"{norm}_forward")(library.take(x), **options)
    wanted = getattr(numnorm, f"{norm}_backward")(dy, x, *expected[1:], **options)
    arrays = library.take(dy), library.take(x), *found[1:]
    got = getattr(numnorm, f"{norm}_backward")(*arrays, **options)
    for mine, theirs in zip((*found, *got), (*expected, *wanted), strict=True):
        np.testing.assert_allclose(library.give(mine), theirs, rtol=1e-4, atol=1e-4)


def test_labels(library, request):
    if request.node.callspec.params["library"] == "numba":
        pytest.importorskip("cupy")
    x, dy = draw((300, 40), np.float32), draw((300, 40), np.float32, 1)
    labels = np.random.default_rng(4).integers(0, 5, 300)
    expected = numnorm.batch_norm_forward(x, labels=labels)
    found = numnorm.batch_norm_forward(library.take(x), labels=labels)
    wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], labels=labels)
    arrays = library.take(dy), library.take(x), *found[1:]
    got = numnorm.batch_norm_backward(*arrays, labels=labels)
    for mine, theirs in zip((*found, *got), (*expected, *wanted), strict=True):
        np.testing.assert_allclose(library.give(mine), theirs, rtol=1e-4, atol=1e-4)


def test_in_place(library, request):
    if request.node.callspec.params["library"] == "jax":
        pytest.skip("JAX has no arrays to write")
    x = draw((300, 333), np.float32)
    device = library.take(x)
    assert numnorm.layer_norm(device, out=device) is device
    check(library.give(device), reference.layer_norm(x)[0], 8)


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing(library, norm, shape):
    x, dy = (library.take(np.empty(shape, np.float32)) for _ in range(2))
    y, mean, rstd = getattr(numnorm, f"{norm}_forward")(x)
    dx, dgamma, dbeta = getattr(numnorm, f"{norm}_backward")(dy, x, mean, rstd)
    assert library.give(y).shape == library.give(dx).shape == shape
    for gradient in (dgamma, dbeta):
        np.testing.assert_array_equal(library.give(gradient), np.zeros(shape[1:], np.float32))


@pytest.mark.parametrize("shape, axis", [((2, 3000, 70), 1), ((65, 3001), -1), ((5000,), 0)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name, number, options", [
    ("moving_norm", 9, {"center": True}), ("moving_norm", 300, {"min_window": 40}),
    ("exponential_norm", 0.01, {"initial": 20}),
])  # fmt: skip
def test_moving_norms_beside_the_host(library, name, number, options, missing, dtype, shape, axis):
    if dtype not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    x, dy = draw(shape, dtype), draw(shape, dtype, 9)
    options = {**options, "axis": axis}
    if missing:
        x[np.random.default_rng(3).random(shape) < 0.3] = np.nan
        options["nan_policy"] = "omit"
    of_x, results = library.take(x), []
    for given, of_dy, give in ((x, dy, np.asarray), (of_x, library.take(dy), library.give)):
        found = getattr(numnorm, f"{name}_forward")(given, number, **options)
        backward = getattr(numnorm, f"{name}_backward")
        dx = backward(of_dy, given, *found[1:], number, **options)
        results.append([give(array).astype(float) for array in (*found, dx)])
    # Some roundings of the dtype, and of JAX's statistics in float32.
    relative = 8 * max(float(np.finfo(dtype).eps), float(np.finfo(np.float32).eps))
    for host, device in zip(*results, strict=True):
        np.testing.assert_allclose(
            device, host, rtol=relative, atol=relative * np.nanmax(abs(host))
        )


@pytest.mark.parametrize("of_gamma", [(6, 1, 1), (6, 300, 1), (1, 1, 70), (6, 300, 70), (1, 1, 1)])
@pytest.mark.parametrize("keywords", [{}, {"nan_policy": "omit"}])
@pytest.mark.parametrize("norm", ["layer_norm", "instance_norm", "batch_norm"])
def test_gains_that_broadcast_beside_the_host(library, norm, keywords, of_gamma):
    x, dy = draw((6, 300, 70), "float32"), draw((6, 300, 70), "float32", 9)
    gamma = draw(of_gamma, "float32", 1)
    if keywords:
        x[np.random.default_rng(3).random(x.shape) < 0.1] = np.nan
    results = []
    for take, give in ((np.asarray, np.asarray), (library.take, library.give)):
        given = take(x), take(gamma)
        found = getattr(numnorm, f"{norm}_forward")(*given, **keywords)
        backward = getattr(numnorm, f"{norm}_backward")
        got = backward(take(dy), given[0], *found[1:], given[1], **keywords)
        results.append([give(array) for array in (*found, *got)])
    for host, device in zip(*results, strict=True):
        largest = np.nanmax(abs(host))
        np.testing.assert_allclose(device, host, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("name, number", [("moving_norm", 300), ("exponential_norm", 0.01)])
@pytest.mark.parametrize("keywords", [{}, {"nan_policy": "omit"}])
def test_chunks_of_a_stream(library, name, number, keywords):
    x = draw((3000, 70), "float32")
    if keywords:
        x[np.random.default_rng(3).random(x.shape) < 0.3] = np.nan
    whole = library.give(getattr(numnorm, name)(library.take(x), number, axis=0, **keywords))
    state, parts = None, []
    for chunk in np.split(x, [1, 40, 1000]):
        given = library.take(chunk.copy()), number, state
        y, state = getattr(numnorm, f"{name}_step")(*given, axis=0, **keywords)
        parts.append(library.give(y))
    # JAX without float64 keeps an exponential norm's statistics in float32 between chunks.
    rounded = name == "exponential_norm" and library.give(state.mean).dtype == np.float32
    tolerance = 1e-5 if rounded else 0.0
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=tolerance, atol=tolerance)
