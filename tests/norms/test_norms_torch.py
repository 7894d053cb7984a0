"""Side by side with PyTorch: outputs, saved statistics, gradients and running statistics."""

import ml_dtypes
import numpy as np
import pytest

import numnorm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
pytestmark = pytest.mark.torch

PAIRS = {
    np.float16: torch.float16,
    ml_dtypes.bfloat16: torch.bfloat16,
    np.float32: torch.float32,
    np.float64: torch.float64,
}
FLOATS = [np.float32, np.float64]
DTYPES = list(PAIRS)

# Each side is off by about eight roundings in a normalized value, by sixteen in a gradient; the
# sums over rows are longest for the gradients of gamma. Relative to the largest value.
FORWARD = {np.float32: 16 * 2.0**-24, np.float64: 16 * 2.0**-53}
BACKWARD = {np.float32: 32 * 2.0**-24, np.float64: 32 * 2.0**-53}

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
with_or_without = pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])


def draw(shape, seed, mean=0.0, scale=1.0):
    return mean + scale * np.random.default_rng(seed).normal(size=shape)


def draw_x(shape, seed=0):
    return draw(shape, seed, 0.5, 1.5)


def as_tensor(array, dtype):
    """A tensor that requires a gradient; NumPy and PyTorch share no bfloat16, so by float64."""
    if array is None:
        return None
    tensor = torch.from_numpy(np.array(array, np.float64)).to(dtype)
    return tensor.requires_grad_()


def as_float64(values):
    if isinstance(values, torch.Tensor):
        return values.detach().to(torch.float64).numpy()
    return np.asarray(values).astype(np.float64)


def working(dtype):
    """The precision that a dtype is computed in."""
    return np.float64 if dtype is np.float64 else np.float32


def assert_close(mine, theirs, relative, rounding=0.0):
    """Errors up to `relative` of the largest value and `rounding` of each."""
    mine, theirs = as_float64(mine), as_float64(theirs)
    assert mine.shape == theirs.shape
    bound = relative * np.abs(theirs).max() + rounding * np.abs(theirs)
    excess = np.abs(mine - theirs) - bound
    assert excess.max() <= 0, f"{np.abs(mine - theirs).max():.3g} apart, {excess.max():.3g} too far"


def gradients_of(function, arrays, dy, dtype):
    """PyTorch's output and gradients for arrays whose numbers are of some dtype.

    The halves are computed in float32, because what PyTorch rounds on the way differs from one
    of its functions to the next: it saves the statistics of a bfloat16 layer norm in bfloat16.
    """
    kind = PAIRS[working(dtype)]
    tensors = [as_tensor(array, kind) for array in arrays]
    y = function(*tensors)
    y.backward(as_tensor(dy, kind).detach())
    return y, [tensor.grad for tensor in tensors if tensor is not None]


def compare(dtype, arrays, dy, theirs, forward, backward):
    """Hold numnorm's `forward(*arrays)` and `backward(dy, *arrays, saved)` against `theirs`."""
    arrays = [None if array is None else array.astype(dtype) for array in arrays]
    dy = dy.astype(dtype)
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2 if dtype not in FLOATS else 0.0
    y, *saved = forward(*arrays)
    assert y.dtype == dtype
    expected, gradients = gradients_of(theirs, arrays, dy, dtype)
    assert_close(y, expected, FORWARD[working(dtype)], half_unit)
    if dtype not in FLOATS:
        # In halves PyTorch may round mean, rstd and their product with x, too: four roundings.
        direct = theirs(*(as_tensor(array, PAIRS[dtype]) for array in arrays))
        assert_close(y, direct, 4 * half_unit, half_unit)
    mine = backward(dy, *arrays[:2], saved)
    mine = mine if isinstance(mine, tuple) else (mine,)
    for ours, others in zip(mine[: len(gradients)], gradients, strict=True):
        assert_close(ours, others, BACKWARD[working(dtype)], half_unit)


# Layer norm

LAYERS = [
    pytest.param((5, 33), 1, id="rows"),
    pytest.param((4, 3, 7), 2, id="two-axes"),
    pytest.param((2, 3, 4, 5), 3, id="three-axes"),
    pytest.param((6, 2, 768), 1, id="words"),
    pytest.param((37,), 1, id="vector"),
]


def parameters(shape, affine):
    return [draw(shape, 2, 1.0, 0.5), draw(shape, 3)] if affine else [None, None]


