"""The server process: its socket, its signals, and a clean shutdown.

On SIGTERM or SIGINT the server refuses new predictions (503) and answers all that it accepted. Then it lets nobody else
connect, refuses whoever has done so before, closes its socket and ends; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import math
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dubito.errors import DubitoError
from dubito.memory import give_back_memory
from dubito.serving.application import Service, application
from dubito.serving.guard import Access
from dubito.serving.limits import Limits
from dubito.serving.refusal import RefusedError, busy
from dubito.serving.traffic import Connections, Traffic

NOTICE = 0.3
"""Seconds that a stopping server still takes connections, so that /health and late requests say that it is stopping."""
LINGER = 1.0
"""Seconds for a request that was under way when the server refused it: closing at once would reset the connection."""
HEADER_BYTES = 32_768


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address; the port 0 is any that is free."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError, OverflowError):
        raise DubitoError(f"--host is {host!r}, which is not an address of this machine; try 127.0.0.1.") from None
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
        return f"Port {port} of {host} is already in use; choose another with --port, or 0 for any free one."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host is {host!r}, which is not an address of this machine; try 127.0.0.1."
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

    class Protocol(_Protocol):
        limits = service.limits
        traffic = service.traffic
        others = Connections(service.limits)

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
        # No limit_concurrency: it counts open connections as requests, so that idle ones would shut others out.
        timeout_keep_alive=math.ceil(service.limits.idle_timeout),
        timeout_graceful_shutdown=math.ceil(2 * LINGER),  # by then all is answered, see _Server.on_tick
        h11_max_incomplete_event_size=HEADER_BYTES,
        backlog=2048,
    )
    server = _Server(config, service, opened, started)
    try:
        server.run(sockets=[opened])
    finally:
        service.close(finish=not server.left)
    return server.left


class _Server(uvicorn.Server):
    """uvicorn, but it answers what it accepted before it closes its socket."""

    def __init__(
        self, config: uvicorn.Config, service: Service, opened: socket.socket, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._opened = opened
        self._started = started
        self._stop_at: float | None = None
        self._closed_at: float | None = None
        self.left = 0
        """Requests that were in work when it stopped waiting for them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, but a signal is not raised again at the end, so that the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
            yield
            return
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
            self._stop_at = time.monotonic()
        else:
            self.left = self._service.traffic.in_work
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        traffic = self._service.traffic
        if self._stop_at is not None and not self.should_exit:
            self._stop(time.monotonic() - self._stop_at)
        if traffic.may_rest():
            asyncio.get_running_loop().run_in_executor(None, self._service.rest)
        elif traffic.grown and not traffic.buffered:
            traffic.grown = False
            asyncio.get_running_loop().run_in_executor(None, give_back_memory)
        return await super().on_tick(counter)

    def _stop(self, seconds: float) -> None:
        """Go on with stopping, which began so many seconds ago."""
        if seconds > NOTICE + self._service.limits.shutdown_timeout:
            self.left = self._service.traffic.in_work
            self.should_exit = True
        elif self._service.traffic.in_work or seconds < NOTICE:
            return
        elif self._closed_at is None:
            refuse_connections(self._opened)
            self._closed_at = seconds
        else:
            # Those that connected before have had the time to ask; an answer of a stopping server closes a connection.
            waited = seconds - self._closed_at
            self.should_exit = waited > LINGER or (waited > NOTICE and not self.server_state.connections)


def refuse_connections(opened: socket.socket) -> None:
    """Let nobody else connect to a listening socket; who has connected before can still be accepted.

    Closing the socket alone would reset connections that the system has taken and the server has not yet seen. A
    filter that drops every packet has no effect on them; clients that try later are refused once the socket is closed.
    """
    if sys.platform != "linux":
        return
    attach_filter, return_nothing = 26, struct.pack("HBBI", 0x06, 0, 0, 0)
    program = ctypes.create_string_buffer(return_nothing)
    with contextlib.suppress(OSError):  # a kernel without filters: a few microseconds remain in which one may be reset
        opened.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("HP", 1, ctypes.addressof(program)))


class _Protocol(H11Protocol):
    """HTTP/1.1 with limits of time for headers and for answers, and of connections; and JSON errors."""

    limits: Limits
    traffic: Traffic
    others: Connections
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _refused = False
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that pause_writing comes when anything waits to be taken
        self._since = time.monotonic()
        if len(self.connections) > 2 * self.limits.max_connections:
            transport.abort()  # even those that are being refused are too many
        elif self.others.enter(self):
            self._await_header()
        else:
            self._refuse(busy("The server is busy: it has too many open connections; try again later."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._taken()
        self.others.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        idle = self._timer is None and self._is_between_requests()
        super().data_received(data)
        if self._refused:
            return
        if not self._is_between_requests():
            self._stop_timer()
        elif idle and not self.transport.is_closing():
            self._await_header()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.traffic.hold(self.address)
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self._give_up_answer)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def shutdown(self) -> None:
        """End the connection once its answer has been sent; a request that has not arrived by now is refused."""
        if self._is_arriving():
            self._refuse(busy("The server is stopping and takes no more requests."))
        elif not self._refused:
            super().shutdown()

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    def waits_since(self) -> float | None:
        """When it began to wait for a request, or the rest of one; None if the server owes it an answer."""
        owed = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return None if owed or self.flow.write_paused else self._since

    def make_room(self) -> None:
        """End it in favour of another."""
        if self._is_arriving():
            self._refuse(busy("The server is busy and closed this connection for others; try again later."))
        else:
            self.transport.close()

    def _is_between_requests(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _is_arriving(self) -> bool:
        """Whether a part of a request has come, and not all."""
        begun = self._is_between_requests() and bool(self.conn.trailing_data[0])
        return begun or self.conn.their_state is h11.SEND_BODY

    def _await_header(self) -> None:
        self._timer = self.loop.call_later(self.limits.body_timeout, self._give_up_header)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up_header(self) -> None:
        if self._is_arriving():
            seconds = self.limits.body_timeout
            self._refuse(RefusedError(408, f"The request's header did not arrive within {seconds:g} seconds."))
        else:
            self.transport.close()

    def _taken(self) -> None:
        """Nothing is left that the client has to take."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            self.traffic.let_go(self.address)

    def _give_up_answer(self) -> None:
        """Reset the connection: otherwise the system would keep the answer until the client reads."""
        self.traffic.given_up += 1
        with contextlib.suppress(OSError):
            at_once = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.transport.abort()  # close would wait until the client reads

    def send_400_response(self, msg: str) -> None:
        self._refuse(RefusedError(400, "This is not a valid HTTP request."))

    def _refuse(self, refusal: RefusedError) -> None:
        """Say why the connection ends, and read what the client still sends, so that it is not reset meanwhile."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        self.others.leave(self)
        headers, content = refusal.answer()
        response = h11.Response(status_code=refusal.status, headers=[*headers.items(), ("Connection", "close")])
        events: list[Any] = [response, h11.Data(data=content), h11.EndOfMessage()]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER, self.transport.abort)
