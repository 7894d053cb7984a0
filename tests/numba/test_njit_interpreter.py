"""Calls that compiled functions leave to the interpreter: the results of the public functions."""

import json
from concurrent.futures import ThreadPoolExecutor

import kernels
import numba
import numpy as np
import pytest
from every_call import output_of, start
from nopython import call_of, check, compiled, function_of, same
from numba.core.errors import TypingError

import numnorm
from numnorm.norms.declared import SPECS

pytestmark = compiled
rng = np.random.default_rng(49)
X = rng.standard_normal((4, 3, 6))
MASK = rng.random(X.shape) > 0.2
HOLED = np.where(MASK, X, np.nan)

ARGUMENTS = {
    "x": X,
    "mask": MASK,
    "z": HOLED,
    "row": rng.standard_normal(6),
    "curve": np.arange(6.0) ** 3,
    "counts": rng.random(6),
    "channel": rng.standard_normal(3),
    "spread": rng.random(3) + 0.5,
    "labels": np.array([2, 5, 5, 2]),
    "by_label": rng.random((2, 3)) + 0.5,
    "single": rng.standard_normal(3).astype(np.float32),
    "broad": rng.standard_normal((4, 3, 1)),
}
CALLS = [
    "layer_norm(x, where=mask)",
    "layer_norm_forward(z, row, row, nan_policy='omit', fill=2)",
    "layer_norm_backward(x, x, x[:, :, 0], x[:, :, 1], row, detach='mean', where=mask)",
    "batch_norm_forward(x, channel, labels=labels)",
    "batch_norm_backward(x, x, by_label, by_label, single, labels=labels, where=mask)",
    "moving_norm(x, 3, axis=0)",
    "moving_norm_forward(z, 3, center=True, nan_policy='omit')",
    "moving_norm_backward(x, x, x, x, 3)",
    "moving_robust_norm_forward(z, 3, scale=(0.1, 0.8), factor='normal', nan_policy='omit')",
    "moving_robust_norm_backward(x, x, x, x * x, 3, scale=None)",
    "exponential_norm_forward(x, 0.2, where=mask)",
    "exponential_norm_backward(x, x, x, x, 0.2, initial=2)",
    "instance_norm_forward(x, running_mean=channel, running_var=spread, training=False)",
    "emsc_forward(x, curve, degree=1)",
    "emsc_backward(x, x, x[:, :, 0], curve, degree=1)",
]
MORE_CALLS = [
    "rms_norm_forward(x, row, weights=counts)",
    "rms_norm_backward(x, x, x[:, :, 0], where=mask)",
    "ada_norm(z, axis=(0, 2), nan_policy='omit')",
    "standard_normal_variate_forward(x, ddof=1, where=mask)",
    "weight_norm_forward(x, channel, axis=(0, 2), where=mask)",
    "weight_norm_backward(x, x, spread, axis=(0, 2), where=mask)",
    "group_norm_forward(x, channel, groups=3, where=mask)",
    "group_norm_backward(x, x, x[:, :, 0], x[:, :, 1], groups=3, where=mask)",
    "instance_norm_backward(x, x, channel, channel, training=False)",
    "batch_norm(x, where=mask, training=False, running_mean=channel, running_var=spread)",
    "batch_norm_forward(x, channel_axis=(1, 2), where=mask)",
    "batch_norm_backward(x, x, channel, channel, broad, where=mask)",
    "batch_norm(x, labels=['b', 'a', 'c', 'a'])",
    "group_norm_backward(x, x, x[:, :, 0], x[:, :, 1], single, groups=3, where=mask)",
]


