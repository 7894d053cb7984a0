"""The project's checks: `nox` runs those of every change, `nox -s full` what takes longer.

`nox -l` lists all of them.

One environment serves every session that needs numnorm, because making it is the slow part:
the session `environment` makes it, and the others require that session.
"""

import os
import platform
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]
FULL = ["nojit", "narrower", "layers", "doctest", "asv_check", "sass"]

# Neighbouring tests go to the same worker, so that two seldom compile the same kernel at once.
# Which tests take longest is printed: the checks are to stay short.
WORKERS = ["-n", "2", "--dist", "worksteal", "--durations=20"]
ASV_CONFIG = "asv_benchmarks/asv.conf.json"
# A processor with AVX2 and without AVX-512, as most desktop ones are.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+lzcnt"
    ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
}
EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]


def run_in_environment(session: nox.Session, program: str, *arguments: str, **env: str) -> None:
    """Run a program that the session `environment` installed."""
    session.run(program_in_environment(session, program), *arguments, env=env, external=True)


def program_in_environment(session: nox.Session, program: str) -> str:
    """Where the session `environment` has a program."""
    folder = environment_prefix(session) / ("Scripts" if os.name == "nt" else "bin")
    return str(folder / program)


def run_asv(
    session: nox.Session, command: str, *arguments: str, allowed: tuple[int, ...] = (0,)
) -> None:
    """Run a command of asv."""
    asv = [program_in_environment(session, "asv"), command, "--config", ASV_CONFIG]
    session.run(*asv, *arguments, success_codes=allowed, external=True)


def environment_prefix(session: nox.Session) -> Path:
    """Where the session `environment` has its virtual environment."""
    return session.cache_dir.resolve().parent / "environment"


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install numnorm, built as a wheel, with everything its checks need."""
    session.install(".[dev]")


@nox.session
def lint(session: nox.Session) -> None:
    """Rules and formatting."""
    session.install(*EXTRAS["lint"])
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=False, requires=["environment"])
def types(session: nox.Session) -> None:
    """Strict static types."""
    run_in_environment(session, "mypy")


@nox.session(python=False, requires=["environment"])
def tests(session: nox.Session) -> None:
    """Most tests, with the kernels that tests/support/kernels.py chooses; `-- --full` for all."""
    if not session.posargs:
        run_in_environment(session, "python", "tests/support/compile_kernels.py")
    # Those on a device in Python compile nothing: `nojit` runs them.
    run_in_environment(session, "pytest", *WORKERS, "--ignore=tests/cuda", *session.posargs)


@nox.session(python=False, default=False, requires=["environment"])
def full(session: nox.Session) -> None:
    """All that `nox` leaves out and that no GPU is needed for: the other kernels, and FULL."""
    session.notify("tests", ["--full", "-m", "full"])
    for name in FULL:
        session.notify(name, [])


@nox.session(python=False, requires=["environment"])
def nojit(session: nox.Session) -> None:
    """All tests with the kernels run as Python, those for a device among them."""
    run_in_environment(session, "pytest", *WORKERS, *session.posargs, NUMBA_DISABLE_JIT="1")


@nox.session(python=False, requires=["environment"])
def narrower(session: nox.Session) -> None:
    """The tests of what depends on a processor's registers, compiled for AVX2 where there is more.

    Which elements are loaded and stored with masks differs, and bytes must not. It needs AVX2.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        session.skip("of x86 processors")
    chosen = ["tests/cpu/memory/test_alignment.py", "tests/cpu/memory/test_nontemporal.py"]
    chosen += ["tests/cpu/rows/test_register_rows.py"]
    run_in_environment(session, "pytest", *WORKERS, "--full", *chosen, *session.posargs, **AVX2)


@nox.session(python=False, default=False, requires=["environment"])
def coverage(session: nox.Session) -> None:
    """Which lines `nojit` runs, which takes it twice as long."""
    options = [*WORKERS, "--cov", "--cov-report=term-missing", *session.posargs]
    run_in_environment(session, "pytest", *options, NUMBA_DISABLE_JIT="1")


