"""Functions of a place, such as `numnorm.xarray`, that are made from numnorm's public functions.

A place takes the signature and the docstring of a public function, changes what is its own, and
gets a plain function: it has a name in its module, so that it pickles, and Python itself checks the
arguments of a call.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numnorm.keywords import unexpected

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def option(name: str, annotation: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter that is passed by keyword."""
    return inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, without ``**others``."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}


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
    names = list(shown.parameters)
    defaults = {f"_{n}": p.default for n, p in shown.parameters.items()}
    written, keywords_only = [], False
    for parameter in shown.parameters.values():
        if parameter.kind is KEYWORD_ONLY and not keywords_only:
            keywords_only = True
            written.append("*")
        required = parameter.default is parameter.empty
        written.append(parameter.name if required else f"{parameter.name}=_{parameter.name}")
    packed = ", ".join(f"{n!r}: {n}" for n in names)
    # As `collections.namedtuple` makes its functions: a signature of Python's own is checked by it.
    source = (
        f"def maker({', '.join(['_call', '_unexpected', *defaults])}):\n"
        f"    def {name}({', '.join(written)}, **_others):\n"
        f"        if _others:\n            raise _unexpected({name}, _others)\n"
        f"        return _call({{{packed}}})\n"
        f"    return {name}\n"
    )
    made: dict[str, Any] = {}
    # With the globals of its module, or doctest would not find its examples.
    exec(compile(source, f"<{module}.{name}>", "exec"), vars(sys.modules[module]), made)
    function = made["maker"](call, unexpected, **defaults)
    function.__qualname__ = name
    function.__doc__ = docstring
    function.__annotations__ = {n: p.annotation for n, p in shown.parameters.items()}
    function.__annotations__["return"] = returns
    function.__signature__ = shown
    return function  # type: ignore[no-any-return]


# Docstrings


def summary_of(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring; of none, an empty string."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def parameter_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of a numpydoc section of parameters: the line of the types, and the text.

    An entry of several parameters stands under each of their names.
    """
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)",
        inspect.getdoc(function) or "",
        re.DOTALL | re.MULTILINE,
    )
    texts: dict[str, str] = {}
    if section is None:
        return texts
    for entry in re.finditer(r"^(\w[\w, ]*?)( :.*)?\n((?:^ .*\n|^\n)*)", section[1], re.MULTILINE):
        names, kinds, text = entry.groups(default="")
        for name in names.split(", "):
            texts[name] = f"{kinds}\n{text.rstrip()}"
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
    entries: list[tuple[list[str], str]] = []
    for name, text in parameters.items():
        if entries and entries[-1][1] == text:
            entries[-1][0].append(name)
        else:
            entries.append(([name], text))
    listed = "\n".join(f"{', '.join(names)}{text}" for names, text in entries)
    return (
        f"{summary}\n\nParameters\n----------\n{listed}\n\n"
        f"Returns\n-------\n{returns}\n\n{ending.strip()}\n"
    )
