"""The code of kernels for a processor with AVX-512, compiled on any x86 processor, and not run.

A process of its own compiles it::

    python avx512_code.py NAMES DTYPES [weighted]

It compiles the kernels of norms and cells (names and dtypes with commas between them), with
`weighted` also those for missing values and weights. For each kernel it prints the number of its
masked loads, and what is wrong with them.
"""

import importlib
import os
import re
import sys
import tempfile

from cross_compile import attempt, run_no_kernels

TARGET = {
    "NUMBA_CPU_NAME": "skylake-avx512",
    "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+lzcnt,+avx,+avx2,+fma,+f16c,+bmi"
    ",+bmi2,+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
}
LOAD = re.compile(r"(%\S+) = (?:tail )?call <\d+ x \w+> @llvm\.masked\.load")
EMPTY = 'asm "", "='
COMMENT = re.compile(r"# masked %([xyz]mm|r|e)(\w+)")
# What the compiler's own loops load are elements of an array, whether a mask chooses them or not.
VECTORIZED_BY_LLVM = "%wide.masked.load"


def commented(code):
    """Return LLVM's code with a comment after each masked load, which shows its register.

    The comments go into the empty pieces of assembly through which the lanes of a masked load go.
    The function also returns the number of the masked loads, and those whose lanes go elsewhere.
    """
    # A name has another meaning in each function.
    functions = [_commented_function(one) for one in re.split(r"(?m)(?<=^}\n)", code)]
    texts, counts, bare = zip(*functions, strict=True)
    return "".join(texts), sum(counts), [name for names in bare for name in names]


def _commented_function(code):
    lines, users = code.splitlines(keepends=True), {}
    for number, line in enumerate(lines):
        for used in re.findall(r"%[\w.$\"]+", line.partition(" = ")[2]):
            users.setdefault(used, []).append(number)

    def add_comments(name):
        missed = not users.get(name)
        for number in users.get(name, ()):
            result, _, rest = lines[number].strip().partition(" = ")
            if EMPTY in rest:
                lines[number] = lines[number].replace(EMPTY, 'asm "# masked $0", "=')
            elif rest.startswith(("shufflevector", "bitcast")):
                missed |= add_comments(result)
            else:
                missed |= "# masked" not in rest
        return missed

    loads = [match[1] for match in LOAD.finditer(code)]
    ours = [name for name in loads if not name.startswith(VECTORIZED_BY_LLVM)]
    bare = [name for name in ours if add_comments(name)]
    return "".join(lines), len(ours), bare


def unmasked_loads(assembly):
    """Return the comments in the assembly before which the register was loaded without a mask."""
    lines, wrong = assembly.splitlines(), []
    for number, line in enumerate(lines):
        found = COMMENT.search(line)
        if found and not _is_masked(lines[:number], *found.groups()):
            wrong.append(f"{number}: {line.strip()}")
    return wrong


def _is_masked(lines, kind, register):
    """Return whether the last load into a register, at the end of the lines, has a mask."""
    vector = kind in ("xmm", "ymm", "zmm")
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if not vector:  # Few lanes come from a vector register.
            if source := re.match(rf"\tvmov[dq]\t%(xmm)(\d+), %{kind}{register}$", line):
                return _is_masked(lines[:number], *source.groups())
            continue
        if not (written := re.search(rf", %[xyz]mm{register}\b( \{{%k\d\}})?(?! *,)", line)):
            continue
        if source := re.match(r"\tvmov\w+\t%([xyz]mm)(\d+), %[xyz]mm\d+$", line):
            return _is_masked(lines[:number], *source.groups())
        if "#APP" not in line and "# masked" not in line:
            return written[1] is not None or "Reload" in line
    return not vector


def report_compiled(codegen, binding):
    """Have each library of Numba report its masked loads when it is complete."""
    finalize = codegen.JITCodeLibrary._finalize_final_module

    def reporting(library):
        code = str(library._final_module)
        name = re.search(r"numnorm_[a-z0-9_]+", code)
        code, count, bare = commented(code)
        if count:
            assembly = library._codegen._tm.emit_assembly(binding.parse_assembly(code))
            wrong = unmasked_loads(assembly)
            print(name and name[0], count, *(["WRONG", *bare, *wrong] if bare or wrong else []))
        return finalize(library)

    codegen.JITCodeLibrary._finalize_final_module = reporting


def weighted(dtypes):
    """Call the norms with missing values and weights."""
    import numpy as np

    import numnorm

    for dtype in dtypes:
        for shape in ((3, 1200), (3, 4), (3, 4, 1200), (3, 4, 5)):
            x, gamma = np.ones(shape, dtype), np.ones(shape[-1], dtype)
            for keywords in (
                {"where": np.ones(shape, bool)},
                {"weights": np.ones(shape)},
                {"nan_policy": "omit"},
            ):
                for name in ("layer_norm", "rms_norm", "ada_norm"):
                    given = () if name == "ada_norm" else (gamma,)
                    rstd = np.ones(shape[:-1])
                    saved = (rstd,) if name == "rms_norm" else (rstd, rstd)
                    attempt(getattr(numnorm, name), x, *given, **keywords)
                    attempt(getattr(numnorm, f"{name}_backward"), x, x, *saved, *given, **keywords)
                ones = np.ones(shape[1])
                attempt(numnorm.batch_norm, x, **keywords)
                attempt(numnorm.batch_norm_backward, x, x, ones, ones, **keywords)
                for axis in (0, -1) if keywords.get("weights") is None else ():
                    rstd = np.ones(shape)
                    for name, size in (("moving_norm", 3), ("exponential_norm", 0.5)):
                        attempt(getattr(numnorm, name), x, size, axis=axis, **keywords)
                        backward = getattr(numnorm, f"{name}_backward")
                        attempt(backward, x, x, rstd, rstd, size, axis=axis, **keywords)


def main(names, dtypes, *options):
    """Compile."""
    os.environ.update(TARGET, NUMBA_CACHE_DIR=tempfile.mkdtemp())
    importlib.import_module("ml_dtypes")  # NumPy knows the name bfloat16 from then on
    from llvmlite import binding
    from numba.core import codegen

    from numnorm.commands.compile import calls

    run_no_kernels()
    binding.initialize_native_asmparser()
    report_compiled(codegen, binding)
    dtypes = dtypes.split(",")
    for job in calls.jobs(names.split(","), dtypes):
        attempt(job.run)
    if options:
        weighted(dtypes)


if __name__ == "__main__":
    main(*sys.argv[1:])
