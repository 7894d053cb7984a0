"""Functions of a place, such as `numnorm.xarray`, that are made from numnorm's public functions.

A place takes the signature and the docstring of a public function, changes what is its own, and
gets a plain function: it has a name in its module, so that it pickles, and Python itself checks the
arguments of a call. Functions of arrays come from `plain_function`, whose `call` gets all arguments
by name; cells and compiled functions from `derived`, which passes them on as they are.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from numnorm.keywords import unexpected

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY

_SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_CITATION = re.compile(r"(\s*)\[\d+\]_([.,:;]?)(\s*)")


def option(name: str, annotation: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter that is passed by keyword."""
    return inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, without ``**others``."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}


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


def plain_function(
    name: str,
    module: str,
    parameters: Iterable[inspect.Parameter],
    returns: str,
    call: Callable[[dict[str, Any]], Any],
    docstring: str | None,
) -> Callable[..., Any]:
    """Return a function of a module that hands all its arguments by name to `call`.

    Parameters
    ----------
    name, module : str
        Where the function stands.
    parameters : iterable of inspect.Parameter
    returns : str
        The annotation of the result.
    call : callable
        ``call(arguments)`` with a dictionary.
    docstring : str or None
    """
    shown = inspect.Signature(list(parameters), return_annotation=returns)
    packed = ", ".join(f"{name!r}: {name}" for name in shown.parameters)
    body = f"if _others: raise _unexpected({name}, _others)", f"return _call({{{packed}}})"
    own = {"_call": call, "_unexpected": unexpected}
    return _made(vars(sys.modules[module]), name, shown, body, own, docstring, others=True)


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
    taken = [p for p in signature.parameters.values() if p.name not in without]
    words = [f"{p.name}={p.name}" if p.kind is KEYWORD_ONLY else p.name for p in taken]
    body = (f"return _call({', '.join(words)})",)
    return _made(namespace, name, signature, body, {"_call": run}, docstring)


def _made(
    namespace: dict[str, Any],
    name: str,
    signature: inspect.Signature,
    body: Iterable[str],
    own: Mapping[str, Any],
    docstring: str | None,
    *,
    others: bool = False,
) -> Callable[..., Any]:
    """Return a function with a signature and a body, whose free names are in `own`."""
    parameters = signature.parameters.values()
    defaults = {f"_{p.name}": p.default for p in parameters if p.default is not p.empty}
    written, keywords_only = [], False
    for parameter in parameters:
        if parameter.kind is KEYWORD_ONLY and not keywords_only:
            keywords_only = True
            written.append("*")
        default = f"_{parameter.name}"
        written.append(f"{parameter.name}={default}" if default in defaults else parameter.name)
    written += ["**_others"] if others else []
    lines = "".join(f"        {line}\n" for line in body)
    # A text, as in `dataclasses`: Python itself checks a call, and a compiler sees parameters.
    source = (
        f"def make({', '.join([*own, *defaults])}):\n"
        f"    def {name}({', '.join(written)}):\n{lines}"
        f"    return {name}\n"
    )
    made: dict[str, Any] = {}
    # With the globals of its module, or doctest would not find its examples.
    exec(compile(source, f"<{namespace['__name__']}.{name}>", "exec"), namespace, made)
    function = made["make"](**own, **defaults)
    function.__qualname__ = name
    function.__doc__ = docstring
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        annotations["return"] = signature.return_annotation
    function.__annotations__ = annotations
    if others:
        function.__signature__ = signature
    return function  # type: ignore[no-any-return]


# Docstrings


def summary_of(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring; of none, an empty string."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def parameter_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of a numpydoc section of parameters: the line of the types, and the text.

    An entry of several parameters stands under each of their names.
    """
    section = _SECTION.search(inspect.getdoc(function) or "")
    texts: dict[str, str] = {}
    if section is None:
        return texts
    for entry in re.finditer(r"^(\w[\w, ]*?)( :.*)?\n((?:^ .*\n|^\n)*)", section[1], re.MULTILINE):
        names, kinds, text = entry.groups(default="")
        for name in names.split(", "):
            own = _CITATION.sub(_without_citation, text.rstrip())
            texts[name] = f"{kinds}\n{own}" if own else kinds
    return texts


def docstring_of(
    summary: str, parameters: Mapping[str, str], returns: str, ending: str
) -> str | None:
    """Return a numpydoc docstring.

    Parameters
    ----------
    summary : str
    parameters : mapping
        The entry of each parameter, as `parameter_texts` gives it; neighbours with the same entry
        share one.
    returns : str
        The entry of the result.
    ending : str
        The sections after it.
    """
    if not summary:  # python -OO leaves docstrings out
        return None
    return (
        f"{summary}\n\n{_parameters_of_entries(parameters)}\n\n"
        f"Returns\n-------\n{returns}\n\n{ending.strip()}\n"
    )


def parameters_section(
    public: Callable[..., Any], names: Collection[str], own: Mapping[str, str]
) -> str:
    """Return the section "Parameters" of a docstring, for arguments with these names.

    An entry is the public function's, or stands in `own` with its line of names.
    """
    entries: dict[str, str] = {}
    replaced: set[str] = set()
    texts = parameter_texts(public)
    for name, text in texts.items():
        if name in own:
            replaced |= {other for other, same in texts.items() if same == text}
            head, colon, _ = own[name].partition(" : ")
            entries[head] = own[name].removeprefix(head) if colon else own[name]
        elif name in names and name not in replaced:
            entries[name] = text
    return _parameters_of_entries(entries)


def _parameters_of_entries(entries: Mapping[str, str]) -> str:
    """Return a section of parameters, in which neighbours with the same entry share one."""
    groups: list[tuple[list[str], str]] = []
    for name, text in entries.items():
        if groups and groups[-1][1] == text:
            groups[-1][0].append(name)
        else:
            groups.append(([name], text))
    listed = "\n".join(f"{', '.join(names)}{text}" for names, text in groups)
    return f"Parameters\n----------\n{listed}"


def _without_citation(found: re.Match[str]) -> str:
    """Return the mark after a citation, and the space or the end of a line beside it."""
    before, mark, after = found.groups()
    return mark + (before if "\n" in before else after)
