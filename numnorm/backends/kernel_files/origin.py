"""Which installation uses the kernels of a folder, and whether it still can."""

import importlib.util
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from numnorm.backends.sources import PACKAGE, Sources, hash_of_sources, holder


def content(processor: str, sources: Sources, libraries: tuple[str, ...]) -> bytes:
    """Return a description of this installation as JSON."""
    origin = {
        "package": PACKAGE,
        "folders": sources.folders,
        "sources": sources.token(),
        "interpreter": sys.executable,
        "python": sys.version,
        "libraries": {name: _library(name) for name in libraries},
        "processor": processor,
        "host": platform.node(),
    }
    return json.dumps(origin, indent=1).encode()


def _library(name: str) -> dict[str, str | None]:
    """Return the folder that an installed library lies in, and its version if it is known."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = None
    return {"folder": str(Path(spec.origin).parents[1]), "version": installed}


def is_stale(origin: dict[str, Any], trusted: bool) -> bool:
    """Return whether the installation of an origin is gone, or would compile other kernels now.

    What cannot be known, as of a folder that only another machine has, counts as usable. Unless
    the origin is trusted, nothing is read from the places that it names.
    """
    here = bool(origin["host"] == platform.node())
    libraries = origin["libraries"]
    paths = [
        holder(origin["package"]),
        *(os.path.join(v["folder"], k) for k, v in libraries.items()),
    ]
    paths += [origin["interpreter"]] * bool(origin["interpreter"])
    if not all(map(os.path.exists, paths)):
        return here
    if origin["interpreter"] == sys.executable and origin["python"] != sys.version:
        return True
    if not trusted:
        return False
    if any(_is_replaced(name, **library) for name, library in libraries.items()):
        return True
    return bool(hash_of_sources(origin["package"], origin["folders"]) != origin["sources"])


def _is_replaced(name: str, folder: str, version: str | None) -> bool:
    """Return whether a folder has another version of a library now."""
    found = {installed.version for installed in distributions(name=name, path=[folder])}
    return bool(found) and version is not None and version not in found