@pytest.mark.parametrize("shape, count", LAYERS)
@with_or_without
@each_dtype
def test_layer_norm(shape, count, affine, dtype):
    over, axis = shape[-count:], tuple(range(-count, 0))
    arrays = [draw_x(shape), *parameters(over, affine)]
    compare(
        dtype,
        arrays,
        draw(shape, 1),
        lambda x, gamma, beta: F.layer_norm(x, over, gamma, beta, 1e-3),
        lambda x, gamma, beta: numnorm.layer_norm_forward(x, gamma, beta, axis=axis, eps=1e-3),
        lambda dy, x, gamma, saved: numnorm.layer_norm_backward(dy, x, *saved, gamma, axis=axis),
    )


@pytest.mark.parametrize("shape, count", LAYERS)
@each_float
def test_native_layer_norm(shape, count, dtype):
    over, axis = shape[-count:], tuple(range(-count, 0))
    x, dy = draw_x(shape).astype(dtype), draw(shape, 1).astype(dtype)
    gamma, beta = (array.astype(dtype) for array in parameters(over, True))
    tensors = [as_tensor(array, PAIRS[dtype]).detach() for array in (x, gamma, beta)]
    y, mean, rstd = torch.ops.aten.native_layer_norm(tensors[0], over, *tensors[1:], 1e-5)
    mine = numnorm.layer_norm_forward(x, gamma, beta, axis=axis)
    for ours, theirs in zip(mine, (y, mean, rstd), strict=True):
        assert_close(ours, theirs.reshape(ours.shape), FORWARD[dtype])
    expected = torch.ops.aten.native_layer_norm_backward(
        as_tensor(dy, PAIRS[dtype]).detach(), tensors[0], over, mean, rstd, *tensors[1:], [True] * 3
    )
    # PyTorch's own statistics serve numnorm's backward pass as well.
    theirs = [as_float64(array).reshape(mine.mean.shape) for array in (mean, rstd)]
    for statistics in (mine[1:], theirs):
        gradients = numnorm.layer_norm_backward(dy, x, *statistics, gamma, axis=axis)
        for ours, others in zip(gradients, expected, strict=True):
            assert_close(ours, others, BACKWARD[dtype])


# RMS norm


@pytest.mark.parametrize("shape, count", LAYERS)
@with_or_without
@each_dtype
def test_rms_norm(shape, count, affine, dtype):
    over, axis = shape[-count:], tuple(range(-count, 0))
    arrays = [draw_x(shape), parameters(over, affine)[0]]
    compare(
        dtype,
        arrays,
        draw(shape, 1),
        lambda x, gamma: F.rms_norm(x, over, gamma, 1e-3),
        lambda x, gamma: numnorm.rms_norm_forward(x, gamma, axis=axis, eps=1e-3),
        lambda dy, x, gamma, saved: numnorm.rms_norm_backward(dy, x, *saved, gamma, axis=axis),
    )


# Batch norm

CHANNELS = 5
BATCHES = [(16, CHANNELS), (4, CHANNELS, 6), (4, CHANNELS, 3, 3), (2, CHANNELS, 2, 3, 2)]
each_batch = pytest.mark.parametrize("shape", BATCHES, ids=["1d", "sequences", "images", "volumes"])


@each_batch
@with_or_without
@each_dtype
def test_batch_norm_in_training(shape, affine, dtype):
    arrays = [draw_x(shape), *parameters(CHANNELS, affine)]
    compare(
        dtype,
        arrays,
        draw(shape, 1),
        lambda x, gamma, beta: F.batch_norm(x, None, None, gamma, beta, True, 0.1, 1e-3),
        lambda x, gamma, beta: numnorm.batch_norm_forward(x, gamma, beta, eps=1e-3),
        lambda dy, x, gamma, saved: numnorm.batch_norm_backward(dy, x, *saved, gamma),
    )


@each_batch
@with_or_without
@each_dtype
def test_batch_norm_in_inference(shape, affine, dtype):
    arrays = [draw_x(shape), *parameters(CHANNELS, affine)]
    # Numbers of few digits, which are the same in every precision.
    running = np.linspace(-1, 1, CHANNELS), np.linspace(0.5, 2.5, CHANNELS)
    options = {"running_mean": running[0], "running_var": running[1], "training": False}

    def theirs(x, gamma, beta):
        statistics = (torch.from_numpy(array).to(x.dtype) for array in running)
        return F.batch_norm(x, *statistics, gamma, beta, False, 0.1, 1e-5)

    compare(
        dtype,
        arrays,
        draw(shape, 1),
        theirs,
        lambda x, gamma, beta: numnorm.batch_norm_forward(x, gamma, beta, **options),
        lambda dy, x, gamma, saved: numnorm.batch_norm_backward(
            dy, x, *saved, gamma, training=False
        ),
    )


