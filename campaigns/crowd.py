"""Crowds of clients that want no answer: they send slowly, say nothing, or never read. Linux alone."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["CROWDS", "Crowd", "Guest"]

ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


@dataclass(frozen=True)
class Crowd:
    """What the clients of a crowd do.

    Attributes:
        kind: the name of the crowd.
        begins: what each sends at first.
        goes_on: what it sends every second.
        reads: whether it has room for answers.
    """

    kind: str
    begins: bytes = b""
    goes_on: bytes = b""
    reads: bool = True


CROWDS = (
    Crowd("slow bodies", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", b"{"),
    Crowd("idle connections"),
    Crowd("never reading", b"GET /model HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000, reads=False),
)


class Guest:
    """A client of a crowd, which keeps its connection as long as the server does, and never reads."""

    def __init__(self, crowd: Crowd, server: tuple[str, int], address: str) -> None:
        self._crowd = crowd
        self._socket = socket.socket()
        if not crowd.reads:  # before it connects, since the window is told then
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._socket.bind((address, 0))
        self._socket.connect(server)
        self._socket.setblocking(False)
        self._send(crowd.begins)

    def go_on(self) -> None:
        """Do what it does every second."""
        self._send(self._crowd.goes_on)

    @property
    def ended(self) -> bool:
        """Whether the server has ended the connection; known without reading."""
        poll = select.poll()
        poll.register(self._socket, ENDED)
        return bool(poll.poll(0))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _send(self, content: bytes) -> None:
        with suppress(OSError):  # the server has ended it, or reads no more before its answers are taken
            self._socket.send(content)
