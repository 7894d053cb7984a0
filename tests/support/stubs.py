"""Write the stubs of the modules whose norms are made at import: type checkers see no others.

Run it after a change of a signature: ``python tests/support/stubs.py``. It needs xarray, autograd
and JAX.
"""

import ast
import builtins
import importlib
import inspect
from pathlib import Path

import numnorm

PLACES = ("autograd", "jax", "xarray")
# Where the names of annotations stand; other names are those of packages.
HOMES = (
    "typing",
    "numnorm.arguments",
    "numnorm.array_types",
    "numnorm.norms.moments",
    "numnorm.norms.order_statistics",
    "numnorm.xarray.named_dims",
)
LONGEST_LINE = 100


def path_of(place):
    return Path(numnorm.__file__).with_name(place) / "__init__.pyi"


def stub_of(place):
    """The text of a stub, as Ruff formats it."""
    module = importlib.import_module(f"numnorm.{place}")
    made, imported = [], {}
    for name in module.__all__:
        value = getattr(module, name)
        if value.__module__ == module.__name__:
            made.append(value)
        else:
            imported[name] = f"from {value.__module__} import {name} as {name}"
    listed = "".join(f'    "{name}",\n' for name in module.__all__)
    return (
        "# Written by tests/support/stubs.py.\n\n"
        f"{imports(made, imported)}\n"
        f"__all__ = [\n{listed}]\n\n"
        f"{''.join(map(definition, made))}"
    )


def imports(functions, others):
    """The imports of the names in annotations, and others by their names, sorted."""
    packages, names = set(), {}
    for name in sorted(set().union(*map(names_in_annotations, functions)) - set(others)):
        homes = [home for home in HOMES if hasattr(importlib.import_module(home), name)]
        if homes:
            names.setdefault(homes[0], []).append(name)
        else:
            packages.add(f"import {name}")
    lines = [import_of(home, own) for home, own in names.items()]
    of_python = {line for line in lines if line.startswith("from typing ")}
    groups = of_python, packages, {*lines, *others.values()} - of_python
    return "\n".join("".join(f"{line}\n" for line in sorted(group)) for group in groups if group)


def import_of(module, names):
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LONGEST_LINE:
        return line
    listed = "".join(f"    {name},\n" for name in names)
    return f"from {module} import (\n{listed})"


def names_in_annotations(function):
    annotations = inspect.get_annotations(function).values()
    nodes = [node for text in annotations for node in ast.walk(ast.parse(text))]
    return {node.id for node in nodes if isinstance(node, ast.Name)} - set(dir(builtins))


def definition(function):
    lines = [f"def {function.__name__}(\n"]
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *,\n" not in lines:
            lines.append("    *,\n")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},\n")
    lines.append(f") -> {signature.return_annotation}: ...\n")
    return "".join(lines).replace("'", '"')


if __name__ == "__main__":
    for place in PLACES:
        path_of(place).write_text(stub_of(place), "utf-8")
