"""Functions for another library or compiler, made from the signature of a public function.

So its arguments, and what its docstring says of them, are written once.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

_SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n\w[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_CITATION = re.compile(r"(\s*)\[\d+\]_([.,:;]?)(\s*)")


def signature_for(
    public: Callable[..., Any],
    types: Mapping[str, Any],
    returns: Any = inspect.Signature.empty,
    without: Collection[str] = (),
) -> inspect.Signature:
    """Return the signature of a public function with other types, `Any` where there is none.

    It lacks the arguments whose names are in `without`.
    """
    parameters = inspect.signature(public).parameters.values()
    own = [
        p.replace(annotation=types.get(p.name, "Any")) for p in parameters if p.name not in without
    ]
    return inspect.Signature(own, return_annotation=returns)


def parameters_section(
    public: Callable[..., Any], names: Collection[str], own: Mapping[str, str]
) -> str:
    """Return the section "Parameters" of a docstring, for arguments with these names.

    Its entries are those of the public function without citations, except those in `own`.
    """
    found = _SECTION.search(inspect.getdoc(public) or "")
    entries = re.split(r"\n(?=\S)", found[1]) if found else []
    lines = ["Parameters", "----------"]
    for entry in entries:
        head, _, text = entry.partition("\n")
        every, colon, kind = head.partition(" : ")
        kept = [name for name in every.split(", ") if name in names]
        if kept and kept[0] in own:
            lines.append(own[kept[0]])
        elif kept:
            lines.append(", ".join(kept) + colon + kind)
            lines += [_CITATION.sub(_without_citation, text)] if text else []
    return "\n".join(lines)


def _without_citation(found: re.Match[str]) -> str:
    """Return the mark after a citation, and the space or the end of a line beside it."""
    before, mark, after = found.groups()
    return mark + (before if "\n" in before else after)


def derived(
    namespace: dict[str, Any],
    name: str,
    signature: inspect.Signature,
    run: Callable[..., Any],
    docstring: str | None = None,
    without: Collection[str] = (),
) -> Callable[..., Any]:
    """Return a function with a signature that calls `run` with all its arguments.

    `namespace` is the ``globals()`` of the module in which it has this name, by which it is
    pickled. `run` takes the keyword-only arguments by keyword, and the others by position; it does
    not get those whose names are in `without`.
    """
    parameters = signature.parameters.values()
    by_keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    by_position = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    heads = [_head(p) for p in by_position]
    heads += ["*", *(_head(p) for p in by_keyword)] if by_keyword else []
    arguments = [p.name for p in by_position if p.name not in without]
    arguments += [f"{p.name}={p.name}" for p in by_keyword if p.name not in without]
    # A text, as in `dataclasses`: Python itself checks a call, and a compiler sees parameters.
    text = (
        f"def make(_run):\n"
        f"    def {name}({', '.join(heads)}):\n"
        f"        return _run({', '.join(arguments)})\n"
        f"    return {name}\n"
    )
    made: dict[str, Any] = {}
    exec(text, namespace, made)
    function: FunctionType = made["make"](run)
    function.__defaults__ = tuple(p.default for p in by_position if p.default is not p.empty)
    function.__kwdefaults__ = {p.name: p.default for p in by_keyword if p.default is not p.empty}
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        annotations["return"] = signature.return_annotation
    function.__annotations__ = annotations
    function.__qualname__ = name
    function.__doc__ = docstring
    return function


def _head(parameter: inspect.Parameter) -> str:
    """Return a parameter as it stands in the text; its default is put in later."""
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}=None"
