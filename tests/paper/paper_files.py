"""Reading the tables of a Markdown page."""

from __future__ import annotations


def table_of(page: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a heading."""
    lines = page[page.index(heading) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| "))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    names = table[0]
    return [dict(zip(names, row, strict=True)) for row in table[2:]]
