"""Kernels that are compiled for another processor, and not run.

A process calls `compile_for` before it imports numnorm. Its calls then compile the kernels that
they need and run none of them: results are uninitialized, and numbers 0. This file as a program
compiles the kernels of `processor_results.py`, and of the norms in `compile_kernels.py`, into the
cache of the other processor::

    NUMBA_CACHE_DIR=FOLDER python cross_compile.py TARGET --python "VERSION"

where VERSION is `sys.version` of the Python that will load them.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A processor: LLVM's triple of its system, LLVM's name, and features beside those."""

    triple: str
    name: str
    # Not empty: Numba would take the features of the processor that compiles.
    features: str = "+neon"

    @property
    def environment(self) -> dict[str, str]:
        """What Numba reads from the environment."""
        return {"NUMBA_CPU_NAME": self.name, "NUMBA_CPU_FEATURES": self.features}


LINUX, MACOS = "aarch64-unknown-linux-gnu", "arm64-apple-macosx"
TARGETS = {
    **{name: Target(LINUX, name) for name in ("neoverse-n1", "neoverse-v1", "neoverse-v2")},
    "apple-m1": Target(MACOS, "apple-m1"),
}


class CompileOnly:
    """A compiled function that is compiled where it would be called, and returns zeros."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def __call__(self, *arguments: Any) -> Any:
        dispatcher = self._dispatcher
        if dispatcher.py_func.__code__.co_flags & inspect.CO_VARARGS:
            arguments = arguments[0], tuple(arguments[1:])
        return self.compile(tuple(map(dispatcher.typeof_pyval, arguments)))()

    def compile(self, kinds: Any) -> Callable[..., Any]:
        self._dispatcher.compile(kinds)
        returned = self._dispatcher.overloads[kinds].signature.return_type
        return lambda *arguments: _zeros(returned)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)


def _zeros(kind: Any) -> Any:
    """Return zero of a Numba type, for a tuple those of its types."""
    types: Any = importlib.import_module("numba.core.types")
    if isinstance(kind, types.BaseTuple):
        return tuple(map(_zeros, kind))
    # The next kernel is compiled for the type of what it is given.
    kinds = {types.Boolean: False, types.Integer: 0, types.Float: 0.0}
    return next((zero for one, zero in kinds.items() if isinstance(kind, one)), None)


def run_no_kernels() -> None:
    """Have kernels compiled, and not run, from now on."""
    jit = importlib.import_module("numnorm.backends.cpu.compiler.jit")
    make = jit._entry
    jit._entry = lambda name, function, **options: CompileOnly(make(name, function, **options))


def attempt(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Call a function whose kernels do nothing, which may fail for what they return."""
    try:
        function(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        print(f"({getattr(function, '__name__', function)}: {error})", file=sys.stderr)


def compile_for(target: Target, compiled: Callable[[Any], None] = lambda library: None) -> None:
    """Compile for another processor from now on; `compiled` gets each library of Numba."""
    os.environ.update(target.environment)
    binding: Any = importlib.import_module("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    llvm_target = binding.Target.from_triple(target.triple)
    binding.get_process_triple = lambda: target.triple
    binding.Target.from_default_triple = lambda: llvm_target
    codegen: Any = importlib.import_module("numba.core.codegen")

    def emit(library: Any) -> None:
        compiled(library)
        if library._object_caching_enabled:
            library._compiled_object = library._codegen._tm.emit_object(library._final_module)

    # Nothing is loaded into this process, so that no function has an address.
    codegen.JITCodeLibrary._finalize_specific = emit
    codegen.JITCodeLibrary.get_pointer_to_function = lambda library, name: 1
    codegen.JITCPUCodegen._add_module = lambda self, module: None
    codegen.JITCPUCodegen.set_env = lambda self, name, env: None
    run_no_kernels()


def main() -> None:
    """Compile."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--python", required=True, help="sys.version of the Python that loads them")
    options = parser.parse_args()
    sys.version = options.python  # a part of the name of the folder
    compile_for(TARGETS[options.target])
    for _, _, call in importlib.import_module("processor_results").calls():
        attempt(call)
    for job in importlib.import_module("compile_kernels").jobs():
        if job.function.__name__ != "cell":  # `processor_results` calls the cells that are compared
            attempt(job.run)


if __name__ == "__main__":
    main()
