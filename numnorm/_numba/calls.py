"""Calls that Numba is to refuse: of functions that are not compiled, and without their keywords.

In a `try` block Numba drops keywords on Python 3.11 and 3.12: there an instruction KW_NAMES
precedes the call, and Numba forgets what it said. The arguments would arrive by position, beta as
gamma.
"""

import dis
import functools
import inspect
import sys
from collections import Counter
from types import CodeType
from typing import Any

from numba.core import errors, ir
from numba.core.rewrites import Rewrite, register_rewrite

from numnorm._numba.homes import HOMES, NORMS
from numnorm.keywords import written_sum

_DROPS_KEYWORDS = sys.version_info < (3, 13)


@register_rewrite("before-inference")
class RefusedCalls(Rewrite):
    """Numba shows it each function before types are known. It rewrites nothing."""

    def __init__(self, state: Any = None) -> None:
        super().__init__(state)
        code = state.func_ir
        assigned = (s.value for b in code.blocks.values() for s in b.find_insts(ir.Assign))
        names = (v.value for v in assigned if isinstance(v, ir.Global | ir.FreeVar))
        self._calls: list[Any] = []
        if any(map(_is_own, names)):
            self._calls = [c for b in code.blocks.values() for c in b.find_exprs("call")]

    def match(self, func_ir: Any, block: Any, typemap: Any, calltypes: Any) -> bool:
        """Raise an error for a call of a function of numnorm that is to be refused."""
        kept = Counter(call.loc.line for call in self._calls if call.kws)
        for call in block.find_exprs("call") if self._calls else ():
            function = _called(func_ir, call)
            if not _is_own(function):
                continue
            _check_is_compiled(function, call)
            line = call.loc.line
            given = _lines_with_keywords(func_ir.func_id.code) if _DROPS_KEYWORDS else Counter()
            if not call.kws and kept[line] < given[line]:
                version = ".".join(map(str, sys.version_info[:2]))
                raise errors.UnsupportedError(
                    f"Numba drops the keywords of {function.__name__} in a try block on Python "
                    f"{version}: move the call into a compiled function of its own",
                    call.loc,
                )
        return False


def _is_own(value: Any) -> bool:
    """Return whether a value is a module, function or class of numnorm."""
    name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "numnorm"


def _called(func_ir: Any, call: Any) -> Any:
    """Return what is called, or None if only types will tell."""
    try:
        return func_ir.infer_constant(call.func)
    except errors.ConstantInferenceError:
        return None


def _check_is_compiled(function: Any, call: Any) -> None:
    """Raise for a public function that compiled code cannot call."""
    if not inspect.isfunction(function):
        return
    for module, prefix in (("numnorm._public", ""), ("numnorm.rnn", "rnn.")):
        name = prefix + function.__name__
        is_public = getattr(sys.modules.get(module), function.__name__, None) is function
        if is_public and name not in HOMES and name not in NORMS:
            written = written_sum(name)
            advice = (
                "call it outside of compiled functions, or in a block `with numba.objmode(...)`"
                if written is None
                else f"write the sum, numnorm.{written}"
            )
            text = f"numnorm.{name} is not compiled: {advice}"
            raise errors.UnsupportedError(text, call.loc)


@functools.lru_cache(maxsize=64)
def _lines_with_keywords(code: CodeType) -> Counter[int]:
    """Return how many calls with keywords each line has in blocks that handle exceptions."""
    lines = Counter[int]()
    if not code.co_exceptiontable:
        return lines
    # Numba uses these entries, too, which have no public name.
    handled: Any = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    names_at: int | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "KW_NAMES":
            names_at = instruction.offset
        elif instruction.opname == "CALL" and names_at is not None:
            where = instruction.positions
            if where and any(entry.start <= names_at < entry.end for entry in handled):
                lines[where.lineno or 0] += 1
            names_at = None
    return lines
