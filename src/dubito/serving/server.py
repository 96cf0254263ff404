"""The server process: its socket, its signals, and a clean shutdown.

On SIGTERM or SIGINT the server refuses new predictions (503), answers all that it accepted, and then closes its socket
and ends; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dubito.errors import DubitoError
from dubito.serving.application import Service, application
from dubito.serving.guard import Access

__all__ = ["bind", "hosts_of", "is_loopback", "serve_until_signal"]

LINGER = 0.3
"""Seconds that a stopping server still answers, so that /health and late requests say that it is stopping."""
MAX_CONNECTIONS = 1000
HEADER_BYTES = 32_768


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address; the port 0 is any that is free."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError, OverflowError):
        raise DubitoError(f"--host is {host!r}, which is no address of this machine; try 127.0.0.1.") from None
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(2048)
    except OSError as error:
        opened.close()
        raise DubitoError(_why(error, host, port)) from None
    return opened


def _why(error: OSError, host: str, port: int) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use already; choose another with --port, or 0 for any that is free."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host is {host!r}, which is no address of this machine; try 127.0.0.1."
    return f"{host}:{port} cannot be used: {error.strerror}."


def is_loopback(opened: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(opened.getsockname()[0].partition("%")[0]).is_loopback


def hosts_of(opened: socket.socket, host: str, allowed: list[str]) -> frozenset[str] | None:
    """The names that requests may use: on a loopback address only its own and those allowed, elsewhere any."""
    if not is_loopback(opened):
        return frozenset(name.lower() for name in allowed) or None
    return frozenset({"localhost", "127.0.0.1", "[::1]", host.lower(), *(name.lower() for name in allowed)})


def serve_until_signal(service: Service, access: Access, opened: socket.socket, started: Callable[[], None]) -> int:
    """Serve until a signal comes; `started` is called once requests are answered.

    Gives the number of requests that it did not wait for at the end.
    """
    limits = service.limits

    class Protocol(_Protocol):
        header_timeout = limits.body_timeout

    config = uvicorn.Config(
        application(service, access),
        http=Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        access_log=False,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=max(1, round(limits.shutdown_timeout)),
        h11_max_incomplete_event_size=HEADER_BYTES,
        backlog=2048,
    )
    server = _Server(config, service, started)
    try:
        server.run(sockets=[opened])
    finally:
        service.close(finish=not server.left)
    return server.left


class _Server(uvicorn.Server):
    """uvicorn, but it answers what it accepted before it closes its socket."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._started = started
        self._stop_at: float | None = None
        self.left = 0
        """Requests that were in work when it stopped waiting for them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, but a signal is not raised again at the end, so that the exit code is 0."""
        names = (signal.SIGINT, signal.SIGTERM)
        before = {name: signal.signal(name, self.handle_exit) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop_at is None:
            self._service.traffic.stopping = True
            self._stop_at = time.monotonic() + LINGER
        else:
            self.left = self._service.traffic.in_work
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._stop_at is not None:
            now, patience = time.monotonic(), self._service.limits.shutdown_timeout
            idle = not self._service.traffic.in_work and now > self._stop_at
            if (idle or now > self._stop_at + patience) and not self.should_exit:
                self.left = self._service.traffic.in_work
                self.should_exit = True
        return await super().on_tick(counter)


class _Protocol(H11Protocol):
    """HTTP/1.1 with a time limit for a request's header, and JSON errors for invalid HTTP."""

    header_timeout = 15.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
            return
        self._await_header()

    def data_received(self, data: bytes) -> None:
        idle = self._timer is None and self._is_between_requests()
        super().data_received(data)
        if not self._is_between_requests():
            self._stop_timer()
        elif idle and not self.transport.is_closing():
            self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _is_between_requests(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _await_header(self) -> None:
        self._timer = self.loop.call_later(self.header_timeout, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        seconds = self.header_timeout
        self._refuse(408, f"The request's header did not arrive within {seconds:g} seconds.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is not a valid HTTP request.")

    def _refuse(self, status: int, sentence: str) -> None:
        if self.transport.is_closing():
            return
        content = json.dumps({"error": sentence}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(content))), ("connection", "close")]
        events: list[Any] = [h11.Response(status_code=status, headers=headers), h11.Data(data=content)]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
