"""Requests from strangers, as the bytes that they send: seeded, most of them wrong in some way."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from functools import lru_cache
from random import Random

__all__ = ["KINDS", "form", "images", "large_picture", "make", "photograph"]

WORDS = (
    "",
    "0",
    "1",
    "-1",
    "1e999",
    "nan",
    "true",
    "weights",
    "moments",
    "[0, 0.1]",
    "0,0.1",
    "é",
    "x" * 300,
    "\x1b[2J",
)
NAMES = (
    "samples",
    "method",
    "per_class",
    "calibrated",
    "conformal",
    "draws",
    "noise",
    "rotation",
    "seed",
    "preview",
    "x",
)
HEADERS = (
    *("Content-Length: 5", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Expect: 100-continue"),
    *("Host: evil.example", "Host:", "Origin: http://evil.example", "Connection: upgrade", "Upgrade: websocket"),
    *(
        "Content-Type: text/html",
        "Content-Type: multipart/form-data",
        "X-API-Key: a",
        "Range: bytes=0-1",
        "A: " + "b" * 40_000,
    ),
    *(
        " folded: line",
        "No colon",
        "Content-Length: 99999999999",
        "Content-Length: -1",
        "Content-Encoding: gzip",
        "\0: \0",
    ),
)
PATHS = (
    *(
        "/",
        "/model",
        "/health",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/static/page.js",
        "/static/../x",
        "/predict?x=1",
    ),
    *("/%00", "//", "/" + "a" * 9000, "*", "http://evil.example/", "/predict/", "/é"),
)
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "\x7f")


@lru_cache(maxsize=1)
def images() -> tuple[bytes, ...]:
    """Small images of every format and mode that is read, and some that are not."""
    from PIL import Image

    files = []
    made = Image.frombytes("L", (32, 32), bytes(number * 7 % 256 for number in range(1024)))
    modes = {
        "PNG": ("L", "P", "RGB", "RGBA", "I;16", "1"),
        "JPEG": ("L", "RGB", "CMYK"),
        "GIF": ("P",),
        "BMP": ("RGB",),
    }
    for format_, names in {**modes, "WEBP": ("RGB",), "TIFF": ("RGB",), "PPM": ("RGB",)}.items():
        for mode in names:
            file = io.BytesIO()
            made.convert(mode).save(file, format_)
            files.append(file.getvalue())
    return tuple(files)


@lru_cache(maxsize=1)
def photograph() -> bytes:
    """A picture of three million pixels in few bytes: what takes memory."""
    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").resize((2000, 1500)).convert("RGBA").save(file, "PNG")
    return file.getvalue()


@lru_cache(maxsize=2)
def large_picture(largest: bool) -> bytes:
    """About as large a picture as a server reads (22 million pixels in 97 kB), or one of half as many pixels."""
    from PIL import Image

    file = io.BytesIO()
    side = 4690 if largest else 3300
    Image.new("RGBA", (side, side), (9, 9, 9, 200)).save(file, "PNG")
    return file.getvalue()


def form(files: list[bytes], fields: dict[str, str], *, keep: bool = False) -> bytes:
    """A whole request with a form."""
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    parts += [b'name="images"; filename="a.png"\r\n\r\n' + file for file in files]
    body = b"".join(b"--edge\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return _whole(body, "multipart/form-data; boundary=edge", keep=keep)


def _whole(body: bytes, kind: str, *, keep: bool = False, more: tuple[str, ...] = ()) -> bytes:
    ending = () if keep else ("Connection: close",)
    lines = ("POST /predict HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", *ending, *more)
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode("latin-1", "replace") + body


def _mutated(content: bytes, chance: Random, most: int = 8) -> bytes:
    """Bytes changed, left out, doubled or cut off at a few places."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, most)):
        at = chance.randrange(len(changed) + 1)
        length = chance.choice((1, 1, 2, 8, 64))
        action = chance.randrange(5)
        if action == 0:
            changed[at : at + length] = chance.randbytes(length)
        elif action == 1:
            del changed[at : at + length]
        elif action == 2:
            changed[at:at] = changed[max(0, at - length) : at]
        elif action == 3:
            changed[at:at] = chance.choice((b"\0", b"\r\n", b'"', b"--edge", b"\xff" * 9, b"{", b"%", b"999999999"))
        elif chance.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def _fields(chance: Random) -> dict[str, str]:
    if chance.random() < 0.5:
        return {"samples": str(chance.randint(1, 20)), "seed": str(chance.randrange(3)), "per_class": "true"}
    return {chance.choice(NAMES): chance.choice(WORDS) for _ in range(chance.randrange(4))}


