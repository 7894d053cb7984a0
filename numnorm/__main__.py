"""The command line: ``python -m numnorm demo``, ``apply`` and ``doctor``."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import REMAINDER, SUPPRESS
from collections.abc import Callable, Sequence

from numnorm import __version__
from numnorm.commands.terminal import CommandError, CommandParser, one_line, signals_raise

COMMANDS = {
    "demo": "train small networks with each norm, or LSTMs, and compare them",
    "apply": "normalize an array of any size in a file, block by block",
    "compile": "compile kernels ahead, for containers, clusters and tests",
    "doctor": "show what numnorm runs on here, and test every norm",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names.

    Parameters
    ----------
    argv : sequence of str, optional
        The words after ``python -m numnorm``. Default: ``sys.argv[1:]``.

    Returns
    -------
    int
        The exit status: 0, or 1 where a test failed, or 2 after an error.
    """
    arguments = _parser().parse_args(argv)

    def command(words: Sequence[str]) -> int:
        # Imported late, so that no command loads what another needs, and inside `_run`, which
        # handles Ctrl-C during the import.
        module = importlib.import_module(f"numnorm.commands.{arguments.command}.command")
        return int(module.main(words))

    return _run(f"numnorm {arguments.command}", command, arguments.arguments)


def _parser() -> CommandParser:
    commands = "\n".join(f"  {name:<8}{summary}" for name, summary in COMMANDS.items())
    parser = CommandParser(
        prog="numnorm",
        usage="%(prog)s [-h] [--version] {demo,apply,compile,doctor} ...",
        description="Normalization layers on arrays, from the command line.",
        epilog=f"commands:\n{commands}\n\n`numnorm COMMAND --help` tells what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", choices=COMMANDS, help=SUPPRESS)
    parser.add_argument("arguments", nargs=REMAINDER, help=SUPPRESS).required = False
    return parser


def _run(name: str, command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        with signals_raise():
            status = command(arguments)
        if sys.stdout is not None:  # None after `>&-`
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader left (`| head`): flushing the buffer must not fail again at exit.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except (CommandError, OSError, MemoryError) as error:
        print(f"{name}: error: {one_line(error)}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
