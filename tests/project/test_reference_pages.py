"""The reference in `docs/reference`: every public name, and nothing else."""

import ast
import re
from pathlib import Path

import pytest
import stubs

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# Modules and the files of their `__all__`; they are read, as some need other libraries.
MODULES = {
    "numnorm": "_public.py",
    "numnorm.cuda": "cuda.py",
    **{f"numnorm.{name}": f"{name}/__init__.py" for name in ("rnn", "sklearn")},
    **{f"numnorm.{name}": f"{name}/__init__.pyi" for name in stubs.PLACES},
}


def public_names(module):
    tree = ast.parse((ROOT / "numnorm" / MODULES[module]).read_text("utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return names


def documented_names():
    """The names in the tables of all pages, with their modules."""
    for path in PAGES:
        module = None
        for line in path.read_text("utf-8").splitlines():
            if found := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = found.group(1)
            elif module and (found := re.fullmatch(r"   ([A-Za-z]\w*)", line)):
                yield module, found.group(1)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference_once(module):
    documented = [name for where, name in documented_names() if where == module]
    assert sorted(documented) == sorted(public_names(module))
