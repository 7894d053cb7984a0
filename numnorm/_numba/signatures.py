"""Functions with the parameters of a public function, for Numba, which compares their names."""

import inspect
from collections.abc import Callable
from typing import Any

from numnorm.derived import KEYWORD_ONLY, parameters_of


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a public function as Numba takes it."""
    return inspect.Signature([as_compiled(own) for own in parameters_of(function).values()])


def as_compiled(own: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as Numba takes it, which compares it with the compiled function's.

    Numba does not call functions with keyword-only parameters: these can be given by position.
    """
    if own.kind is not KEYWORD_ONLY:
        return own.replace(annotation=own.empty)
    default = None if own.default is own.empty else own.default
    return inspect.Parameter(own.name, own.POSITIONAL_OR_KEYWORD, default=default)


def compiled_call(
    function: Callable[..., Any], expression: str, **names: Any
) -> Callable[..., Any]:
    """Return a function with the parameters of a public one, which Numba compiles in its place.

    Parameters
    ----------
    function : callable
        The public function.
    expression : str
        What the function returns, in terms of its parameters and of `names`.
    **names
        Compiled functions.
    """
    source = f"def call{signature_of(function)}:\n    return {expression}\n"
    # A cached caller is loaded only if each function that it has compiled is in a module.
    namespace = {**names, "__name__": __name__}
    exec(compile(source, f"<{function.__name__}>", "exec"), namespace)
    return namespace["call"]