def _form(chance: Random) -> list[bytes]:
    request = form([chance.choice(images()) for _ in range(chance.randrange(3))], _fields(chance))
    _, _, body = request.partition(b"\r\n\r\n")
    if chance.random() < 0.4:
        request = _whole(_mutated(body, chance), "multipart/form-data; boundary=edge")
    return [request]


def _value(chance: Random, depth: int = 0) -> object:
    simple = (None, True, -1, 0.5, 1e308, 2**70, "", "é\0", base64.b64encode(chance.choice(images())).decode())
    if depth > 2 or chance.random() < 0.6:
        return chance.choice(simple)
    if chance.random() < 0.5:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice((*NAMES, "images")): _value(chance, depth + 1) for _ in range(chance.randrange(4))}


def _json(chance: Random) -> list[bytes]:
    content: dict[str, object] = {"images": [base64.b64encode(chance.choice(images())).decode()]}
    if chance.random() < 0.5:
        content |= {chance.choice(NAMES): _value(chance) for _ in range(chance.randrange(4))}
    body = json.dumps(content if chance.random() < 0.8 else _value(chance)).encode()
    if chance.random() < 0.4:
        body = _mutated(body, chance)
    if chance.random() < 0.02:
        body = chance.choice((b"[" * 100_000, b'{"a":' * 50_000, b"[" + b"0," * 200_000 + b"0]"))
    return [_whole(body, "application/json")]


def _image(chance: Random) -> list[bytes]:
    return [form([_mutated(chance.choice(images()), chance)], {})]


def _header(chance: Random) -> list[bytes]:
    head, _, body = form([images()[0]], {}).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for _ in range(chance.randint(1, 3)):
        lines.insert(chance.randint(1, len(lines)), chance.choice(HEADERS).encode("latin-1"))
    if chance.random() < 0.5:
        method, path = chance.choice(METHODS), chance.choice(PATHS)
        lines[0] = f"{method} {path} {chance.choice(('HTTP/1.1', 'HTTP/1.0', 'HTTP/2', ''))}".encode("latin-1")
    return [b"\r\n".join(lines) + b"\r\n\r\n" + body]


def _chunked(chance: Random) -> list[bytes]:
    head, _, body = form([chance.choice(images())], _fields(chance)).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    pieces = []
    while body:
        size = chance.randint(1, 200)
        extension = chance.choice((b"", b"", b";a=b", b" "))
        pieces.append(b"%x%s\r\n%s\r\n" % (len(body[:size]), extension, body[:size]))
        body = body[size:]
    chunks = b"".join(pieces) + b"0\r\n" + chance.choice((b"", b"Trailer: x\r\n")) + b"\r\n"
    if chance.random() < 0.5:
        chunks = _mutated(chunks, chance)
    return [b"\r\n".join(lines) + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks]


def _raw(chance: Random) -> list[bytes]:
    if chance.random() < 0.3:
        return [chance.randbytes(chance.randint(1, 2000))]
    return [_mutated(form([chance.choice(images())], _fields(chance)), chance)]


def _pieces(chance: Random) -> list[bytes]:
    """A right request that arrives in small pieces."""
    request = form([chance.choice(images()[:6])], {"samples": "3"})
    cuts = sorted(chance.randrange(len(request)) for _ in range(5))
    return [request[start:end] for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True)]


KINDS: dict[str, Callable[[Random], list[bytes]]] = {
    **{"form": _form, "json": _json, "image": _image, "header": _header, "chunked": _chunked},
    **{"raw": _raw, "pieces": _pieces},
}


def make(kind: str, chance: Random) -> list[bytes]:
    """A request of this kind, in the pieces in which it is sent: of nothing at all it would be no request."""
    return [piece for piece in KINDS[kind](chance) if piece] or [b"\0"]
