"""Numba compilers for kernels and for the helpers that kernels inline.

Numba optimizes and links every function that it compiles, together with all its callees. A helper
needs neither: it is optimized as part of the kernel that inlines it. Nor does it need the passes
that prepare Python features which no helper has. Leaving both out makes a first call much faster.
"""

import gc
from typing import Any

from llvmlite.binding import Linkage
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass


class _HelperLibrary(JITCodeLibrary):
    """A helper's LLVM code, neither optimized as a whole nor linked."""

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


class _SharedLibrary(_HelperLibrary):
    """The LLVM code of a helper that is not inlined."""

    def add_ir_module(self, module: Any) -> None:
        """Add LLVM code."""
        for function in module.functions:
            if not function.is_declaration:
                function.attributes.add("noinline")
        super().add_ir_module(module)


class _KernelLibrary(JITCodeLibrary):
    """A kernel's LLVM code, with a copy of its own of each helper that is not inlined."""

    def _optimize_final_module(self) -> None:
        # Names of helpers are unique in a process only: a kernel from a file could have the same.
        # Private ones have no symbol. With one, the loader would give it to functions of other
        # modules, as Numba's `NRT_decref`, which is optimized for this kernel's arguments alone.
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.private
        super()._optimize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _LoweringWithoutCounts(typed_passes.NativeLowering):
    """Lowering to LLVM code that counts no references to arrays: see `KernelCompiler`."""

    _name = "lowering_without_counts"

    def run_pass(self, state: Any) -> bool:
        state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        return bool(super().run_pass(state))


_HELPER_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.InlineOverloads,
    typed_passes.IRLegalization,
)


class _HelperPasses(PassManager):
    """The passes of a helper, which do not rebuild the control flow after each pass."""

    _ENFORCING = False


class HelperCompiler(CompilerBase):
    """Numba's compiler with fewer passes, without optimizing and linking."""

    _library = _HelperLibrary
    _lowering = _LoweringWithoutCounts

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = self._library(target_context.codegen(), "helper")
        super().__init__(typing_context, target_context, library, *rest)

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes."""
        passes = _HelperPasses("helper")
        for one in (*_HELPER_PASSES, self._lowering, typed_passes.NoPythonBackend):
            passes.add_pass(one, one.__name__)
        passes.finalize()
        return [passes]


class SharedHelperCompiler(HelperCompiler):
    """The same for a helper that is not inlined."""

    _library = _SharedLibrary


class CountingHelperCompiler(HelperCompiler):
    """The same for a helper of other compiled code, which counts references to arrays."""

    _lowering = typed_passes.NativeLowering


class KernelCompiler(Compiler):
    """Numba's compiler for the entries of kernels.

    Kernels count no references: their callers keep the arrays alive, and `release` frees what a
    kernel allocates. Compiling makes millions of objects that live on, which the garbage collector
    would visit again and again, so it rests meanwhile.
    """

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _KernelLibrary(target_context.codegen(), "kernel")
            library.enable_object_caching()
        super().__init__(typing_context, target_context, library, *rest)

    def compile_extra(self, function: Any) -> Any:
        """Compile a function."""
        if not gc.isenabled():
            return super().compile_extra(function)
        gc.disable()
        try:
            return super().compile_extra(function)
        finally:
            gc.enable()
