"""``numnorm compile``: kernels compiled ahead into the cache."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from numnorm.commands.compile import calls, folders
from numnorm.commands.terminal import CommandError, CommandParser
from numnorm.operating_system import usable_processors

_DESCRIPTION = """\
Compile the kernels of norms ahead, in parallel processes, so that no call has to wait for the
compiler: when a container image is built, or once for a cluster or before tests.

They are kept in NUMBA_CACHE_DIR if it is set, else beside the package or, where that cannot be
written to, in the user's cache. What is there already is not compiled again. Kernels are for the
processor of this machine, for the settings of Numba in the environment, and for this user; those
that root has compiled are for all users."""

_EPILOG = """\
examples:
  numnorm compile
  numnorm compile layer_norm lstm --dtype float32
  numnorm compile --clean"""

_NORMS = (*calls.PARAMETERS, *calls.MOVING, *calls.ORDER)
_DEFAULT_DTYPES = ("float32", "float64")
_MIB = 2**20


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        The words after ``numnorm compile``.

    Returns
    -------
    int
        The exit status, 0; errors are raised.
    """
    arguments = _parser().parse_args(argv)
    known = (*_NORMS, *calls.CELLS)
    unknown = [name for name in arguments.norms if name not in known]
    if unknown:
        raise CommandError(f"NORM must be one of {', '.join(known)}, got {unknown[0]}")
    if arguments.jobs < 1:
        raise CommandError(f"--jobs must be at least 1, got {arguments.jobs}")
    if arguments.clean:
        _clean()
    elif arguments.list:
        _list()
    else:
        _compile(arguments.norms or list(_NORMS), arguments.dtype, arguments.jobs)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="numnorm compile",
        usage="%(prog)s [NORM ...] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    names = f"{', '.join(_NORMS)} (default: all of these); {', '.join(calls.CELLS)}"
    parser.add_argument("norms", nargs="*", metavar="NORM", help=names)
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=calls.DTYPES,
        default=_DEFAULT_DTYPES,
        metavar="DTYPE",
        help=f"{', '.join(calls.DTYPES)} (default: {' '.join(_DEFAULT_DTYPES)})",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=usable_processors(),
        metavar="N",
        help="processes at a time (default: one for each processor, here %(default)s)",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="show what is there, and stop")
    instead.add_argument(
        "--clean", action="store_true", help="remove what no installed version can use, and stop"
    )
    return parser


def _compile(norms: Sequence[str], dtypes: Sequence[str], processes: int) -> None:
    if "bfloat16" in dtypes:
        try:
            importlib.import_module("ml_dtypes")
        except ImportError as error:
            raise CommandError(
                'bfloat16 needs ml_dtypes: pip install "numnorm[bfloat16]"'
            ) from error
    from numba.core import config

    from numnorm.backends.cpu.compiler.cache import directory, is_kept

    if config.DISABLE_JIT:
        raise CommandError("NUMBA_DISABLE_JIT is set, so that nothing is compiled")
    todo = calls.missing(calls.jobs(norms, dtypes))
    if not todo:
        print("Nothing to compile: all of these kernels are in the cache.")
        return
    folder = directory()
    if folder is None:
        raise CommandError("no folder can be written to: set NUMBA_CACHE_DIR to one that can")
    if not is_kept():
        raise CommandError("kernels are not kept: the sources are in an archive, or have changed")
    before = _kernels(folder)
    calls.compile_ahead(todo, processes)
    print(f"Compiled {len(_kernels(folder) - before)} kernels into {folder}.")


def _kernels(folder: Path) -> set[Path]:
    return set(folder.rglob("*.bin"))


def _list() -> None:
    from numnorm.backends.cpu.compiler import cache

    for folder in cache.folders():
        kept = "new kernels are kept here" if folder == cache.directory() else "only read"
        print(f"{folder} ({kept})")
        found = list(folders.builds(folder))
        for build in found:
            use = "nobody can use them" if build.stale else "in use"
            size = f"{build.size / _MIB:.1f} MiB"
            print(f"  {_printable(build.name)}: {build.kernels} kernels, {size}, {use}")
            for origin in build.origins:
                python = str(origin.get("python")).partition(" ")[0]
                told = f"{origin.get('package')}, Python {python}, {origin.get('processor')}"
                print(f"    {_printable(told)}")
        if not found:
            print("  no kernels")


def _printable(text: str) -> str:
    """Return a text of another user without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _clean() -> None:
    from numnorm.backends.cpu.compiler import cache

    for folder in cache.folders():
        count, size = folders.clean(folder)
        print(f"{folder}: removed {count} files, {size / _MIB:.1f} MiB")
