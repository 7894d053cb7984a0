"""The files of compiled kernels: each appears whole, and starts with a digest of its content.

Nothing here imports a compiler.
"""

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from numnorm.backends.kernel_files import trust
from numnorm.backends.sources import PACKAGE, Sources

_DIGEST_SIZE = 32
# As the umask allows, but nobody else may write, even where it would allow that: see `trust`.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def read(path: Path) -> bytes | None:
    """Return the content of a file; None if it is untrusted or damaged.

    Raises
    ------
    OSError
        If there is no such file.
    """
    content = trust.read_trusted(path)
    if content is None:
        return None
    digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return payload if _digest(path, payload) == digest else None


def write(path: Path, payload: bytes) -> None:
    """Write a kernel's file whole; the folder of its build is made if it is missing."""
    path.parent.mkdir(_FOLDER_MODE, exist_ok=True)
    _write_whole(path, _digest(path, payload) + payload)


def record_origin(
    folder: Path, processor: str, sources: Sources, libraries: tuple[str, ...]
) -> None:
    """Write down, once, that this installation uses the folder of a build, if it is writable."""
    place = f"{PACKAGE}\0{sys.executable}"
    name = f"origin-{hashlib.blake2b(place.encode(), digest_size=8).hexdigest()}.json"
    path = folder / name
    if path.exists() or not os.access(folder, os.W_OK):
        return
    from numnorm.backends.kernel_files import origin  # late: it imports what loading does not need

    with contextlib.suppress(Exception):
        _write_whole(path, origin.content(processor, sources, libraries))


def _digest(path: Path, payload: bytes) -> bytes:
    """Return a digest of a file's content, its name and the name of its folder."""
    name = f"{path.parent.name}/{path.name}"
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()


def _write_whole(path: Path, content: bytes) -> None:
    # Not by `tempfile`, whose files only their owner can read: others may share the folder.
    temporary = path.with_name(f"{path.stem}-{os.urandom(6).hex()}.tmp")
    try:
        with open(temporary, "xb", opener=_create) as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _create(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
