"""A hash of the loaded sources, on which the compiled kernels depend."""

import functools
import os
from collections.abc import Iterable

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def holder(package: str) -> str:
    """Return the folder of a package, or the zip archive in which it lies."""
    path = package
    while path and not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else package


def _files(package: str, folders: Iterable[str]) -> list[str]:
    """Return every source file of some folders of a package; one of them may be a file itself.

    Of a package in a zip archive it is the archive.
    """
    if holder(package) != package:
        return [holder(package)]
    paths = [os.path.join(package, *folder.split("/")) for folder in folders]
    walks = (entry for path in paths for entry in os.walk(path))
    inside = (os.path.join(folder, name) for folder, _, names in walks for name in names)
    files = (path for path in paths if os.path.isfile(path))
    return sorted(path for path in (*files, *inside) if path.endswith(".py"))


def _stamps(folder: str) -> list[tuple[str, int, int]]:
    """Return the path, the time and the size of every source file of a folder, as they are now."""
    stats = [(path, os.stat(path)) for path in _files(PACKAGE, [folder])]
    return [(path, stat.st_mtime_ns, stat.st_size) for path, stat in stats]


# As they were at the first look: several objects have the same folders.
_first_stamps = functools.cache(_stamps)


class Sources:
    """Some folders and files of the package, as they were when numnorm first looked at them."""

    def __init__(self, folders: Iterable[str]) -> None:
        self.folders = tuple(folders)
        self._stamps = list(map(_first_stamps, self.folders))

    @functools.cache  # noqa: B019  # the objects live as long as the module
    def token(self) -> str | None:
        """Return a hash of the sources, or None if it could differ from that of the loaded code.

        It could if the sources have changed since then, or if there are none (bytecode alone).
        """
        if not any(self._stamps) or list(map(_stamps, self.folders)) != self._stamps:
            return None
        return hash_of_sources(PACKAGE, self.folders)


def hash_of_sources(package: str, folders: Iterable[str]) -> str:
    """Return a hash of the names and contents of the source files in folders of a package."""
    import hashlib  # here, to keep `import numnorm` fast

    from numnorm.files import open_regular

    digest = hashlib.blake2b(digest_size=16)
    for path in _files(package, folders):
        digest.update(os.path.relpath(path, package).replace(os.sep, "/").encode() + b"\0")
        with open_regular(path, links=True) as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()


# The sources of the CPU's kernels, recorded when numnorm is imported.
CPU = Sources(("backends/contract", "backends/cpu", "backends/formulas", "layouts.py", "norms"))
# What compiled functions of users depend on if they call numnorm.
NUMBA = Sources((*CPU.folders, "derived.py", "_numba", "rnn"))
# What the executables that JAX compiles depend on if they call numnorm.
JAX = Sources((*CPU.folders, "derived.py", "jax", "rnn"))
