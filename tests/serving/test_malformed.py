"""Whatever is sent gets a valid answer or a sentence that says what is wrong; the server lives on."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import struct
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

Case = tuple[str, dict]
"""A name, and how the request is made."""


def saved(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def pictures() -> dict[str, bytes]:
    """Images that are all right, in many forms."""
    values = np.random.default_rng(0).integers(0, 256, (20, 24, 4), dtype=np.uint8)
    colour, gray = Image.fromarray(values[..., :3]), Image.fromarray(values[..., 0])
    frames = [Image.fromarray(values[..., channel]) for channel in range(4)]
    wide = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    clear = colour.convert("P", palette=Image.Palette.ADAPTIVE)
    animated = {"save_all": True, "append_images": frames[1:]}
    return {
        "gray.png": saved(gray, "PNG"),
        "colour.png": saved(colour, "PNG"),
        "alpha.png": saved(Image.fromarray(values), "PNG"),
        "gray-alpha.png": saved(Image.fromarray(values).convert("LA"), "PNG"),
        "palette.png": saved(clear, "PNG"),
        "palette-clear.png": saved(clear, "PNG", transparency=3),
        "one-bit.png": saved(gray.convert("1"), "PNG"),
        "16-bit.png": saved(wide, "PNG"),
        "animated.png": saved(frames[0], "PNG", **animated),
        "colour.jpg": saved(colour, "JPEG"),
        "gray.jpg": saved(gray, "JPEG"),
        "cmyk.jpg": saved(colour.convert("CMYK"), "JPEG"),
        "progressive.jpg": saved(colour, "JPEG", progressive=True),
        "turned.jpg": saved(
            colour, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
        ),
        "colour.webp": saved(colour, "WEBP"),
        "lossless.webp": saved(Image.fromarray(values), "WEBP", lossless=True),
        "animated.webp": saved(colour, "WEBP", **animated),
        "colour.bmp": saved(colour, "BMP"),
        "palette.bmp": saved(clear, "BMP"),
        "animated.gif": saved(frames[0], "GIF", **animated),
        "clear.gif": saved(clear, "GIF", transparency=1),
        "tiny.png": saved(Image.new("L", (1, 1)), "PNG"),
        "thin.png": saved(Image.new("L", (1, 5000)), "PNG"),
    }


def form(content: bytes, name: str = "a.png", **data: str) -> dict:
    return {"files": [("images", (name, content))], "data": data}


def body(content: object, kind: str = "application/json") -> dict:
    return {
        "content": content if isinstance(content, bytes) else str(content).encode(),
        "headers": {"Content-Type": kind},
    }


def damaged_images() -> Iterator[Case]:
    choice = random.Random(0)
    for name, content in pictures().items():
        for share in (0.1, 0.5, 0.95):
            yield f"{name} cut at {share}", form(content[: int(share * len(content))])
        flipped = bytearray(content)
        for _ in range(12):
            flipped[choice.randrange(len(flipped))] = choice.randrange(256)
        yield f"{name} with wrong bytes", form(bytes(flipped))
        yield f"{name} with a wrong tail", form(content[: len(content) // 2] + choice.randbytes(200))
        yield f"{name} with more behind", form(content + choice.randbytes(200))
        yield f"{name} under another name", form(content, "a.txt")
    for length in (0, 1, 2, 7, 8, 100, 5000):
        yield f"{length} random bytes", form(choice.randbytes(length))
    starts = (
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"GIF89a",
        b"BM",
        b"RIFF\x10\0\0\0WEBPVP8 ",
        b"RIFF\x10\0\0\0WEBPVP8X",
    )
    for start in starts:
        for length in (0, 4, 30, 400):
            yield f"{start!r} and {length} random bytes", form(start + choice.randbytes(length))
    for width, height in ((0, 0), (0, 5), (2**31 - 1, 1), (1, 2**31 - 1), (65535, 65535), (2**32 - 1, 2**32 - 1)):
        yield f"PNG of {width} x {height}", form(png_header(width, height))
        frame = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
        yield f"GIF of {width} x {height}", form(b"GIF89a" + frame + b"\0\0\0,\0\0\0\0" + frame + b"\0\x02\0\0;")
        bmp = struct.pack(
            "<2sIHHIIiiHHIIiiII",
            b"BM",
            54,
            0,
            0,
            54,
            40,
            width & 0x7FFFFFFF,
            -(height & 0x7FFFFFFF),
            1,
            24,
            0,
            0,
            0,
            0,
            0,
            0,
        )
        yield f"BMP of {width} x {height}", form(bmp)
    yield "text in an image", form("Привет".encode())
    yield "SVG", form(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.svg")
    yield "text bomb", form(png_header(8, 8, text=b"\0" * 3_000_000))


def png_header(width: int, height: int, text: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    extra = chunk(b"zTXt", b"a\0\0" + zlib.compress(text)) if text else b""
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def wrong_options() -> Iterator[Case]:
    image = pictures()["gray.png"]
    encoded = base64.b64encode(image).decode()
    strange = [
        "",
        " ",
        "x",
        "nan",
        "-inf",
        "1e999",
        "9" * 5000,
        "-1",
        "0x10",
        "1;2",
        "[",
        "[]",
        "{}",
        "true",
        "\0",
        "٣",
        "1,2,x",
        "\ud83d",
    ]
    for name in ("samples", "seed", "noise", "rotation", "conformal", "per_class", "method", "draws"):
        for value in strange:
            safe = value.encode("utf-8", "replace").decode()
            yield f"form {name} = {value[:10]!r}", form(image, **{name: safe})
        for value in (None, "x", -1, 1.5, 10**30, 1e300, True, [], [1, "x"], [[1]], {}, {"a": 1}, [None], ["nan"]):
            yield f"JSON {name} = {value!r}", body(json.dumps({"images": [encoded], name: value}))
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000):
            yield f"JSON {name} is {value[:10]}", body(f'{{"images": ["{encoded}"], "{name}": {value}}}')
    yield "unknown option", form(image, nonsense="1")
    yield "option with a long name", form(image, **{"n" * 3000: "1"})
    yield "option given twice", {"files": [("images", ("a", image))], "data": {"samples": ["3", "4"]}}


def wrong_bodies() -> Iterator[Case]:
    image = pictures()["gray.png"]
    encoded = base64.b64encode(image).decode()
    texts = [
        *("", " ", "{", "[]", "null", "1", '"x"', "{}", '{"images"}', '{"images": }', '{"images": null}'),
        *('{"images": []}', '{"images": {}}', '{"images": [1]}', '{"images": [null]}', '{"images": [[]]}'),
        *('{"images": [""]}', '{"images": ["!"]}', '{"images": ["===="]}', '{"images": ["data:,x"]}'),
        *('{"images": ["data:image/png;base64"]}', '{"images": ["data:image/png;base64,"]}', '{"images": ["QUJD"]}'),
        *(
            '{"images": ["' + encoded[:50] + '"]}',
            '{"images": ["' + encoded[:-7] + '"]}',
            "[" * 100_000,
            '{"a":' * 50_000,
        ),
        *('{"images": ["\\ud800"]}', '{"images": ["\\u0000"]}', '{"images": "' + encoded + '"}'),
    ]
    for text in texts:
        yield f"JSON {text[:30]!r}", body(text)
    for content in (b"\xff\xfe{}", b"\x80", '{"images": []}'.encode("utf-16"), b"\0" * 50):
        yield f"JSON in bytes {content[:8]!r}", body(content)
    for kind in (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "image/png",
        "multipart/mixed",
        "application/json2",
        "\xff",
    ):
        yield f"content type {kind!r}", {"content": image, "headers": [(b"content-type", kind.encode("latin-1"))]}
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + image
    for kind in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=y",
        "multipart/form-data; boundary=" + "x" * 300,
    ):
        yield f"form with {kind!r}"[:60], body(part + b"\r\n--x--\r\n", kind)
    for content in (
        b"",
        b"--x",
        b"--x--",
        b"--x\r\n",
        part,
        part[:60],
        b"--x\r\n\r\n\r\n--x--",
        b"--x\r\nContent-Disposition: x\r\n\r\na\r\n--x--",
        b"--x\r\n: \r\n\r\n--x--",
        b"--x\r\n" + b"A: b\r\n" * 5000,
    ):
        yield f"form {content[:20]!r} {len(content)}", body(content, "multipart/form-data; boundary=x")
    yield "images without a file name", {"files": [("images", (None, "x"))]}
    yield "a file of another name", {"files": [("photo", ("a.png", image))]}
    yield "fields alone", {"files": [("samples", (None, "3"))]}
    yield "thousands of fields", {"files": [(f"f{number}", (None, "3")) for number in range(3000)]}
    yield (
        "compressed body",
        {"content": zlib.compress(b"{}"), "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}},
    )
    choice = random.Random(1)
    for number in range(20):
        kind = choice.choice(["application/json", "multipart/form-data; boundary=x"])
        yield f"random body {number}", body(choice.randbytes(choice.randrange(2000)), kind)


def require_answer(name: str, response) -> None:
    assert response.status_code in (200, 400, 413, 415, 422), (name, response.status_code, response.text)
    content = response.json()
    if response.status_code == 200:
        assert content["predictions"], name
        return
    sentence = content["error"]
    assert set(content) == {"error"}, name
    assert sentence[0].isupper() or sentence.split()[0].replace("_", "").isalpha(), (name, sentence)
    assert sentence.endswith("."), (name, sentence)
    assert "\n" not in sentence, (name, sentence)
    assert len(sentence) < 400, (name, sentence)
    for word in ("Traceback", "object at 0x", "site-packages", "Error("):
        assert word not in sentence, (name, sentence)


def test_images_that_are_right_are_predicted(server) -> None:
    with server.client as client:
        for name, content in pictures().items():
            response = client.post("/predict", **form(content, samples="1"))
            assert response.status_code == 200, (name, response.text)


@pytest.mark.parametrize(
    ("cases", "least"),
    [(damaged_images, 200), (wrong_options, 200), (wrong_bodies, 70)],
    ids=lambda value: str(getattr(value, "__name__", "")),
)
def test_anything_wrong_gets_a_sentence_and_the_server_lives_on(server, cases, least) -> None:
    count, refused = 0, 0
    with server.client as client:
        for name, request in cases():
            if "data" in request:
                request["data"] = {"samples": "1", **request["data"]}
            response = client.post("/predict", **request)
            require_answer(name, response)
            count += 1
            refused += response.status_code != 200
        assert client.get("/health").json() == {"status": "ok", "queue": 0}
        assert 'status="500"' not in client.get("/metrics").text
    assert count >= least
    assert refused > count / 3
    assert server.process.poll() is None
    assert "Traceback" not in server.log()


def test_what_is_no_http_gets_an_answer_or_none_and_the_server_lives_on(server) -> None:
    place = urlsplit(server.url)
    choice = random.Random(2)
    good = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    lines = [
        *(
            b"",
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\0\x01\0",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ),
        *(b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"G\0T / HTTP/1.1\r\n\r\n"),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nxx\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n",
        b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        *(choice.randbytes(length) for length in (1, 10, 100, 1000, 10_000)),
        *(good[:cut] for cut in range(1, len(good), 9)),
    ]
    for line in lines:
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            try:
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(65536)
            except ConnectionError:
                continue
        assert not answer or answer.startswith(b"HTTP/1.1 "), line[:60]
        assert b" 500 " not in answer.partition(b"\r\n")[0], line[:60]
    with server.client as client:
        assert client.get("/health").status_code == 200
    assert "Traceback" not in server.log()
