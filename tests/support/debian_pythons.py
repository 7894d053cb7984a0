"""Unpacks Debian's newest Pythons into a folder; nothing is installed into the system.

``nox -s interpreters`` runs ``python tests/support/debian_pythons.py FOLDER 3.14 3.15``. apt, with
lists of its own, downloads the packages from the mirror that the system names. patchelf tells the
interpreters where their C library is, as the system's may be too old for them. None needs root.
"""

import argparse
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

SUITE = "sid"  # the one that has every Python that Debian has
NEEDED = "apt-get", "dpkg-deb", "patchelf"


def mirror() -> str:
    """Return the address of the mirror of Debian that the system names."""
    named = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    for address in named.splitlines():
        if address.endswith("/debian/"):
            return address
    raise SystemExit("apt names no mirror of Debian: nothing was unpacked")


def download(folder: Path, package: str) -> list[Path]:
    """Download a package and all that it needs into an empty folder; return the files."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {mirror()} {SUITE} main\n", "utf-8")
    (folder / "status").touch()  # nothing is installed there, so that everything is downloaded
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root",  # the user _apt may not read the folder
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "update"])
    run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", package])
    return sorted((folder / "cache/archives").glob("*.deb"))


def run(command: list[str]) -> str:
    """Return the output of a command; one line says which one failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise SystemExit(f"{command[0]} failed, and nothing was unpacked: {said}")
    return done.stdout


def unpack(folder: Path, version: str) -> Path:
    """Unpack a Python into a folder, unless it is there; return the program."""
    program = folder / "bin" / f"python{version}"
    if program.exists():
        return program
    root = folder / version
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as packages:
        for file in download(Path(packages), f"python{version}"):
            run(["dpkg-deb", "--extract", str(file), str(root)])
    real = root / "usr/bin" / program.name
    libraries = root / "usr/lib" / sysconfig.get_config_var("MULTIARCH")
    (loader,) = root.glob("usr/lib*/ld-linux*")
    run(["patchelf", "--set-interpreter", str(loader), str(real)])
    # What is imported later is searched for there, too, which `DT_RUNPATH` does not do.
    run(["patchelf", "--force-rpath", "--set-rpath", str(libraries), str(real)])
    program.parent.mkdir(exist_ok=True)
    program.symlink_to(real)
    return program


def main() -> None:
    """Unpack the Pythons that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    options = parser.parse_args()
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} missing: Debian's Pythons cannot be unpacked")
    for version in options.versions:
        program = unpack(options.folder.resolve(), version)
        print(subprocess.check_output([program, "-VV"], text=True).strip(), "in", program)


if __name__ == "__main__":
    main()
