"""Which sources this process has loaded, as a name for what was compiled from them."""

import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Where the source of CPU kernels stands. A CUDA file is in none of them.
_COMPILED_FOLDERS = ("backends/contract", "backends/cpu", "backends/formulas", "norms")


def _files() -> list[str]:
    """Return every source file whose code may end in a kernel."""
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
    """Return a hash of the sources; None where it would not be that of what has been loaded.

    That is so where they have changed since `import numnorm`, and where there are none: in an
    archive, or with bytecode alone.
    """
    if not _AT_IMPORT or _stamps() != _AT_IMPORT:
        return None
    import hashlib  # which `import numnorm` need not wait for

    digest = hashlib.blake2b(digest_size=16)
    for path in _files():
        digest.update(os.path.relpath(path, PACKAGE).replace(os.sep, "/").encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()
