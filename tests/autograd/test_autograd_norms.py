"""numnorm.autograd: the norms' values and gradients, and what is refused."""

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.test_util import check_grads
from every_call import in_new_process
from kernels import marks

import numnorm
import numnorm.autograd as differentiable
from numnorm.autograd.primitives import Differentiable

RNG = np.random.default_rng(5)
X = RNG.normal(2.0, 1.5, (3, 4, 5))
D, C = RNG.normal(size=5), RNG.normal(size=4)

MASK, WEIGHTS = RNG.random(X.shape) < 0.7, RNG.integers(0, 3, 5) * RNG.random(5)

# A function, its arrays, and its options.
CASES = {
    "layer_norm": ("layer_norm", (X, D, D + 1), {}),
    "layer_norm of x": ("layer_norm", (X,), {"eps": 0.0}),
    "layer_norm over two axes": ("layer_norm", (X, X[:, :, 0], X[:, :, 1]), {"axis": (0, 1)}),
    "layer_norm with a gain of samples": ("layer_norm", (X, X[:, :1, :1], X[:, :1, :1]), {}),
    "layer_norm with a bias of samples": ("layer_norm", (X, None, X[:, :1, :1]), {}),
    "layer_norm with a bias beside a gain of samples": ("layer_norm", (X, X[:, :, :1], D), {}),
    "layer_norm with two kinds of bias": ("layer_norm", (X, D, X[:1, :, :1]), {}),
    "rms_norm": ("rms_norm", (X, D), {}),
    "rms_norm of x": ("rms_norm", (X,), {"axis": 0}),
    "rms_norm with a gain of samples": ("rms_norm", (X, X[:, :1, :1]), {}),
    "ada_norm": ("ada_norm", (X,), {"detach_factor": False, "scale": 1.5, "k": 0.2}),
    "ada_norm as published": (
        "ada_norm",
        (X,),
        {"detach_factor": False, "ddof": 1, "eps_in": "std", "axis": 1},
    ),
    "standard_normal_variate": ("standard_normal_variate", (X,), {}),
    "standard_normal_variate, ddof": ("standard_normal_variate", (X,), {"ddof": 1, "axis": 1}),
    "emsc": ("emsc", (X,), {"reference": D**2, "degree": 1}),
    "emsc over the samples": ("emsc", (X,), {"reference": X[:, 0, 0], "degree": 0, "axis": 0}),
    "robust_norm": ("robust_norm", (X,), {}),
    "robust_norm by two quantiles": ("robust_norm", (X,), {"scale": (0.1, 0.7), "axis": (1, 2)}),
    "weight_norm": ("weight_norm", (X, X[:, :, 0]), {}),
    "weight_norm of x": ("weight_norm", (X,), {"axis": (1, 2)}),
    "weight_norm as in PyTorch": ("weight_norm", (X, X[:, :1, :1]), {"axis": (1, 2)}),
    "group_norm": ("group_norm", (X, C, C + 1), {"groups": 2}),
    "group_norm of each sample": ("group_norm", (X, X[:, :, :1], C), {"groups": 2}),
    "group_norm, channels last": ("group_norm", (X, D, D), {"groups": 5, "channel_axis": -1}),
    "instance_norm": ("instance_norm", (X, C, C), {}),
    "instance_norm in inference": (
        "instance_norm",
        (X, C, C),
        {"training": False, "running_mean": C, "running_var": C**2},
    ),
    "batch_norm": ("batch_norm", (X, C, C), {}),
    "batch_norm of x": ("batch_norm", (X,), {"channel_axis": 2}),
    "batch_norm with a bias beside none": ("batch_norm", (X, None, X[:, :, :1]), {}),
    "batch_norm of two axes": ("batch_norm", (X, X[0], X[1]), {"channel_axis": (1, 2)}),
    "batch_norm of two axes with a gain of one": (
        "batch_norm",
        (X, X[:1, :, :1], X[:, :, :1]),
        {"channel_axis": (0, 1)},
    ),
    "batch_norm in inference": (
        "batch_norm",
        (X, C, C),
        {"training": False, "running_mean": C, "running_var": C**2},
    ),
    "moving_norm": ("moving_norm", (X,), {"window": 2, "axis": 1, "eps": 0.1}),
    "moving_norm around": (
        "moving_norm",
        (X,),
        {"window": 3, "center": True, "subtract_mean": False},
    ),
    "moving_robust_norm": (
        "moving_robust_norm",
        (X,),
        {"window": 4, "scale": (0.2, 0.9), "factor": 2.0, "eps": 0.5},
    ),
    "exponential_norm": ("exponential_norm", (X,), {"alpha": 0.3, "initial": 2}),
    "pcen": ("pcen", (X**2, *np.array([0.3, 0.9, 2.0, 0.5])), {}),
}
# With a mask, and with weights of the elements of a row.
COUNTING = {
    "layer_norm": ("layer_norm", (X, D, D + 1), {"weights": WEIGHTS}),
    "layer_norm with two kinds of bias": ("layer_norm", (X, D, X[:1, :, :1]), {}),
    "rms_norm": ("rms_norm", (X, D), {"weights": WEIGHTS}),
    "ada_norm": ("ada_norm", (X,), {"detach_factor": False, "weights": WEIGHTS}),
    "standard_normal_variate": ("standard_normal_variate", (X,), {}),
    "weight_norm": ("weight_norm", (X, X[:, :, 0]), {"weights": WEIGHTS}),
    "group_norm": ("group_norm", (X, C, C + 1), {"groups": 2}),
    "instance_norm": ("instance_norm", (X, C, C), {}),
    "batch_norm": ("batch_norm", (X, C, C), {"weights": WEIGHTS[:3]}),
    "batch_norm with a bias beside none": ("batch_norm", (X, None, X[:, :, :1]), {}),
    "moving_norm": ("moving_norm", (X,), {"window": 4, "axis": -1, "eps": 0.1}),
    "exponential_norm": ("exponential_norm", (X,), {"alpha": 0.3}),
}
# Whose kernels are no norm's of `kernels.DEFAULT`.
OTHERS = ("moving_norm", "moving_robust_norm", "exponential_norm", "emsc", "pcen", "robust_norm")


