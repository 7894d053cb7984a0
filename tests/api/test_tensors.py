"""Tensors of PyTorch on the CPU: tensors come back, without copies; gradients; the gallery."""

import importlib.util
import json
import pickle
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from library_calls import CALLS, check_call, draw

import numnorm
from numnorm import rnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch
GALLERY = Path(__file__).parents[2] / "docs" / "gallery" / "torch_autograd.py"


def strided(array):
    """A view of every second element along each axis of a larger tensor."""
    wide = torch.zeros([2 * n for n in array.shape], dtype=torch.from_numpy(array).dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view.copy_(torch.from_numpy(array))
    return view


def reversed_axes(array):
    """A tensor whose first axis varies fastest in memory."""
    order = tuple(range(array.ndim))[::-1]
    return torch.from_numpy(array.transpose(order).copy()).permute(order)


def parameter(array):
    return torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)


MAKERS = {
    "contiguous": torch.from_numpy,
    "strided": strided,
    "reversed-axes": reversed_axes,
    "parameter": parameter,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_tensors_give_tensors(call, make):
    check_call(call, lambda array: make(np.array(array)), torch.Tensor, np.asarray)


# Each of PyTorch's dtypes, with NumPy's of the same numbers and the one of the result.
DTYPES = [
    (torch.float16, np.float16, torch.float16),
    (torch.bfloat16, ml_dtypes.bfloat16, torch.bfloat16),
    (torch.float32, np.float32, torch.float32),
    (torch.float64, np.float64, torch.float64),
    (torch.int32, np.int32, torch.float64),
    (torch.uint8, np.uint8, torch.float64),
    (torch.bool, np.bool_, torch.float64),
]
FUNCTIONS = {
    "layer": lambda x, dy: numnorm.layer_norm_forward(x),
    "layer-backward": lambda x, dy: numnorm.layer_norm_backward(dy, x, draw(4), draw(4), x[0]),
    "batch": lambda x, dy: numnorm.batch_norm_forward(x, x[0], x[1]),
    "batch-backward": lambda x, dy: numnorm.batch_norm_backward(dy, x, draw(9), draw(9), x[0]),
    "two-axes": lambda x, dy: numnorm.batch_norm_forward(x, channel_axis=(0, 1)),
    "moments": lambda x, dy: numnorm.batch_moments(x)[1:],
    "weight": lambda x, dy: numnorm.weight_norm_forward(x, dy[:, 0]),
}


@pytest.mark.parametrize("of_torch, of_numpy, result", DTYPES, ids=lambda d: str(d))
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_dtypes(function, of_torch, of_numpy, result):
    x = (3 * draw(4, 9)).astype(np.int32).clip(0, 100)
    dy = x[::-1].copy()
    mine = function(*(torch.from_numpy(array).to(of_torch) for array in (x, dy)))
    expected = function(x.astype(of_numpy), dy.astype(of_numpy))
    for tensor, array in zip(mine, expected, strict=True):
        assert type(tensor) is torch.Tensor
        assert str(tensor.dtype).removeprefix("torch.") == array.dtype.name
        words = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
        np.testing.assert_array_equal(words.numpy(), array.view(words.numpy().dtype))
    assert function is FUNCTIONS["moments"] or mine[0].dtype is result


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_cells_of_bfloat16(kind):
    x = draw(5, 2, 3)
    parameters = getattr(rnn, f"{kind}_init")(3, 4, rng=np.random.default_rng(0))
    halves = type(parameters)(*(torch.from_numpy(array).bfloat16() for array in parameters))
    rounded = type(parameters)(*(array.astype(ml_dtypes.bfloat16) for array in parameters))
    y, *_, saved = getattr(rnn, f"{kind}_forward")(torch.from_numpy(x).bfloat16(), halves)
    assert y.dtype is torch.bfloat16
    expected = getattr(rnn, kind)(x.astype(ml_dtypes.bfloat16), rounded)[0]
    np.testing.assert_array_equal(y.float().numpy(), expected.astype(np.float32))
    gradients = getattr(rnn, f"{kind}_backward")(torch.ones_like(y), saved)
    assert {tensor.dtype for tensor in gradients.parameters} == {torch.bfloat16}
    packed = getattr(rnn, f"{kind}_pack")(halves, dtype=np.float32)
    step = getattr(rnn, f"{kind}_cell")(torch.from_numpy(x[0]), packed)
    state = step.h if kind == "lstm" else step
    assert state.dtype is torch.float32


# Memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nothing_is_copied(dtype, monkeypatch):
    from numnorm.backends import cpu

    seen, row_forward = [], cpu.row_forward

    def spy(norm, x, gamma, *others):
        results = row_forward(norm, x, gamma, *others)
        seen.extend(array.__array_interface__["data"][0] for array in (x, gamma, *results))
        return results

    monkeypatch.setattr(cpu, "row_forward", spy)
    x, gamma = torch.ones(4, 9, dtype=dtype), torch.ones(9, dtype=dtype)
    results = numnorm.layer_norm_forward(x, gamma)
    assert seen == [tensor.data_ptr() for tensor in (x, gamma, *results)]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_out_is_written_and_returned(make, dtype):
    x = torch.from_numpy(draw(4, 9)).to(dtype)
    expected = numnorm.layer_norm(x)
    out = make(np.zeros((4, 9), np.float32)).to(dtype)
    before = out.data_ptr()
    assert numnorm.layer_norm(x, out=out) is out
    assert out.data_ptr() == before
    assert torch.equal(out, expected)
    assert numnorm.layer_norm_backward(x, x, draw(4), draw(4), out=out).dx is out
    assert numnorm.batch_norm(x, channel_axis=(0, 1), out=out) is out
    assert numnorm.layer_norm(x, out=x) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_running_statistics_are_updated_in_place(dtype):
    x, running = draw(6, 5), (torch.zeros(5, dtype=dtype), torch.ones(5, dtype=dtype))
    numnorm.batch_norm(torch.from_numpy(x), running_mean=running[0], running_var=running[1])
    module = torch.nn.BatchNorm1d(5, dtype=torch.float64)
    module(torch.from_numpy(x).double())
    # Half a unit in the last place of the dtype, and of float32, in which the squares are.
    tolerance = torch.finfo(dtype).eps + 2.0**-20
    torch.testing.assert_close(
        running[0].double(), module.running_mean, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        running[1].double(), module.running_var, rtol=tolerance, atol=tolerance
    )


def test_an_expanded_tensor_cannot_be_written():
    x, one_row = torch.from_numpy(draw(4, 9)), torch.zeros(9).expand(4, 9)
    with pytest.raises(ValueError, match=r"^out must have memory for each element, got an exp"):
        numnorm.layer_norm(x, out=one_row)
    running = {"running_mean": torch.zeros(1).expand(9), "running_var": torch.ones(9)}
    with pytest.raises(ValueError, match=r"^running_mean must have memory for each element"):
        numnorm.batch_norm(x, **running)
    for norm in (numnorm.layer_norm, numnorm.batch_norm):
        assert torch.equal(norm(one_row), norm(one_row.contiguous()))


def test_the_negative_view_of_a_tensor():
    z = torch.complex(torch.from_numpy(draw(4, 9)), torch.from_numpy(draw(4, 9, seed=1)))
    x = z.conj().imag
    assert x.is_neg()
    assert torch.equal(numnorm.layer_norm(x, x[0]), numnorm.layer_norm(-z.imag, -z.imag[0]))
    with pytest.raises(TypeError, match=r"^out must .* negative bit"):
        numnorm.layer_norm(x, out=x)


# Gradients


@pytest.mark.parametrize(
    "write",
    [
        lambda x: numnorm.layer_norm(x, out=x),
        lambda x: numnorm.batch_norm(x, channel_axis=(0, 1), out=x),
        lambda x: numnorm.batch_norm(X, running_mean=x[0], running_var=torch.ones(9)),
    ],
)
def test_a_gradient_that_needs_what_was_overwritten_is_an_error(write):
    x, weight = X.clone(), torch.ones(4, 9, requires_grad=True)
    product = (weight * x).sum()
    write(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


ADVICE = (
    "not require a gradient, got a tensor that does: use .detach(), torch.no_grad() or the "
    "function of docs/gallery/torch_autograd.py"
)
X = torch.from_numpy(draw(4, 9))
ARGUMENTS = {
    "x": lambda bad: numnorm.layer_norm(bad(4, 9)),
    "gamma": lambda bad: numnorm.layer_norm(X, bad(9)),
    "beta": lambda bad: numnorm.layer_norm(X, X[0], bad(9)),
    "out": lambda bad: numnorm.layer_norm(X, out=bad(4, 9)),
    "dy": lambda bad: numnorm.layer_norm_backward(bad(4, 9), X, draw(4), draw(4)),
    "mean": lambda bad: numnorm.layer_norm_backward(X, X, bad(4), draw(4)),
    "rstd": lambda bad: numnorm.rms_norm_backward(X, X, bad(4)),
    "g": lambda bad: numnorm.weight_norm(X, bad(4)),
    "running_mean": lambda bad: numnorm.batch_norm(X, running_mean=bad(9), running_var=bad(9)),
    "h": lambda bad: rnn.lstm_cell(X, LSTM, bad(4, 2)),
    "weight_h": lambda bad: rnn.lstm(X, LSTM._replace(weight_h=bad(8, 2))),
    "after.mean": lambda bad: numnorm.batch_moments(
        X, after=numnorm.batch_moments(X)._replace(mean=bad(9))
    ),
}
LSTM = rnn.lstm_init(9, 2, rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_tensor_that_requires_a_gradient_is_refused(name):
    def bad(*shape):
        return torch.ones(shape, requires_grad=True)

    with pytest.raises(TypeError, match=f"^{re.escape(f'{name} must {ADVICE}')}$"):
        ARGUMENTS[name](bad)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_taken_where_no_gradient_is_recorded(without, dtype):
    x, gamma = (torch.ones(size, dtype=dtype).cumsum(-1) for size in ((4, 9), (9,)))
    expected = numnorm.layer_norm(x, gamma)
    x.requires_grad_(), gamma.requires_grad_()
    with without():
        y = numnorm.layer_norm(x, gamma)
        assert not y.requires_grad
        assert torch.equal(y, expected)
    with pytest.raises(TypeError, match=r"^x must not require a gradient"):
        numnorm.layer_norm(x, gamma)


def test_gallery(capsys):
    spec = importlib.util.spec_from_file_location("torch_autograd", GALLERY)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    right, mine, own = example.main()
    assert right is True
    # Both round differently; training for 50 steps multiplies that.
    np.testing.assert_allclose(mine, own, rtol=1e-3)
    recorded = json.loads((GALLERY.parent / "runs" / "torch_autograd.json").read_text("utf-8"))
    # Another processor or version of PyTorch rounds differently.
    np.testing.assert_allclose(recorded["numnorm"], mine, rtol=1e-2)
    np.testing.assert_allclose(recorded["torch.nn.LayerNorm"], own, rtol=1e-2)
    assert "True" in capsys.readouterr().out
    norm = example.LayerNormFunction.apply
    tensors = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((4, 7), 7)]
    for gain, bias in ((None, None), (None, tensors[1]), (tensors[1], None)):
        assert torch.autograd.gradcheck(norm, (tensors[0], gain, bias, 1e-5))
    module = example.LayerNorm(7, dtype=torch.float64)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(module(x).sum(), x, create_graph=True)
    compiled = torch.compile(torch.nn.Sequential(module, torch.nn.Tanh()), backend="eager")
    assert torch.equal(compiled(x), torch.tanh(module(x)))


# What is refused


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: torch.ones(4, 9).to_sparse(), "x must be an array or turn into one"),
        (lambda: torch.ones(4, 9, dtype=torch.complex64), "x must have dtype"),
        (lambda: torch.ones(4, 9).to(torch.float8_e5m2), "x must be an array or turn into one"),
        (lambda: torch.ones(4, 9, device="meta"), "x must be an array or turn into one"),
    ],
    ids=["sparse", "complex", "float8", "meta"],
)
def test_tensors_without_real_numbers_in_memory(make, message):
    with pytest.raises(TypeError, match=f"^{message}") as caught:
        numnorm.layer_norm(make())
    assert "\n" not in str(caught.value)


def test_an_array_of_numpy_and_a_tensor_as_out():
    with pytest.raises(TypeError, match=r"^out must be a numpy.ndarray, got .* type Tensor$"):
        numnorm.layer_norm(draw(4, 9), out=X)


def test_a_list_of_tensors_gives_an_array_of_numpy():
    y = numnorm.layer_norm([X[0], X[1]])
    np.testing.assert_array_equal(y, numnorm.layer_norm(X[:2].numpy()))


def test_copies_of_what_is_saved_give_tensors():
    y, *_, saved = rnn.lstm_forward(X[:, None], LSTM)
    dx = rnn.lstm_backward(torch.ones_like(y), pickle.loads(pickle.dumps(saved))).dx
    assert type(dx) is torch.Tensor
