"""Compiling what only ends up inside of kernels.

Numba optimizes every function and makes it executable, a helper of a helper of a kernel as well,
each with all that it calls. A kernel's helpers need neither: it is optimized with them inside.
That halves the time of a first call.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _Ingredient(JITCodeLibrary):
    """The code of a helper as Numba writes it."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return no address: nobody calls it but a kernel, which has it inside."""
        return 0

    @property
    def codegen(self) -> Any:
        """Where Numba sets the environment of the code, which has none before it can run."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing."""


class HelperCompiler(Compiler):
    """Numba's compiler, as far as a kernel needs it of a helper."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _Ingredient(target_context.codegen(), "helper")
        super().__init__(typing_context, target_context, library, *rest)
