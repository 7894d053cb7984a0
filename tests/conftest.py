"""Selects the tests: those on a GPU with ``-m gpu``, and those marked `full` with ``--full``."""

import os

import pytest

from numnorm.backends.cpu import tuning

# Meshes of JAX need several devices. JAX reads this before its first array, in whatever test.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
)
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="run the tests marked `full` as well: every kernel, where the others compile a choice",
    )


def pytest_collection_modifyitems(config, items):
    """Deselect tests marked `full`, unless nothing is compiled, which makes them fast."""
    if UNCOMPILED or config.option.full:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_ignore_collect(collection_path, config):
    """Collect only `tests/gpu` for ``-m gpu``, and all other tests otherwise."""
    name, folder = collection_path.name, collection_path.parent.name
    if config.option.markexpr == "gpu":
        is_test = name.startswith("test_") and collection_path.suffix == ".py"
        return True if is_test and folder != "gpu" else None
    return True if name == "gpu" and collection_path.is_dir() else None


@pytest.fixture
def parallel_at_small_sizes(monkeypatch):
    """Run arrays in parallel that are too small to gain by it, whatever time it takes."""
    monkeypatch.setattr(tuning, "PARALLEL_LEAST_WORK", 1 << 17)
    monkeypatch.setattr(tuning, "PARALLEL_WORKQUEUE_LEAST_WORK", 1 << 17)
    monkeypatch.setattr(tuning, "PARALLEL_TIMED_BELOW_WORK", 0)
