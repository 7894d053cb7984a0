"""Errors of the commands: one line on stderr and exit status 2."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, NoReturn


class CommandError(Exception):
    """An error for the user, in one line."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps its line breaks.

    Parameters
    ----------
    **options
        The arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and only `message`: the usage is in ``--help``."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def one_line(error: BaseException) -> str:
    """Return the message of `error` without line breaks.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str
        For an error of the operating system, the file and the reason without its number.
    """
    if isinstance(error, OSError) and error.strerror:
        file = f"{error.filename}: " if error.filename is not None else ""
        return f"{file}{error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    return " ".join(str(error).split())


def require(name: str, extra: str = "demo") -> Any:
    """Import a module of an optional extra.

    Parameters
    ----------
    name : str
        The full name of the module.
    extra : str, default "demo"
        The name of the extra.

    Returns
    -------
    module
        The module; typed as Any because not all of them carry types.

    Raises
    ------
    CommandError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise CommandError(
            f'{package} cannot be imported ({one_line(error)}): pip install "numnorm[{extra}]"'
        ) from error
