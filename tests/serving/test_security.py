"""Who may ask, how much they may send, and how long they may take."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from PIL import Image

KEY = "correct horse"


@pytest.fixture(scope="module")
def strict(start) -> Iterator:
    """A server with a key, small limits and short patience."""
    options = ("--max-images", 3, "--max-body", 0.1, "--max-pixels", 0.01, "--max-samples", 50, "--body-timeout", 1)
    with start(*options, environment={"DUBITO_API_KEY": KEY}) as served:
        yield served


def raw(url: str, *pieces: bytes) -> bytes:
    """What the server sends for these bytes until it closes the connection."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def png(width: int, height: int) -> bytes:
    """A PNG that claims this size and has next to no data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_predictions_need_the_key(strict, digit_images) -> None:
    files = {"images": ("a.png", digit_images[0])}
    with strict.client as client:
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY + "x"}, {"X-API-Key": ""}):
            for response in (
                client.post("/predict", files=files, headers=headers),
                client.get("/metrics", headers=headers),
            ):
                assert response.status_code == 401
                assert "X-API-Key" in response.json()["error"]
        assert client.post("/predict", files=files, headers={"X-API-Key": KEY}).status_code == 200
        assert client.get("/metrics", headers={"X-API-Key": KEY}).status_code == 200


def test_without_the_key_the_page_can_ask_for_it_but_sees_no_images(strict) -> None:
    with strict.client as client:
        for path in ("/", "/health", "/docs", "/openapi.json", "/static/page.js"):
            assert client.get(path).status_code == 200, path
        model = client.get("/model").json()
        assert model["api_key"] is True
        assert model["examples"] == []
        assert client.get("/model", headers={"X-API-Key": KEY}).json()["examples"]
        assert client.get("/model", headers={"X-API-Key": "wrong"}).status_code == 401


def test_the_key_is_not_printed(strict) -> None:
    assert KEY not in strict.log()


def predict(served, *images: bytes, **options):
    files = [("images", (f"{number}.png", image)) for number, image in enumerate(images)]
    with served.client as client:
        return client.post("/predict", files=files, data=options, headers={"X-API-Key": KEY})


def test_limits_are_told_and_kept(strict, digit_images) -> None:
    with strict.client as client:
        model = client.get("/model").json()
    limits = {name: model[name] for name in ("max_images", "max_samples", "max_body_bytes", "max_pixels")}
    assert limits == {"max_images": 3, "max_samples": 50, "max_body_bytes": 100_000, "max_pixels": 10_000}
    assert predict(strict, *digit_images[:3]).status_code == 200
    for images, options, status, words in (
        (digit_images[:4], {}, 413, "more than 3 images"),
        (digit_images[:40], {}, 413, "more than 3 images"),
        ([png(101, 100)], {}, 413, "10,100 pixels"),
        ([png(100, 50), png(100, 51)], {}, 413, "pixels"),
        ([png(60_000, 60_000)], {}, 413, "pixels"),
        ([b"\0" * 100_001], {}, 413, "larger than 100,000 bytes"),
        (digit_images[:1], {"samples": "51"}, 422, "at most 50"),
        (digit_images[:1], {"noise": "0,1,2,3"}, 413, "at most 3"),
    ):
        response = predict(strict, *images, **options)
        assert response.status_code == status, response.text
        assert words in response.json()["error"]
    encoded = [base64.b64encode(image).decode() for image in digit_images[:4]]
    with strict.client as client:
        response = client.post("/predict", json={"images": encoded}, headers={"X-API-Key": KEY})
    assert response.status_code == 413


def test_a_body_without_announced_length_is_limited_too(strict) -> None:
    def endless(pieces: int) -> Iterator[bytes]:
        for _ in range(pieces):
            yield b"x" * 10_000

    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    with strict.client as client:
        assert client.post("/predict", content=endless(9), headers=headers).status_code == 400  # small, but no JSON
        response = client.post("/predict", content=endless(15), headers=headers)
        assert response.status_code == 413
        assert "larger than 100,000 bytes" in response.json()["error"]


def test_a_false_length_is_not_believed(strict) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n"
    answer = raw(strict.url, f"{head}Content-Length: 99999999999\r\n\r\n".encode(), b"{}")
    assert answer.startswith(b"HTTP/1.1 413 ")
    for length in ("-1", "abc", "1e3", "5, 6"):
        answer = raw(strict.url, f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "This is not a valid HTTP request."


def test_slow_headers_and_slow_bodies_are_given_up(strict) -> None:
    head = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n".encode()
    )
    for pieces in ((head,), (head, b"Content-Length: 100\r\n\r\n", b'{"images":')):
        answer = raw(strict.url, *pieces)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].endswith("within 1 seconds.")
    answer = raw_until_closed(strict.url, head + b"Content-Length: 10000\r\n\r\n", b" ")
    assert answer.startswith(b"HTTP/1.1 408 ")


def raw_until_closed(url: str, head: bytes, piece: bytes) -> bytes:
    """As `raw`, with the same piece every tenth of a second, for as long as the server listens."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=0.1) as connection:
        connection.sendall(head)
        for _ in range(1000):
            try:
                connection.sendall(piece)
                if answer := connection.recv(65536):
                    return answer
            except TimeoutError:
                continue
            except OSError:
                break
    return b""


def test_on_loopback_only_its_own_names_are_answered(server) -> None:
    with server.client as client:
        for host in ("127.0.0.1", "localhost", "LOCALHOST:8000", "[::1]:80", urlsplit(server.url).netloc):
            assert client.get("/health", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "127.0.0.1@evil"):
            response = client.get("/health", headers={"Host": host})
            assert response.status_code == 400, host
            assert "Host header" in response.json()["error"]


def test_pages_of_other_origins_cannot_use_the_server(server, digit_images) -> None:
    files = {"images": ("a.png", digit_images[0])}
    with server.client as client:
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            assert client.post("/predict", files=files, headers={"Origin": origin}).status_code == 403
        own = client.post("/predict", files=files, headers={"Origin": server.url})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers


def test_every_answer_has_the_security_headers(server) -> None:
    with server.client as client:
        for path in ("/", "/health", "/model", "/docs", "/static/page.js", "/nothing", "/predict"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'self'; img-src 'self' data: blob:;"), path
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] in ("no-store", "no-cache")
            assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/..%2fapplication.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/page/../../limits.py",
        "/static/page.js%00.py",
        "/static/",
        "/static/" + "a" * 5000,
    ],
)
def test_no_file_outside_the_page_is_read(server, path) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(server.url, head.encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"dubito.serving" not in answer


def test_a_file_name_in_a_form_is_only_a_name(server, digit_images) -> None:
    with server.client as client:
        response = client.post("/predict", files={"images": ("../../../etc/passwd", digit_images[0])})
        assert response.status_code == 200
        response = client.post("/predict", json={"images": ["/etc/passwd"]})
        assert response.status_code == 422
        response = client.post("/predict", json={"images": ["file:///etc/passwd"]})
        assert response.status_code == 422


def test_other_formats_are_refused_though_pillow_reads_them(server) -> None:
    for kind in ("TIFF", "PPM", "ICO", "PCX", "TGA", "SGI", "EPS", "PDF"):
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, kind)
        response = server.predict(file.getvalue())
        assert response.status_code == 422, kind
        assert "PNG, JPEG, WebP, BMP or GIF" in response.json()["error"]
