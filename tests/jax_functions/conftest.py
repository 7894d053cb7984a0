"""Fixtures for the tests of `numnorm.jax`, all of which need JAX."""

import pytest


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request):
    """Run a test without and with JAX's float64."""
    yield from set_x64(request.param)


@pytest.fixture
def float64():
    """Run a test with JAX's float64."""
    yield from set_x64(True)


def set_x64(value):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", value)
    yield value
    jax.config.update("jax_enable_x64", before)
