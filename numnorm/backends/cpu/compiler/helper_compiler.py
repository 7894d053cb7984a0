"""A Numba compiler for the helpers that kernels inline.

Numba optimizes and links every function that it compiles, together with all its callees. A helper
needs neither: it is optimized as part of the kernel that inlines it. Skipping both makes the
first call of a kernel much faster.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _HelperLibrary(JITCodeLibrary):
    """A helper's LLVM code, neither optimized nor linked."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return no address: kernels inline the helper, and nothing else calls it."""
        return 0

    @property
    def codegen(self) -> Any:
        """The object on which Numba calls `set_env`, which needs linked code."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing."""


class HelperCompiler(Compiler):
    """Numba's compiler without optimizing and linking."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _HelperLibrary(target_context.codegen(), "helper")
        super().__init__(typing_context, target_context, library, *rest)
