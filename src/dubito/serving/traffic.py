"""How many requests are being handled, and how many bytes of their bodies are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from dubito.serving.limits import Limits
from dubito.serving.refusal import RefusedError, busy

__all__ = ["Traffic"]


class Traffic:
    """Counts of one server; used by its event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.stopping = False
        """Whether the server takes no more requests."""
        self.in_work = 0
        """Requests that were accepted and not answered."""
        self.arriving = 0
        """Requests that have been read and will soon reach the queue."""
        self.buffered = 0
        """Bytes of all bodies in memory."""

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Accept a request, or refuse it."""
        if self.stopping:
            raise busy("The server is stopping and takes no more requests.")
        if self.in_work >= self._limits.max_requests:
            raise busy(f"The server is busy: {self.in_work} requests are in work already; try again later.")
        self.in_work += 1
        try:
            yield
        finally:
            self.in_work -= 1

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Count a request as on its way to the queue, while the context lasts."""
        self.arriving += 1
        try:
            yield
        finally:
            self.arriving -= 1

    async def read(self, stream: AsyncIterator[bytes], length: str | None) -> bytes:
        """The whole body, unless it is too large or too slow; `length` is what the client announced, if anything."""
        most = self._limits.max_body_bytes
        if length is not None and length.isdigit() and int(length) > most:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._collect(stream, most), self._limits.body_timeout)
        except asyncio.TimeoutError:
            seconds = self._limits.body_timeout
            raise RefusedError(408, f"The request's body did not arrive within {seconds:g} seconds.") from None

    async def _collect(self, stream: AsyncIterator[bytes], most: int) -> bytes:
        body = bytearray()
        try:
            async for piece in stream:
                body += piece
                self.buffered += len(piece)
                if len(body) > most:
                    raise self._too_large()
                if self.buffered > self._limits.max_buffered_bytes:
                    raise busy("The server is busy: many large requests are in work; try again later.")
            return bytes(body)
        finally:
            self.buffered -= len(body)

    def _too_large(self) -> RefusedError:
        most = self._limits.max_body_bytes
        return RefusedError(413, f"The request's body is larger than {most:,} bytes; send fewer or smaller images.")
