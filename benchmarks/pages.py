"""Pages of the documentation hold tables that a command writes, each between two marks."""

from __future__ import annotations

from dubito.errors import DubitoError

END = "<!-- end -->"


def with_table(page: str, begin: str, table: str) -> str:
    """A page with this table between the mark `begin` and the next `END`.

    >>> with_table("a\\n<!-- b -->\\nold\\n<!-- end -->\\nc", "<!-- b -->", "new")
    'a\\n<!-- b -->\\nnew\\n<!-- end -->\\nc'
    """
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise DubitoError(f"The page has no place for a table between {begin} and {END}.")
    return f"{before}{mark}\n{table}\n{end}{after}"