def cases(*dtypes):
    """Each case with each dtype, marked if its kernel is not compiled by default."""
    parameters = []
    for case, (name, arrays, _) in CASES.items():
        norm = name.replace("standard_normal_variate", "ada_norm")
        for dtype in dtypes:
            if name in OTHERS:
                parameters.append(pytest.param(case, dtype, id=f"{case}-{dtype}"))
                continue
            mark = marks(norm, dtype, "both" if len(arrays) > 1 else "none")
            parameters.append(pytest.param(case, dtype, marks=mark, id=f"{case}-{dtype}"))
    return parameters


@pytest.mark.parametrize("case, dtype", cases("float64"))
def test_check_grads(case, dtype):
    check(*CASES[case])


@pytest.mark.parametrize("case", COUNTING)
def test_check_grads_with_a_mask_and_weights(case):
    name, arrays, options = COUNTING[case]
    check(name, arrays, {"where": MASK, "fill": 3.0, **options})


@pytest.mark.parametrize("case", COUNTING)
def test_a_missing_value_is_as_one_that_a_mask_leaves_out(case):
    name, arrays, options = COUNTING[case]
    x = np.where(MASK, X, np.nan)
    given = [i for i, array in enumerate(arrays) if array is not None]
    dy = RNG.normal(size=X.shape)

    def gradients(x, **counting):
        def loss(*values):
            every = [values[given.index(i)] if i in given else None for i in range(len(arrays))]
            y = getattr(differentiable, name)(*every, **options, **counting)
            return anp.sum(dy * y)

        values = x, *(arrays[i] for i in given[1:])
        return autograd.grad(loss, tuple(range(len(values))))(*values)

    found = gradients(x, nan_policy="omit", fill=0.0)
    for one, other in zip(found, gradients(X, where=MASK), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert (found[0][~MASK] == 0).all()


def check(name, arrays, options):
    """Compare gradients with numerical ones."""
    given = [i for i, array in enumerate(arrays) if array is not None]

    def function(*values):
        every = [values[given.index(i)] if i in given else None for i in range(len(arrays))]
        return getattr(differentiable, name)(*every, **options)

    values = [arrays[i] for i in given]
    for argnum in range(len(values)):
        check_grads(function, argnum, order=1, modes=["rev"])(*values)
    check_grads(function, tuple(range(len(values))), order=1, modes=["rev"])(*values)


@pytest.mark.parametrize("case, dtype", cases("float32", "float64"))
def test_values_and_dtypes(case, dtype):
    name, arrays, options = CASES[case]
    arrays = [array if array is None else array.astype(dtype) for array in arrays]
    names_backward = ("detach_factor",)
    forward = {key: value for key, value in options.items() if key not in names_backward}
    expected = getattr(numnorm, name)(*arrays, **forward)
    function = getattr(differentiable, name)
    np.testing.assert_array_equal(function(*arrays, **options), expected, strict=True)

    def loss(x):
        y = function(x, *arrays[1:], **options)
        np.testing.assert_array_equal(autograd.tracer.getval(y), expected, strict=True)
        return anp.sum(y**2)

    assert autograd.grad(loss)(arrays[0]).dtype == dtype


@pytest.mark.parametrize("name", ["x", "residual", "gamma"])
def test_norms_of_sums_refuse_boxes(name):
    arrays = {"x": np.ones((2, 3)), "residual": np.ones((2, 3)), "gamma": np.ones(3)}

    def loss(array):
        return anp.sum(numnorm.add_rms_norm(**arrays | {name: array}).y)

    message = (
        f"^{name} must have values, got one that is traced: write the sum, "
        r"numnorm\.autograd\.rms_norm\(x \+ residual\)$"
    )
    with pytest.raises(TypeError, match=message):
        autograd.grad(loss)(arrays[name])


def test_every_norm_with_a_backward_pass_is_there():
    with_backward = {n.removesuffix("_backward") for n in numnorm.__all__ if "_backward" in n}
    with_backward -= {"add_layer_norm", "add_rms_norm"}  # autograd knows a sum
    assert with_backward <= set(differentiable.__all__)
    # The way back is no norm, and has a test file of its own.
    assert {name for name, _, _ in CASES.values()} == with_backward - {"denormalize"}
    assert sorted(differentiable.__all__) == differentiable.__all__


def test_gradients_are_those_of_numnorm():
    dy = RNG.normal(size=X.shape)
    _, mean, rstd = numnorm.layer_norm_forward(X, D, D)
    expected = numnorm.layer_norm_backward(dy, X, mean, rstd, D)

    def loss(arrays):
        return anp.sum(dy * differentiable.layer_norm(*arrays))

    for gradient, one in zip(autograd.grad(loss)((X, D, D)), expected, strict=True):
        np.testing.assert_array_equal(gradient, one, strict=True)


def test_gradient_of_the_written_formula():
    def formula(x):
        xhat = (x - anp.mean(x)) / anp.sqrt(anp.var(x) + 1e-5)
        return anp.tanh(xhat * D) @ D

    def loss(x):
        return anp.tanh(differentiable.layer_norm(x, D)) @ D

    # Both round some ten operations on numbers of about 1.
    np.testing.assert_allclose(
        autograd.grad(loss)(X[0, 0]), autograd.grad(formula)(X[0, 0]), rtol=1e-13, atol=1e-14
    )


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
def test_detached_statistics(detach):
    _, mean, rstd = numnorm.layer_norm_forward(X, D)
    expected = numnorm.layer_norm_backward(np.ones_like(X), X, mean, rstd, D, detach=detach).dx

    def loss(x):
        return anp.sum(differentiable.layer_norm(x, D, detach=detach))

    np.testing.assert_array_equal(autograd.grad(loss)(X), expected)
    with pytest.raises(ValueError, match=r"^detach must be None, 'mean', 'scale' or 'both', got"):
        differentiable.layer_norm(X, detach="variance")


def test_factor_of_ada_norm_is_a_constant_by_default():
    _, mean, rstd = numnorm.ada_norm_forward(X)
    expected = numnorm.ada_norm_backward(np.ones_like(X), X, mean, rstd)
    gradient = autograd.grad(lambda x: anp.sum(differentiable.ada_norm(x)))(X)
    np.testing.assert_array_equal(gradient, expected)


def test_constant_row_has_a_gradient_of_0():
    x = np.array([[5.0, 5.0, 5.0], [1.0, 2.0, 3.0]])
    weights = np.array([1.0, 2.0, 5.0])
    gradient = autograd.grad(
        lambda x: anp.sum(weights * differentiable.standard_normal_variate(x))
    )(x)
    np.testing.assert_array_equal(gradient[0], 0)
    assert (gradient[1] != 0).all()


def test_gradients_have_the_dtype_of_their_array():
    x, gamma, beta = X.astype(np.float32), D, X[:, :1, :1].astype(np.float32)

    def loss(arrays):
        return anp.sum(differentiable.layer_norm(*arrays) ** 2)

    gradients = autograd.grad(loss)((x, gamma, beta))
    assert [g.dtype.name for g in gradients] == ["float32", "float64", "float32"]
    assert [g.shape for g in gradients] == [x.shape, gamma.shape, beta.shape]


def test_gradients_of_integers_and_of_a_number_are_floats():
    x, gamma = np.array([[1, 2, 4]]), np.array([1, 2, 3])

    def loss(x, gamma):
        return anp.sum(differentiable.layer_norm(x, gamma) ** 3)

    for argnum in (0, 1):
        found = autograd.grad(loss, argnum)(x, gamma)
        expected = autograd.grad(loss, argnum)(x.astype(float), gamma.astype(float))
        np.testing.assert_array_equal(found, expected, strict=True)

    def of_length(g):  # the sum of a vector of the given length that lies along (3, 4)
        return anp.sum(differentiable.weight_norm(np.array([3.0, 4.0]), g))

    np.testing.assert_allclose(autograd.grad(of_length)(2.0), 1.4, rtol=1e-15)


def test_running_statistics_are_updated_once():
    expected = np.zeros(4), np.ones(4)
    numnorm.batch_norm(X, running_mean=expected[0], running_var=expected[1])
    running = np.zeros(4), np.ones(4)

    def loss(x):
        y = differentiable.batch_norm(x, running_mean=running[0], running_var=running[1])
        return anp.sum(y**3)

    gradient = autograd.grad(loss)(X)
    without = autograd.grad(lambda x: anp.sum(differentiable.batch_norm(x) ** 3))(X)
    np.testing.assert_array_equal(gradient, without)
    np.testing.assert_array_equal(running, expected)


def test_statistics_of_labels_are_constants():
    labels = np.arange(len(X)) % 2
    stored = numnorm.batch_moments(X + 1, labels=labels)

    def loss(x, *statistics):
        given = statistics or [differentiable.batch_norm(x, labels=labels, statistics=stored)]
        return anp.sum(given[0] ** 3)

    def defined(x):  # a row for each sample's label
        mean, var = (np.stack(a)[labels] for a in (stored.moments.mean, stored.moments.var()))
        of = [slice(None)] * 2 + [None] * (X.ndim - 2)
        return loss(x, (x - mean[tuple(of)]) / np.sqrt(var[tuple(of)] + 1e-5))

    found, expected = autograd.grad(loss)(X), autograd.grad(defined)(X)
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # a few roundings of float64


def test_one_pass_each_for_all_gradients():
    calls = []

    def forward(x, w):
        calls.append("forward")
        return x * w, (x, w)

    def backward(dy, saved, x, w):
        calls.append("backward")
        return dy * w, dy * x

    product = Differentiable(forward, backward)
    gradients = autograd.grad(lambda pair: anp.sum(product(*pair)))((D, D + 1))
    np.testing.assert_array_equal(gradients, (D + 1, D))
    assert calls == ["forward", "backward"]


# What is refused

LIMIT = r"^numnorm\.autograd: first derivatives in reverse mode only, got a "


def squares(arrays):
    return anp.sum(differentiable.layer_norm(*arrays) ** 2)


@pytest.mark.parametrize(
    "second",
    [
        lambda: autograd.hessian(lambda x: squares((x,)))(X),
        lambda: autograd.elementwise_grad(autograd.grad(lambda x: squares((x, D))))(X),
        lambda: autograd.grad(lambda g: autograd.grad(lambda x: squares((x, g)))(X)[0, 0, 0])(D),
        lambda: autograd.make_hvp(lambda x: squares((x,)))(X)[0](X),
    ],
    ids=["hessian", "elementwise", "mixed", "product"],
)
def test_second_derivatives_raise(second):
    with pytest.raises(NotImplementedError, match=f"{LIMIT}second derivative$"):
        second()


def test_forward_mode_raises():
    with pytest.raises(NotImplementedError, match=f"{LIMIT}derivative in forward mode$"):
        autograd.make_jvp(lambda x: differentiable.layer_norm(x))(X)(X)
    with pytest.raises(NotImplementedError, match=f"{LIMIT}derivative in forward mode$"):
        autograd.make_jvp(autograd.grad(lambda x: squares((x,))))(X)(X)


def test_a_gradient_in_a_differentiated_function_may_be_a_constant():
    def loss(z):
        slope = autograd.grad(lambda x: squares((x, D)))(X)
        return anp.sum(z * slope)

    slope = autograd.grad(lambda x: squares((x, D)))(X)
    np.testing.assert_array_equal(autograd.grad(loss)(X), slope)


def test_options_are_constants():
    def loss(mean):
        y = differentiable.batch_norm(X, running_mean=mean, running_var=C**2, training=False)
        return anp.sum(y)

    with pytest.raises(TypeError, match=r"^running_mean must be a constant: autograd does not"):
        autograd.grad(loss)(C)

    def weighted(weights):
        return anp.sum(differentiable.layer_norm(X, weights=weights))

    with pytest.raises(TypeError, match=r"^weights must be a constant: autograd does not"):
        autograd.grad(weighted)(D**2)


def test_errors():
    with pytest.raises(TypeError, match=r"^arguments must be arrays to be differentiated, got a l"):
        autograd.grad(lambda x: anp.sum(differentiable.layer_norm(x)))([1.0, 2.0])
    with pytest.raises(ValueError, match=r"^axis must"):
        autograd.grad(lambda x: anp.sum(differentiable.layer_norm(x, axis=7)))(X)
    with pytest.raises(TypeError, match=r"^detach_factor must be True or False, got 'no'$"):
        differentiable.ada_norm(X, detach_factor="no")


def test_without_the_library():
    script = (
        "import sys; sys.modules['autograd'] = None\n"
        "try: import numnorm.autograd\n"
        "except ImportError as error: print(error)"
    )
    expected = 'numnorm.autograd needs autograd: pip install "numnorm[autograd]"'
    assert in_new_process("-c", script).strip() == expected


def test_a_box_names_the_functions_that_take_it():
    """Without them autograd cannot follow what happens to x."""
    for function in (numnorm.layer_norm, lambda x: numnorm.layer_norm(X, x[0])):
        with pytest.raises(TypeError, match=r"ArrayBox: use numnorm\.autograd inside"):
            autograd.grad(lambda x, function=function: np.sum(function(x)))(X)
