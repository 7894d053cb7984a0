"""Which tests belong together: those on a GPU need a compiler for it, others a made-up one."""


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