@each_batch
@pytest.mark.parametrize("momentum", [0.1, 0.3, 0.0, 1.0, None])
@each_float
def test_running_statistics_of_many_batches(shape, momentum, dtype):
    """None is PyTorch's cumulative average."""
    layer = torch.nn.BatchNorm1d if len(shape) < 4 else torch.nn.BatchNorm2d
    layer = torch.nn.BatchNorm3d if len(shape) == 5 else layer
    module = layer(CHANNELS, momentum=momentum, dtype=PAIRS[dtype])
    mean, variance = np.zeros(CHANNELS, dtype), np.ones(CHANNELS, dtype)
    for number in range(6):
        x = draw_x(shape, seed=number).astype(dtype)
        options = {"momentum": momentum}
        if momentum is None:
            options = {"momentum": "cumulative", "batches": number}
        mine = numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
        assert_close(mine, module(as_tensor(x, PAIRS[dtype])), FORWARD[dtype])
        assert_close(mean, module.running_mean, FORWARD[dtype])
        assert_close(variance, module.running_var, FORWARD[dtype])
    module.eval()
    mine = numnorm.batch_norm(x, running_mean=mean, running_var=variance, training=False)
    assert_close(mine, module(as_tensor(x, PAIRS[dtype])), FORWARD[dtype])


def test_the_default_momentum_is_that_of_pytorch():
    x = draw_x((16, CHANNELS))
    module = torch.nn.BatchNorm1d(CHANNELS, dtype=torch.float64)
    module(as_tensor(x, torch.float64))
    mean, variance = np.zeros(CHANNELS), np.ones(CHANNELS)
    numnorm.batch_norm(x, running_mean=mean, running_var=variance)
    assert_close(mean, module.running_mean, FORWARD[np.float64])
    assert_close(variance, module.running_var, FORWARD[np.float64])


# Group and instance norm


# Not of two values, whose gradient is the rounding errors of a zero, nor of one, which PyTorch
# refuses.
GROUPS = [((4, 6), 1), ((4, 6), 2)]
GROUPS += [(shape, n) for shape in [(3, 6, 5), (3, 6, 4, 3), (2, 6, 2, 3, 2)] for n in (1, 2, 3, 6)]


@pytest.mark.parametrize("shape, groups", GROUPS)
@with_or_without
@each_dtype
def test_group_norm(shape, groups, affine, dtype):
    arrays = [draw_x(shape), *parameters(6, affine)]
    compare(
        dtype,
        arrays,
        draw(shape, 1),
        lambda x, gamma, beta: F.group_norm(x, groups, gamma, beta, 1e-3),
        lambda x, gamma, beta: numnorm.group_norm_forward(x, gamma, beta, groups=groups, eps=1e-3),
        lambda dy, x, gamma, saved: numnorm.group_norm_backward(
            dy, x, *saved, gamma, groups=groups
        ),
    )


@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 4, 5, 3), (2, 4, 2, 3, 2)])
@with_or_without
@each_dtype
def test_instance_norm(shape, affine, dtype):
    arrays = [draw_x(shape), *parameters(4, affine)]
    compare(
        dtype,
        arrays,
        draw(shape, 1),
        lambda x, gamma, beta: F.instance_norm(x, weight=gamma, bias=beta, eps=1e-3),
        lambda x, gamma, beta: numnorm.instance_norm_forward(x, gamma, beta, eps=1e-3),
        lambda dy, x, gamma, saved: numnorm.instance_norm_backward(dy, x, *saved, gamma),
    )


# Weight norm


@pytest.mark.parametrize("shape", [(4, 9), (4, 3, 5), (6, 3, 2, 2)])
@pytest.mark.parametrize("dim", [0, 1, None])
@each_dtype
def test_weight_norm(shape, dim, dtype):
    # PyTorch names the axis that is kept, and None keeps none.
    axis = tuple(number for number in range(len(shape)) if number != dim)
    kept = [1 if number in axis else size for number, size in enumerate(shape)]
    lengths = () if dim is None else (shape[dim],)

    def theirs(v, g):
        # With dim = -1, PyTorch takes the norm of everything.
        return torch._weight_norm(v, g.reshape(kept), -1 if dim is None else dim)

    compare(
        dtype,
        [draw_x(shape), draw(lengths, 2, 1.0, 0.5)],
        draw(shape, 1),
        theirs,
        lambda v, g: numnorm.weight_norm_forward(v, g, axis=axis),
        lambda dw, v, g, saved: numnorm.weight_norm_backward(dw, v, *saved, g, axis=axis),
    )