@nox.session(python=False, requires=["environment"])
def layers(session: nox.Session) -> None:
    """The tests of threads under each of Numba's threading layers, with one thread and with two."""
    # Where pip puts the library of its package tbb, the dynamic loader does not look.
    library = str(environment_prefix(session) / "lib")
    chosen = [
        "tests/cpu/compiler/test_threads.py",
        "tests/norms/test_definitions.py",
        "-k",
        "threads",
        "--full",
    ]
    for layer in ("workqueue", "omp", "tbb") if sys.platform == "linux" else ("workqueue",):
        for threads in ("1", "2"):
            env = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": threads}
            if layer == "tbb":
                env["LD_LIBRARY_PATH"] = library
            session.log(" ".join(f"{name}={value}" for name, value in env.items()))
            run_in_environment(session, "pytest", *chosen, *session.posargs, **env)


@nox.session(python=False, requires=["environment"])
def doctest(session: nox.Session) -> None:
    """The examples of the README and of the docstrings."""
    # What is compiled for CUDA has no examples, and its compiler is not there.
    options = ["--doctest-modules", "--doctest-glob=README.md", "--pyargs"]
    options += ["--doctest-ignore-import-errors"]
    run_in_environment(session, "pytest", *options, "numnorm", "README.md")


@nox.session(python=False, requires=["environment"])
def asv_check(session: nox.Session) -> None:
    """Whether the benchmarks can be imported and are well formed; none is timed."""
    run_asv(session, "check", "-E", "existing")


@nox.session(python=False, default=False, requires=["environment"])
def asv_quick(session: nox.Session) -> None:
    """Whether the benchmarks run: each once, on what is checked out; nothing is recorded."""
    run_asv(session, "machine", "--yes")  # or asv would ask what it is, the first time
    run_asv(session, "run", "-E", "existing", "--quick", "--show-stderr", *session.posargs)


@nox.session(python=False, default=False, requires=["environment"])
def asv_publish(session: nox.Session) -> None:
    """Time the commits of a range, such as `-- main~4..main`; make the dashboard of all runs."""
    run_asv(session, "machine", "--yes")
    # 2: some failed, as those of functions do that a commit does not have yet.
    run_asv(session, "run", "--skip-existing-successful", *session.posargs, allowed=(0, 2))
    run_asv(session, "publish")
    session.log(f"to look at it: asv preview --config {ASV_CONFIG}")


@nox.session(python=False, requires=["environment"])
def slow(session: nox.Session) -> None:
    """The tests that need minutes or many gigabytes."""
    run_in_environment(session, "pytest", "-m", "slow and not sass", *session.posargs)


@nox.session
def torch(session: nox.Session) -> None:
    """Side by side with PyTorch."""
    # On Linux without a GPU, install a CPU build first: pip's default brings gigabytes of CUDA.
    session.install("torch==2.13.0", ".[test]")
    session.run("pytest", "-m", "torch", *session.posargs)


@nox.session
def onnxruntime(session: nox.Session) -> None:
    """Side by side with ONNX Runtime."""
    session.install("onnx==1.23.2", "onnxruntime==1.31.1", ".[test]")
    session.run("pytest", "-m", "onnxruntime", *session.posargs)


@nox.session
def sass(session: nox.Session) -> None:
    """Compile a kernel of each source for a GPU that is not there; look at its machine code."""
    look_at_machine_code(session, "sass and not slow")


@nox.session(default=False)
def sass_all(session: nox.Session) -> None:
    """The same of every kernel, for several GPUs."""
    look_at_machine_code(session, "sass")


def look_at_machine_code(session: nox.Session, chosen: str) -> None:
    """Run tests that compile for CUDA."""
    session.install(".[cu13,test]", "nvidia-cuda-nvdisasm>=13,<14")
    session.run("pytest", "tests/cuda", "-m", chosen, *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """The tests that need a GPU, with a driver for CUDA 13."""
    session.install(".[cu13,test]")
    session.run("pytest", "tests/gpu", "-m", "gpu", *session.posargs)


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """How fast numnorm is beside PyTorch, ONNX Runtime, JAX, SciPy, scikit-learn and NumPy."""
    # As for `torch`: on Linux without a GPU, install a CPU build first.
    session.install("torch==2.13.0", ".[peers]")
    session.chdir("asv_benchmarks")
    session.run("python", "-m", "peers", *session.posargs)
