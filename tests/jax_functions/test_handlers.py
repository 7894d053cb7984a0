"""The handlers: threads, executables on disk, subnormal numbers, errors."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import numnorm
from numnorm import rnn

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax


def test_eight_threads_get_what_one_gets():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 6, 5, 4)), jnp.float32)
    parameters = rnn.gru_init(4, 3, dtype="float32", rng=np.random.default_rng(0))

    @jax.jit
    def loss(x):
        y = numnorm.jax.layer_norm(x) + numnorm.jax.batch_norm(x)
        return jnp.sin(numnorm.jax.gru(y, parameters).y).sum()

    gradient = jax.grad(loss)
    right = [gradient(each) for each in x]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            for found, wanted in zip(threads.map(gradient, x), right, strict=True):
                np.testing.assert_array_equal(found, wanted)


SCRIPT = """
import jax, numnorm.jax
x = jax.numpy.arange(12.0).reshape(3, 4)
for norm in (numnorm.jax.rms_norm, numnorm.jax.batch_norm):
    print(jax.jit(jax.grad(lambda x: (norm(x) ** 3).sum()))(x).tolist())
"""


def test_an_executable_on_disk_works_in_another_process(tmp_path):
    env = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert printed[0] == printed[1] != ""
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_numbers_are_kept_as_numpy_keeps_them(dtype, x64):
    if dtype == "float64" and not x64:
        pytest.skip("JAX has no float64 then")
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([[1, 2, 3, 7]], dtype) * (100 * tiny)  # XLA's own threads round them to 0
    found = numnorm.jax.standard_normal_variate(jnp.asarray(x))
    assert np.asarray(found).tobytes() == numnorm.standard_normal_variate(x).tobytes()


def test_an_error_in_a_handler_is_an_error_of_jax():
    x, negative = jnp.ones((3, 2)), jnp.full(2, -1.0)
    with pytest.raises(Exception, match="running_var must not be negative, got -1"):
        numnorm.jax.batch_norm(
            x, running_mean=negative, running_var=negative, training=False
        ).block_until_ready()
