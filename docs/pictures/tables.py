"""The tables of the pages, as cells."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]


def first_table(page, heading):
    """Return the cells of the first table below a heading of a page: the header, then the rows."""
    text = (DOCS / page).read_text("utf-8").partition(f"\n{heading}\n")[2]
    header, _, *rows = re.search(r"(^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    return [
        [cell.strip().replace("`", "") for cell in line[1:-1].split("|")]
        for line in (header, *rows)
    ]
