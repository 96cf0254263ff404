"""What is in work, counted apart from what is merely open; and how many bytes of uploads are in memory.

A request is in work from when it has arrived whole until its client has taken the answer. A request that still arrives
is not: it costs a connection and the bytes that have come, and a slow one shuts nobody out.

A connection on which nothing is computed or sent may be closed at any time, as HTTP allows. So idle connections and
slow uploads shut nobody out: when there is no room, the address that has most connections loses the one that waits
longest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

from dubito.serving.limits import Limits
from dubito.serving.refusal import RefusedError, busy

LARGE = 1_000_000
"""Bytes or pixels of an upload after which freed memory is given back."""
QUIET = 1.0
"""Seconds without a prediction after which a server keeps only what it began with."""
GRACE = 1.0
"""Seconds that a connection may wait before it can be asked to make room: a request that was just sent is not lost."""


class Traffic:
    """Counts of one server; used by its event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most_of_client = limits.of_client(limits.max_requests)
        self._clients: Counter[str] = Counter()
        self.stopping = False
        """Whether the server takes no more requests."""
        self.answering = 0
        """Requests that were accepted and have no answer yet."""
        self.untaken = 0
        """Answers that were written and that their clients have not taken whole."""
        self.given_up = 0
        """Answers that a client did not take in time."""
        self.arriving = 0
        """Requests that have been read and will soon reach the queue."""
        self.buffered = 0
        """Bytes of all bodies in memory."""
        self.grown = False
        """Whether something large has been in memory since freed memory was last given back."""
        self.asked_at: float | None = None
        """When a prediction was last asked for; None if the server has rested since."""

    @property
    def in_work(self) -> int:
        """Requests that were accepted and whose answers have not been taken."""
        return self.answering + self.untaken

    def require_room(self, client: str) -> None:
        """Refuse a request if too many are in work, of this client or of all."""
        if self.stopping:
            raise busy("The server is stopping and takes no more requests.")
        if self.answering >= self._limits.max_requests:
            raise busy(f"The server is busy with {self.answering} other requests; try again later.")
        if self._clients[client] >= self._most_of_client:
            raise busy(f"The server is busy with {self._clients[client]} of your requests; try again later.")

    @contextmanager
    def admit(self, client: str) -> Iterator[None]:
        """Accept a request that has arrived, or refuse it."""
        self.require_room(client)
        self.answering += 1
        self._clients[client] += 1
        try:
            yield
        finally:
            self.answering -= 1
            self._count_off(client)

    def may_rest(self) -> bool:
        """Whether nothing has been asked for a while; true once in every pause."""
        waits = self.asked_at is not None and time.monotonic() > self.asked_at + QUIET
        if not waits or self.in_work or self.buffered:
            return False
        self.asked_at = None
        return True

    def hold(self, client: str) -> None:
        """A client has begun to keep an answer waiting."""
        self.untaken += 1
        self._clients[client] += 1

    def let_go(self, client: str) -> None:
        """It has taken the answer, or is gone."""
        self.untaken -= 1
        self._count_off(client)

    def _count_off(self, client: str) -> None:
        self._clients[client] -= 1
        self._clients += Counter()  # forgets those that have none

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Count a request as on its way to the queue, while the context lasts."""
        self.arriving += 1
        try:
            yield
        finally:
            self.arriving -= 1


class Upload:
    """A request's body, which counts among the bytes in memory until it is let go."""

    def __init__(self, traffic: Traffic, limits: Limits) -> None:
        self._traffic = traffic
        self._limits = limits
        self._size = 0

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *error: object) -> None:
        self.let_go()
        self._traffic.asked_at = time.monotonic()

    def let_go(self) -> None:
        """The body and what was made of it are in memory no more."""
        self._traffic.buffered -= self._size
        self._traffic.grown |= self._size > LARGE
        self._size = 0

    async def read(self, stream: AsyncIterator[bytes], length: str | None) -> bytes:
        """The whole body, unless it is too large or too slow; `length` is what the client announced, if anything."""
        if length is not None and length.isdigit() and int(length) > self._limits.max_body_bytes:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._collect(stream), self._limits.body_timeout)
        except asyncio.TimeoutError:
            seconds = self._limits.body_timeout
            raise RefusedError(408, f"The request's body did not arrive within {seconds:g} seconds.") from None

    async def _collect(self, stream: AsyncIterator[bytes]) -> bytes:
        pieces: list[bytes] = []
        async for piece in stream:
            pieces.append(piece)
            self._size += len(piece)
            self._traffic.buffered += len(piece)
            if self._size > self._limits.max_body_bytes:
                raise self._too_large()
            if self._traffic.buffered > max(self._limits.max_upload_bytes, self._limits.max_body_bytes):
                raise busy("The server is busy with many large requests; try again later.")
        return b"".join(pieces)

    def _too_large(self) -> RefusedError:
        most = self._limits.max_body_bytes
        return RefusedError(413, f"The request's body is larger than {most:,} bytes; send fewer or smaller images.")


class Pixels:
    """Lets requests decode their images while these have few enough pixels together; the others wait their turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, count: int) -> None:
        """Wait until so many more pixels may be decoded; a request may take all of them, but no more."""
        async with self._turn:  # in the order of arrival, so that a large request is not passed for ever
            while self._used and self._used + count > self._most:
                self._freed.clear()
                await self._freed.wait()
            self._used += count

    def give(self, count: int) -> None:
        """The pixels have been decoded."""
        self._used -= count
        self._freed.set()


# ---- connections ---------------------------------------------------------------------------------------------------


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
