"""A hash of the loaded sources: the key of the kernels compiled from them."""

import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The sources of the CPU kernels; CUDA kernels are not cached with this key.
_COMPILED_FOLDERS = ("backends/contract", "backends/cpu", "backends/formulas", "norms")


def _files() -> list[str]:
    """Return every source file whose code may be part of a kernel."""
    folders = (os.path.join(PACKAGE, *folder.split("/")) for folder in _COMPILED_FOLDERS)
    walks = (entry for folder in folders for entry in os.walk(folder))
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in walks
        for name in names
        if name.endswith(".py")
    )


def _stamps() -> list[tuple[str, int, int]]:
    stats = [(path, os.stat(path)) for path in _files()]
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
    import hashlib  # here, to keep `import numnorm` fast

    digest = hashlib.blake2b(digest_size=16)
    for path in _files():
        digest.update(os.path.relpath(path, PACKAGE).replace(os.sep, "/").encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()