# What PyTorch has no function for, written out


def ada_norm(x, detach_factor, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0):
    """AdaNorm as its paper defines it."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - ddof)
    std = variance.sqrt() + eps if eps_in == "std" else (variance + eps).sqrt()
    y = centred / std
    factor = scale * (1 - k * y)
    return (factor.detach() if detach_factor else factor) * y


def ada_norm_of_its_authors(x, scale):
    """As in the code that the authors published with their paper."""
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    x = x - mean
    factor = (0.1 * x / (std + 1e-5)).detach()
    return (x - x * factor) / (std + 1e-5) * scale


ADA = [
    {},
    {"scale": 0.8, "eps_in": "std", "ddof": 1},
    {"scale": 2.0, "k": 0.4, "eps": 0.1},
    {"k": -0.3, "eps_in": "std", "eps": 0.1, "ddof": 2},
]


@pytest.mark.parametrize("options", ADA)
@pytest.mark.parametrize("detach_factor", [True, False], ids=["detached", "flowing"])
@pytest.mark.parametrize("shape", [(5, 33), (3, 4, 7)])
@each_dtype
def test_ada_norm(options, detach_factor, shape, dtype):
    x, dy = draw_x(shape).astype(dtype), draw(shape, 1).astype(dtype)
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2 if dtype not in FLOATS else 0.0
    y, (dx,) = gradients_of(lambda x: ada_norm(x, detach_factor, **options), [x], dy, dtype)
    mine, *saved = numnorm.ada_norm_forward(x, **options)
    assert_close(mine, y, FORWARD[working(dtype)], half_unit)
    mine = numnorm.ada_norm_backward(dy, x, *saved, **options, detach_factor=detach_factor)
    assert_close(mine, dx, BACKWARD[working(dtype)], half_unit)


@pytest.mark.parametrize("scale", [0.8, 1.0, 2.0])
@each_float
def test_ada_norm_as_its_authors_publish_it(scale, dtype):
    x, dy = draw_x((5, 33)).astype(dtype), draw((5, 33), 1).astype(dtype)
    y, (dx,) = gradients_of(lambda x: ada_norm_of_its_authors(x, scale), [x], dy, dtype)
    options = {"scale": scale, "ddof": 1, "eps_in": "std"}
    mine, *saved = numnorm.ada_norm_forward(x, **options)
    assert_close(mine, y, FORWARD[dtype])
    assert_close(numnorm.ada_norm_backward(dy, x, *saved, **options), dx, BACKWARD[dtype])


def detach_norm(x, gamma, detach):
    """Layer norm with constants in place of one or both statistics."""
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    if detach in ("mean", "both"):
        mean = mean.detach()
    std = (variance + 1e-5).sqrt()
    if detach in ("scale", "both"):
        std = std.detach()
    return (x - mean) / std * gamma


@pytest.mark.parametrize("detach", [None, "mean", "scale", "both"])
@pytest.mark.parametrize("shape", [(5, 33), (3, 4, 7)])
@each_dtype
def test_detach_norm(detach, shape, dtype):
    x, dy = draw_x(shape).astype(dtype), draw(shape, 1).astype(dtype)
    gamma = draw(shape[-1], 2, 1.0, 0.5).astype(dtype)
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2 if dtype not in FLOATS else 0.0
    expected = gradients_of(lambda x, gamma: detach_norm(x, gamma, detach), [x, gamma], dy, dtype)
    y, *saved = numnorm.layer_norm_forward(x, gamma)
    assert_close(y, expected[0], FORWARD[working(dtype)], half_unit)
    gradients = numnorm.layer_norm_backward(dy, x, *saved, gamma, detach=detach)
    for mine, theirs in zip(gradients, expected[1], strict=False):
        assert_close(mine, theirs, BACKWARD[working(dtype)], half_unit)
    assert_close(gradients.dbeta, as_float64(dy).sum(axis=tuple(range(dy.ndim - 1))), 0.0, 1.0)
