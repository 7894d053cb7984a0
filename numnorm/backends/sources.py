"""Which sources this process has loaded, as a name for what was compiled from them."""

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_COMPILED_ROOMS = ("backends", "norms")


def _files() -> list[Path]:
    """Return every source file whose code may end in a kernel."""
    return sorted(path for room in _COMPILED_ROOMS for path in (_PACKAGE / room).rglob("*.py"))


def _stamps() -> list[tuple[str, int, int]]:
    stats = [(str(path), path.stat()) for path in _files()]
    return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]


_AT_IMPORT = _stamps()


@functools.cache
def source_token() -> str | None:
    """Return a hash of the sources; None where it would not be that of what has been loaded.

    That is so where they have changed since `import numnorm`, and where there are none: in an
    archive, or with bytecode alone.
    """
    if not _AT_IMPORT or _stamps() != _AT_IMPORT:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for path in _files():
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
