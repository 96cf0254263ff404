"""The connections that are open, how many of them an address may have, and which makes room for another.

A connection on which nothing is computed or sent may be closed at any time, as HTTP allows. So idle connections and
slow uploads shut nobody out: when there is no room, the address that has most connections loses the one that waits
longest.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Protocol

from dubito.serving.limits import Limits

GRACE = 1.0
"""Seconds that a connection may wait before it can be asked to make room: a request that was just sent is not lost."""


class Visitor(Protocol):
    """A connection, as those that share the room with it see it."""

    @property
    def address(self) -> str:
        """Who it is from."""

    def waits_since(self) -> float | None:
        """When it began to wait for a request, or the rest of one; None if the server owes it an answer."""

    def make_room(self) -> None:
        """End it."""


class Connections:
    """The open connections of one server; used by its event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_connections
        self._most_of_client = limits.of_client(limits.max_connections)
        self._open: set[Visitor] = set()
        self._clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, new: Visitor) -> bool:
        """Let a connection in, if need be in place of another; False if there is no room and none can be made."""
        own = self._clients[new.address] >= self._most_of_client
        if own or len(self._open) >= self._most:
            leaver = self._longest_waiting(new.address if own else None)
            if leaver is None:
                return False
            self.leave(leaver)
            leaver.make_room()
        self._open.add(new)
        self._clients[new.address] += 1
        return True

    def leave(self, one: Visitor) -> None:
        """A connection has ended, or is about to; one that was not let in, or left before, changes nothing."""
        if one in self._open:
            self._open.remove(one)
            self._clients[one.address] -= 1
            self._clients += Counter()  # forgets those that have none

    def _longest_waiting(self, address: str | None) -> Visitor | None:
        """Of the address that has most connections, or of the one given."""
        latest = time.monotonic() - GRACE
        waiting = [
            (self._clients[one.address], -since, one)
            for one in self._open
            if (since := one.waits_since()) is not None and since < latest and address in (None, one.address)
        ]
        return max(waiting, key=lambda entry: entry[:2])[2] if waiting else None
