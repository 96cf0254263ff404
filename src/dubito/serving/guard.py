"""Checks around every request: host, origin, key and size; also security headers and counting.

- On a loopback address only requests for that address are answered, so that no web page can reach the server under a
  name of its own (DNS rebinding); and none that a page of another origin sends.
- With a key, everything but the page, its documentation and /health needs it.
- A body whose length is told in two ways is refused: a proxy might believe the other one (request smuggling).
- An answer that comes before the whole body has arrived waits until the rest was read and thrown away, up to a limit:
  else the client would see a broken connection instead of the reason.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dubito.serving.limits import Limits
from dubito.serving.metrics import Measures
from dubito.serving.refusal import RefusedError
from dubito.serving.traffic import Traffic

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOG = logging.getLogger("dubito.serving")
OPEN = ("/", "/health", "/docs", "/docs.css", "/openapi.json", "/favicon.ico", "/model")
"""Paths that need no key; without one /model leaves out the examples."""
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TIMED_OUT = 408
TWOFOLD = RefusedError(400, "The request has both Content-Length and Transfer-Encoding, but may have only one of them.")
INTERNAL = "Something went wrong in the server; its log says what."


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        hosts: names that a request's Host header may have, in lower case and without port; None for any.
        api_key: what the header X-API-Key must hold; None if nothing.
    """

    hosts: frozenset[str] | None = None
    api_key: str | None = None

    def knows(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the request has the key, or needs none."""
        if self.api_key is None:
            return True
        return hmac.compare_digest(headers.get(b"x-api-key", b""), self.api_key.encode())

    def refuse(self, method: str, path: str, headers: dict[bytes, bytes]) -> RefusedError | None:
        """The reason to refuse the request, or None."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and _without_port(host) not in self.hosts:
            return RefusedError(
                400,
                f"The Host header is {host[:100]!r}, but this server answers only to {', '.join(sorted(self.hosts))}.",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if method not in ("GET", "HEAD") and origin and _place(origin) != host:
            return RefusedError(403, f"Pages of {origin[:100]!r} may not use this server.")
        is_open = path in OPEN or path.startswith("/static/")
        if not (is_open and b"x-api-key" not in headers) and not self.knows(headers):
            wrong = "is wrong" if b"x-api-key" in headers else "is missing"
            return RefusedError(401, f"The header X-API-Key {wrong}: this server needs its key.")
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class Body:
    """A request's body as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def receive(self) -> Message:
        """The next ASGI message."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.complete = True
        return message

    async def discard(self, most: int) -> None:
        """Read the rest and throw it away, but at most `most` bytes."""
        while not self.complete and most > 0:
            most -= len((await self.receive()).get("body", b""))


class Guard:
    """The application behind these checks, as an ASGI application."""

    def __init__(
        self, app: Any, access: Access, limits: Limits, traffic: Traffic, measures: Measures, paths: Collection[str]
    ) -> None:
        self._app, self._access, self._paths = app, access, paths
        self._limits, self._traffic, self._measures = limits, traffic, measures

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        body = Body(receive)
        headers = dict(scope["headers"])
        twofold = b"content-length" in headers and b"transfer-encoding" in headers
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await self._finish(body, message, close=twofold or self._traffic.stopping)
            await send(message)

        try:
            refusal = TWOFOLD if twofold else self._access.refuse(scope["method"], scope["path"], headers)
            if refusal is None:
                await self._app(scope, body.receive, answer)
            else:
                await _send_refusal(refusal, answer)
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await _send_refusal(RefusedError(500, INTERNAL), answer)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._measures.observe_request(path, status or 499, time.monotonic() - began)

    async def _finish(self, body: Body, message: Message, close: bool) -> None:
        """Read the rest of the body, and add the headers of every answer; the last one of a connection says so."""
        extra = dict(HEADERS)
        present = {name.lower() for name, _ in message["headers"]}
        if b"cache-control" not in present:
            extra["Cache-Control"] = "no-store"
        if not body.complete and message["status"] != TIMED_OUT:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(body.discard(4 * self._limits.max_body_bytes), self._limits.body_timeout)
        if close or not body.complete:
            extra["Connection"] = "close"
        message["headers"] = [
            *message["headers"],
            *((name.lower().encode(), value.encode()) for name, value in extra.items()),
        ]


async def _send_refusal(refusal: RefusedError, send: Send) -> None:
    headers, content = refusal.answer()
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})
