"""Which tests run: those on a GPU by themselves, and those marked `full` with ``--full``."""

import os

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="run the tests marked `full` as well: every kernel, where the others compile a choice",
    )


def pytest_collection_modifyitems(config, items):
    """Leave out what is marked `full`; where nothing is compiled, it takes no time."""
    if UNCOMPILED or config.option.full:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_ignore_collect(collection_path, config):
    """Collect `tests/gpu` for ``-m gpu``, and all else for everything else."""
    here = collection_path.name
    if config.option.markexpr == "gpu":
        return (
            True
            if collection_path.suffix == ".py"
            and here.startswith("test_")
            and (collection_path.parent.name != "gpu")
            else None
        )
    return True if here == "gpu" and collection_path.is_dir() else None
