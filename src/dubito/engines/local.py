"""The engine ``local``: this process, one item after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dubito.engines.base import Engine, Item, Make, Result


class LocalEngine(Engine):
    """Works in this process, in the order of the items.

    >>> list(LocalEngine().map(lambda: abs, [-1, 2]))
    [(-1, 1), (2, 2)]
    """

    name = "local"

    def map(self, make: Make[Item, Result], items: Iterable[Item], *, ahead: int = 1) -> Iterator[tuple[Item, Result]]:
        """One item after the other."""
        function = make()
        return ((item, function(item)) for item in items)
