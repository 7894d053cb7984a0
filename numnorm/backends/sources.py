"""A hash of the loaded sources, on which the compiled kernels depend."""

import functools
import os
from collections.abc import Iterable

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The sources of the CPU kernels; CUDA kernels are not cached with this key.
COMPILED_FOLDERS = ("backends/contract", "backends/cpu", "backends/formulas", "norms")


def _files(package: str, folders: Iterable[str]) -> list[str]:
    """Return every source file of some folders of a package."""
    paths = (os.path.join(package, *folder.split("/")) for folder in folders)
    walks = (entry for path in paths for entry in os.walk(path))
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in walks
        for name in names
        if name.endswith(".py")
    )


def _stamps() -> list[tuple[str, int, int]]:
    stats = [(path, os.stat(path)) for path in _files(PACKAGE, COMPILED_FOLDERS)]
    return [(path, stat.st_mtime_ns, stat.st_size) for path, stat in stats]


_AT_IMPORT = _stamps()


@functools.cache
def source_token() -> str | None:
    """Return a hash of the sources, or None if it could differ from that of the loaded code.

    It could if the sources have changed since `import numnorm`, or if there are none (a zip
    archive, or bytecode alone).
    """
    if not _AT_IMPORT or _stamps() != _AT_IMPORT:
        return None
    return hash_of_sources(PACKAGE, COMPILED_FOLDERS)


def hash_of_sources(package: str, folders: Iterable[str]) -> str:
    """Return a hash of the names and contents of the source files in folders of a package."""
    import hashlib  # here, to keep `import numnorm` fast

    digest = hashlib.blake2b(digest_size=16)
    for path in _files(package, folders):
        digest.update(os.path.relpath(path, package).replace(os.sep, "/").encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()
