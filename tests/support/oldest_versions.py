"""Checks that the oldest versions that numnorm allows are those that are installed."""

import importlib.metadata

from packaging.requirements import Requirement
from packaging.version import Version


def oldest_versions():
    """Yield the name and the least version of each package that is installed."""
    for requirement in map(Requirement, importlib.metadata.requires("numnorm")):
        for bound in requirement.specifier:
            if bound.operator == ">=":
                yield requirement.name, Version(bound.version)


def main():
    """Raise for a bound that nothing tries, as another package needs a newer version."""
    installed = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    newer = {
        f"{name} >={least}: {installed[name.lower()]}"
        for name, least in oldest_versions()
        if name.lower() in installed and Version(installed[name.lower()]) != least
    }
    if newer:
        raise SystemExit(f"newer than the bounds of pyproject.toml: {', '.join(sorted(newer))}")


if __name__ == "__main__":
    main()