@pytest.mark.parametrize(
    "text", [*CALLS, *(pytest.param(text, marks=kernels.full) for text in MORE_CALLS)]
)
def test_all_keywords(text):
    check(function_of(ARGUMENTS, f"numnorm.{text}"), *ARGUMENTS.values())


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.norm], ids=lambda s: s.name)
def test_every_norm_is_compiled_with_or_without_kernels_of_its_own(spec):
    x = np.array(eval(spec.example.x))
    options = spec.example_arguments
    arrays = {name: np.array(v) for name, v in options.items() if isinstance(v, list)}
    texts = {name: v for name, v in options.items() if name not in arrays}
    call = call_of(spec.name, ["x", *(f"{name}={name}" for name in arrays)], texts)
    check(function_of(["x", *arrays], call), x, *arrays.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, option", [("moving_norm_step", 5), ("exponential_norm_step", 0.2)])
def test_steps_of_a_stream(name, option, dtype):
    x = rng.standard_normal((2, 40)).astype(dtype)
    names = {"numnorm": numnorm, "np": np}
    exec(
        "def stream(x, option):\n"
        "    state, y = None, np.empty_like(x)\n"
        "    for i in range(0, x.shape[1], 8):\n"
        f"        y[:, i : i + 8], state = numnorm.{name}(x[:, i : i + 8], option, state)\n"
        "    return y, state\n",
        names,
    )
    y, state = numba.njit(names["stream"])(x, option)
    expected_y, expected = names["stream"](x, option)
    same(y, expected_y)
    assert type(state) is type(expected)
    for one, other in zip(state, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_running_statistics_of_instance_norm_are_updated():
    def call(x, mean, var):
        return numnorm.instance_norm(x, running_mean=mean, running_var=var), mean, var

    same(
        numba.njit(call)(X, np.zeros(3), np.ones(3)),
        call(X, np.zeros(3), np.ones(3)),
    )


@pytest.mark.parametrize("order", "CF")
def test_out(order):
    call = function_of(["x", "mask", "out"], "numnorm.layer_norm_forward(x, where=mask, out=out)")
    out = np.empty(X.shape, order=order)
    results = numba.njit(call)(X, MASK, out)
    assert results.y.ctypes.data == out.ctypes.data
    assert results.y.strides == out.strides
    np.testing.assert_array_equal(out, numnorm.layer_norm(X, where=MASK))


def test_layouts_and_dtypes():
    call = numba.njit(function_of(["x"], "numnorm.moving_norm(x, 3, axis=0)"))
    for x in (X.T, X[::2, :, ::-1], np.arange(12), X.astype(np.float32)):
        same(call(x), numnorm.moving_norm(x, 3, axis=0).copy())


def test_threads_and_parallel_callers():
    def rows(x, mask):
        y = np.empty_like(x)
        for i in numba.prange(len(x)):
            y[i] = numnorm.layer_norm(x[i], where=mask[i])
        return y

    expected = numnorm.layer_norm(X, where=MASK)
    same(numba.njit(parallel=True)(rows)(X, MASK), expected)
    call = numba.njit(nogil=True)(rows)
    call(X, MASK)
    with ThreadPoolExecutor(8) as pool:
        for y in pool.map(lambda _: call(X, MASK), range(100)):
            same(y, expected)


def test_no_memory_is_kept():
    @numba.njit
    def call(x, mask):
        return numnorm.layer_norm_forward(x, where=mask)

    call(X, MASK)
    numba.core.runtime._nrt_python.memsys_enable_stats()
    before = numba.core.runtime.rtsys.get_allocation_stats()
    for _ in range(3):
        call(X, MASK)
    after = numba.core.runtime.rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free


def test_errors_are_those_of_the_public_function():
    call = numba.njit(function_of(["x", "window"], "numnorm.moving_norm(x, window)"))
    with pytest.raises(ValueError, match=r"^window must be at least 1, got 0$"):
        call(X, 0)


TYPING_ERRORS = {
    "moving_norm([1.0], 3)": "x must be an array of float32, float64, integers or bool, got",
    "moving_norm_step(x, 3, where=x > 0)": "where must be left out of steps in compiled code, got",
    "batch_moments(x, where=x > 0)": "where must be left out of batch_moments in compiled code",
    "instance_norm_forward(x, training=x[0, 0, 0] > 0)": "training must be a literal in compiled",
    "layer_norm_forward(x, axis=[0, 2], where=x > 0)": "axis must be an int or a tuple of ints in",
    "batch_norm_forward(x, labels=x[:, 0, 0] if x.size > 9 else None)": "labels must be always",
    "layer_norm(x, where=x > 0, out=x[0])": "out must be a writable array of float64 with 3 axes",
}


@pytest.mark.parametrize("text", TYPING_ERRORS)
def test_typing_errors_name_the_argument_in_one_line(text):
    call = numba.njit(function_of(["x"], f"numnorm.{text}"))
    with pytest.raises(TypingError) as error:
        call(X)
    assert any(TYPING_ERRORS[text] in line for line in str(error.value).splitlines())


CACHED = """
import json
import numba
import numpy as np
import numnorm
import numnorm._numba

numnorm._numba.init()

@numba.njit(cache=True)
def call(x):
    return numnorm.moving_norm(x, 3), numnorm.exponential_norm(x, 0.5)

if __name__ == "__main__":
    x = np.arange(12.0) ** 2
    expected = numnorm.moving_norm(x, 3), numnorm.exponential_norm(x, 0.5)
    same = [a.tobytes() == b.tobytes() for a, b in zip(call(x), expected)]
    print(json.dumps([same, len(call.stats.cache_hits)]))
"""


def test_cached_callers(tmp_path):
    (tmp_path / "cached.py").write_text(CACHED)
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "callers")}
    for hits in 0, 1:
        found = output_of(start(str(tmp_path / "cached.py"), **environment))
        assert json.loads(found) == [[True, True], hits]
