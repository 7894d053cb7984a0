"""Unpacks Debian's Pythons into a folder; nothing is installed into the system.

``nox -s interpreters`` runs ``python tests/support/debian_pythons.py FOLDER 3.14 3.15``. apt, with
lists of its own, downloads the packages from the mirror that the system names. patchelf tells the
interpreters where their C library is, as the system's may be too old for them. None needs root.

With ``--architecture arm64``, as in ``nox -s arm``, the packages are those of another processor.
FOLDER/3.11-arm64 is then the root folder for an emulator, and needs no patchelf.
"""

import argparse
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

SUITES = {"3.11": "bookworm", "3.13": "trixie"}  # sid has the newest Pythons
# What wheels of NumPy, SciPy and Numba load, which an emulator does not take from the system.
LIBRARIES = ["libgomp1", "libstdc++6", "zlib1g"]


def mirror() -> str:
    """Return the address of the mirror of Debian that the system names."""
    named = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    for address in named.splitlines():
        if address.endswith("/debian/"):
            return address
    raise SystemExit("apt names no mirror of Debian: nothing was unpacked")


def download(folder: Path, suite: str, packages: list[str], architecture: str) -> list[Path]:
    """Download packages and all that they need into an empty folder; return the files."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {mirror()} {suite} main\n", "utf-8")
    (folder / "status").touch()  # nothing is installed there, so that everything is downloaded
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": architecture,
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root",  # the user _apt may not read the folder
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "update"])
    run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages])
    return sorted((folder / "cache/archives").glob("*.deb"))


def run(command: list[str]) -> str:
    """Return the output of a command; one line says which one failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise SystemExit(f"{command[0]} failed, and nothing was unpacked: {said}")
    return done.stdout


def extract(root: Path, version: str, packages: list[str], architecture: str) -> None:
    """Unpack a Python, other packages, and all that they need into a new folder."""
    unfinished = root.with_name(f"{root.name}.unfinished")
    for folder in (root, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    unfinished.mkdir(parents=True)
    suite, packages = SUITES.get(version, "sid"), [f"python{version}", *packages]
    with tempfile.TemporaryDirectory() as files:
        for file in download(Path(files), suite, packages, architecture):
            run(["dpkg-deb", "--extract", str(file), str(unfinished)])
    unfinished.rename(root)


def unpack(folder: Path, version: str) -> Path:
    """Unpack a Python into a folder, unless it is there; return the program."""
    program = folder / "bin" / f"python{version}"
    if program.exists():
        return program
    root = folder / version
    extract(root, version, [], run(["dpkg", "--print-architecture"]).strip())
    real = root / "usr/bin" / program.name
    libraries = root / "usr/lib" / sysconfig.get_config_var("MULTIARCH")
    (loader,) = root.glob("usr/lib*/ld-linux*")
    run(["patchelf", "--set-interpreter", str(loader), str(real)])
    # What is imported later is searched for there, too, which `DT_RUNPATH` does not do.
    run(["patchelf", "--force-rpath", "--set-rpath", str(libraries), str(real)])
    program.parent.mkdir(exist_ok=True)
    program.symlink_to(real)
    return program


def unpack_foreign(folder: Path, version: str, architecture: str) -> Path:
    """Unpack a Python of another processor, unless it is there; return the program."""
    root = folder / f"{version}-{architecture}"
    program = root / "usr/bin" / f"python{version}"
    if not program.exists():
        extract(root, version, LIBRARIES, architecture)
    return program


def main() -> None:
    """Unpack the Pythons that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--architecture", help="Debian's name of another processor")
    options = parser.parse_args()
    needed = ["apt-get", "dpkg-deb", *([] if options.architecture else ["patchelf"])]
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} missing: Debian's Pythons cannot be unpacked")
    folder = options.folder.resolve()
    for version in options.versions:
        if options.architecture:
            print(unpack_foreign(folder, version, options.architecture))
            continue
        program = unpack(folder, version)
        print(subprocess.check_output([program, "-VV"], text=True).strip(), "in", program)


if __name__ == "__main__":
    main()
