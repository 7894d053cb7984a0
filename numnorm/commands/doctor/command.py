"""``numnorm doctor``: what numnorm runs on, and whether it computes correctly here."""

from __future__ import annotations

from collections.abc import Sequence

from numnorm.commands.doctor import facts, selftest
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
    outcomes = []
    for outcome in selftest.run(arguments.dtype):
        verdict = "ok" if outcome.passed else "FAILED"
        _show(f"test {outcome.name}", f"{verdict} ({outcome.details})")
        outcomes.append(outcome.passed)
    # After the tests, because it starts all threads.
    for key, value in facts.threads():
        _show(key, value)
    failures = outcomes.count(False)
    _show("result", f"{failures} of {len(outcomes)} tests FAILED" if failures else "all is well")
    return 1 if failures else 0


def _show(key: str, value: str) -> None:
    print(f"{key + ':':<{_KEY_WIDTH}}{value}", flush=True)
