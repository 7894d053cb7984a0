"""``numnorm doctor``: what numnorm runs on, and whether it computes correctly here."""

from __future__ import annotations

from collections.abc import Sequence

from numnorm.commands import facts, selftest
from numnorm.commands.errors import CommandParser

_DESCRIPTION = """\
Show the versions, the processor, threads, BLAS, cache and GPU that numnorm meets here, one
`key: value` a line, and test every norm, forward and backward: the result against a plain float64
definition, the gradients against numerical differentiation of that definition. The exit status is
1 if a test fails. The first run compiles every norm, which may take a minute."""

_KEY_WIDTH = 24


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        The words after ``numnorm doctor``.

    Returns
    -------
    int
        The exit status: 1 if a norm is wrong, else 0.
    """
    parser = CommandParser(prog="numnorm doctor", description=_DESCRIPTION)
    choices = tuple(selftest.TOLERANCES)
    parser.add_argument("--dtype", choices=choices, default=choices[0], help="dtype of the tests")
    arguments = parser.parse_args(argv)
    for report in (facts.versions, facts.processor, facts.cache, facts.blas, facts.gpu):
        for key, value in report():
            _show(key, value)
    failures = 0
    for name, passed, details in selftest.run(arguments.dtype):
        verdict = "ok" if passed else "FAILED"
        _show(f"test {name}", f"{verdict} ({details})")
        failures += not passed
    # After the tests, because a threading layer is chosen when the first parallel kernel runs.
    for key, value in facts.threads():
        _show(key, value)
    total = len(selftest.cases())
    _show("result", f"{failures} of {total} norms FAILED" if failures else "every norm is ok")
    return 1 if failures else 0


def _show(key: str, value: str) -> None:
    print(f"{key + ':':<{_KEY_WIDTH}}{value}", flush=True)
