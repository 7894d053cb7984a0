"""The table of promises in docs/numerics.md: every test that it names is there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "numerics.md"
ROW = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<tests>[^|]*`tests/[^|]+) \|$", re.MULTILINE)
NAME = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<test>\w+)`")


def rows():
    section = PAGE.read_text(encoding="utf-8").partition("## Promises and their tests\n")[2]
    return [(row["promise"], row["tests"]) for row in ROW.finditer(section.partition("\n## ")[0])]


@functools.cache
def names_in(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_table_is_found():
    assert len(rows()) > 40
    assert len({promise for promise, _ in rows()}) == len(rows())


@pytest.mark.parametrize(("promise", "tests"), rows())
def test_every_named_test_exists(promise, tests):
    names = NAME.findall(tests)
    # Nothing else stands in the cell: a name in another form would not be checked.
    assert re.fullmatch(r"[\s,]*", NAME.sub("", tests)), tests
    for path, test in names:
        assert test in names_in(path), f"{promise}: {path} has no {test}"
