"""What a frozen program that imports numnorm holds: PyInstaller runs this file.

Modules are imported by name when they are first used, which PyInstaller does not see. Those for
another library come if the program imports them.
"""

from PyInstaller.utils.hooks import collect_submodules

_OTHERS = ("_pyinstaller", "autograd", "commands", "_dask", "cuda", "jax", "sklearn", "xarray")
_OPTIONAL = tuple(f"numnorm.{name}" for name in (*_OTHERS, "backends.cuda"))


def _always(name: str) -> bool:
    return not f"{name}.".startswith(tuple(f"{other}." for other in _OPTIONAL))


hiddenimports = collect_submodules("numnorm", filter=_always)
# A hash of the sources names the kernels on disk.
module_collection_mode = "pyz+py"
