"""Files made by hand: what an attacker, or an accident, would think of."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.mutations import SCREAM, packed, png, unpacked

__all__ = ["Handmade", "handmade"]

Make = Callable[[Path], object]
BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(40))
DEEP = 100_000


@dataclass(frozen=True)
class Handmade:
    """A case.

    Attributes:
        kind: the name of the kind of file.
        what: what is wrong with it.
        make: changes the file at the path that it gets.
        file: which of the kind's files; the first if empty.
    """

    kind: str
    what: str
    make: Make
    file: str = ""


def handmade(secret: str, kinds: dict[str, tuple[str, ...]]) -> Iterator[Handmade]:
    """All cases; `kinds` are the names of all kinds with their files."""
    for kind, files in kinds.items():
        for what, make in _instead(secret).items():
            if (kind, what) != ("list of images", "a link to a secret"):  # its lines are paths, which are told
                yield Handmade(kind, what, make, files[-1])
    for parts in (_images, _arrays, _lists, _settings, _runs, _weights, _fitted, _resumed, _saved, _others):
        yield from parts(secret)


# ---- ways to write -------------------------------------------------------------------------------------------------


def write(content: str | bytes | Callable[[], bytes]) -> Make:
    """The file has another content."""

    def make(path: Path) -> None:
        made = content() if callable(content) else content
        path.unlink(missing_ok=True)
        path.write_bytes(made.encode("utf-8", "surrogateescape") if isinstance(made, str) else made)

    return make


def change(how: Callable[[bytes], bytes]) -> Make:
    """The file has its own content, changed."""

    def make(path: Path) -> None:
        content = how(path.read_bytes())
        path.unlink()
        path.write_bytes(content)

    return make


def tree(*place: Any, value: Any) -> Make:
    """A JSON file says something else at a place."""
    return change(lambda content: json.dumps(_with(json.loads(content), place, value)).encode())


def settings(part: str, **values: Any) -> Make:
    """A run's configuration has other settings, or describes other images."""
    import yaml

    def how(content: bytes) -> bytes:
        whole = yaml.load(content, yaml.CSafeLoader)
        whole[part].update(values)
        return str(yaml.dump(whole, Dumper=yaml.CSafeDumper)).encode()

    return change(how)


def notes(*place: Any, value: Any) -> Make:
    """The notes of a file of tensors say something else at a place."""

    def how(content: bytes) -> bytes:
        header, data = unpacked(content)
        told = header["__metadata__"]
        key = next(iter(told))
        told[key] = value if not place else json.dumps(_with(json.loads(told[key]), place, value))
        return packed(header, data)

    return change(how)


def tensor(pattern: str, how: Callable[[Any], Any]) -> Make:
    """The first tensor whose name matches is another one, or none."""

    def changed(content: bytes) -> bytes:
        from safetensors.torch import load, save

        tensors, told = load(content), unpacked(content)[0].get("__metadata__")
        name = next(name for name in sorted(tensors) if re.search(pattern, name))
        other = how(tensors.pop(name))
        if other is not None:
            tensors[name] = other.contiguous()
        return save(tensors, told)

    return change(changed)


def _with(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return content


def _instead(secret: str) -> dict[str, Make]:
    """What may be where a file is expected."""

    def link(target: str) -> Make:
        def make(path: Path) -> None:
            path.unlink()
            path.symlink_to(target or path)

        return make

    def sparse(path: Path) -> None:
        path.unlink()
        path.touch()
        os.truncate(path, 1_500_000_000)

    def folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    return {
        "no file": lambda path: path.unlink(),
        "an empty file": write(b""),
        "a byte": write(b"\x00"),
        "a folder": folder,
        "a pipe": pipe,
        "a link to a secret": link(secret),
        "a link to itself": link(""),
        "a device without end": link("/dev/zero"),
        "1.5 GB of nothing": sparse,
        "its first half": change(lambda content: content[: len(content) // 2]),
    }


# ---- images --------------------------------------------------------------------------------------------------------


def _images(secret: str) -> Iterator[Handmade]:
    for what, content in _disguised(secret).items():
        yield Handmade("image PNG", f"{what} as .png", write(content), "1-L.png")
    for what, (kind, make) in _large().items():
        yield Handmade(f"image {kind}", what, write(make))
    for what, content in _odd_pngs().items():
        yield Handmade("image PNG", what, write(content))
    for orientation in (0, 9, -1, 65535, "six", b"\x06"):
        yield Handmade("image JPEG", f"EXIF orientation {orientation!r}", write(_turned(orientation)))
    for header in ("P6 9999999999 1 255 ", "P6 -1 1 255 ", "P6 1 1 0 ", "P5 2 2 99999 ", "P6 " + "9" * 10_000, "P7 "):
        yield Handmade("image PPM", f"header {header[:20]}", write(header + "abcdef"))
    yield Handmade("image PPM", "text of a million numbers", write("P3 1000 1000 255 " + "1 " * 10**6))
    yield Handmade("image JPEG", "5,000 scans", write(_many_scans))
    yield Handmade("image TIFF", "directories in a circle", write(_circular_tiff))
    for name, tag, value in (("tiles", 322, 2**31 - 1), ("rows", 278, 0), ("samples", 277, 65535), ("bits", 258, 0)):
        yield Handmade("image TIFF", f"{value} {name}", write(_tiff_with(tag, value)))


def _disguised(secret: str) -> dict[str, bytes]:
    """Pictures and other files that are of no format that is read."""
    from PIL import Image

    picture = Image.linear_gradient("L").resize((32, 32))
    found = {}
    for format_, mode in {
        **{"EPS": "RGB", "PDF": "RGB", "ICO": "RGB", "ICNS": "RGBA", "JPEG2000": "RGB", "PCX": "L", "TGA": "L"},
        **{"DDS": "RGB", "SGI": "L", "IM": "L", "SPIDER": "F", "MSP": "1", "XBM": "1", "MPO": "RGB", "BLP": "P"},
    }.items():
        file = io.BytesIO()
        picture.convert(mode).save(file, format_)
        found[format_] = file.getvalue()
    run = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n({secret}) (r) file\n".encode()
    svg = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file://{secret}">]><svg width="9">&b;</svg>'.encode()
    found |= {"PostScript that reads a file": run, "EPS with a preview": b"\xc5\xd0\xd3\xc6" + bytes(28) + run}
    found |= {"SVG that includes a file": svg, "PSD": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3)}
    found |= {"WMF": b"\xd7\xcd\xc6\x9a" + bytes(60), "EMF": b"\1\0\0\0" + bytes(36) + b" EMF" + bytes(60)}
    found |= {"FITS": b"SIMPLE  =                    T".ljust(2880), "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99)}
    found |= {"GRIB": b"GRIB\0\0\0\1", "FLI": bytes(4) + b"\x11\xaf" + bytes(122), "text": b"\x1b[2Jhello\n" * 9}
    found |= {"pickle": pickle.dumps(_Harmful()), "ZIP": b"PK\3\4" + bytes(99), "MVG": b"push graphic-context\n"}
    return found


class _Harmful:
    """A pickle that starts a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo unpickled",)


def _large() -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Small files of large pictures: just what is allowed, and too much."""

    def made(format_: str, mode: str, side: int, **options: Any) -> Callable[[], bytes]:
        def make() -> bytes:
            from PIL import Image

            file = io.BytesIO()
            Image.new(mode, (side, side)).save(file, format_, **options)
            return file.getvalue()

        return make

    pixels = {
        "PNG": (
            ("P", 8100),
            ("P", 16_000),
            ("RGBA", 8100),
            ("RGBA", 12_000),
            ("LA", 8100),
            ("I;16", 8100),
            ("1", 30_000),
        ),
        "TIFF": (("F", 8100), ("F", 12_000), ("RGBA", 8100), ("I;16", 8100), ("CMYK", 8100), ("1", 30_000)),
        "GIF": (("P", 8100), ("P", 20_000)),
        "BMP": (("1", 8100), ("1", 20_000)),
        "JPEG": (("CMYK", 8100), ("L", 16_000), ("RGB", 20_000)),
        "PPM": (("1", 8100), ("1", 20_000)),
        "WEBP": (("RGB", 5700), ("RGB", 9000)),
    }
    options = {"TIFF": {"compression": "tiff_adobe_deflate"}, "PNG": {"compress_level": 1}, "WEBP": {"method": 0}}
    found = {
        f"{format_}, {mode} of {side} x {side} pixels": (format_, made(format_, mode, side, **options.get(format_, {})))
        for format_, which in pixels.items()
        for mode, side in which
    }
    found["a palette that is transparent, 8,000 x 8,000"] = "PNG", made("PNG", "P", 8000, transparency=b"\x09" * 256)
    found["progressive, 7,200 x 7,200"] = "JPEG", made("JPEG", "RGB", 7200, progressive=True)
    found["progressive, 12,000 x 12,000"] = "JPEG", made("JPEG", "L", 12_000, progressive=True)
    found["lossless and transparent, 5,700 x 5,700"] = "WEBP", made("WEBP", "RGBA", 5700, lossless=True, method=0)
    found["a strip of 1 x 60,000"] = "PNG", lambda: png(1, 60_000, 8, 0, bytes(2) * 60_000)
    return found


def _odd_pngs() -> dict[str, bytes | Callable[[], bytes]]:
    found: dict[str, bytes | Callable[[], bytes]] = {}
    for width, height, bits, colour in (
        *((0, 5, 8, 0), (5, 0, 8, 2), (2**31 - 1, 2**31 - 1, 8, 6), (2**32 - 1, 1, 8, 0), (60_000, 60_000, 8, 3)),
        *((40_000, 40_000, 16, 6), (9, 9, 3, 0), (9, 9, 8, 5), (9, 9, 16, 3), (2**31 - 1, 1, 1, 0)),
    ):
        found[f"{width} x {height} with {bits} bits of colour type {colour}"] = png(width, height, bits, colour, b"")
    for kind in (b"zTXt", b"iTXt", b"iCCP"):
        bomb = {b"iTXt": b"a\0\1\0\0\0"}.get(kind, b"a\0\0")
        found[f"{kind.decode()} of 400 MB"] = lambda kind=kind, bomb=bomb: png(  # type: ignore[misc]
            9, 9, 8, 0, bytes(90), (kind, bomb + zlib.compress(bytes(4 * 10**8)))
        )
    found["pixels for 300 MB"] = lambda: png(9, 9, 8, 0, bytes(3 * 10**8))
    found["20,000 texts"] = png(9, 9, 8, 0, bytes(90), *[(b"tEXt", b"a\0" + SCREAM.encode())] * 20_000)
    found["no palette"] = png(9, 9, 8, 3, bytes(90))
    found["no pixels"] = png(9, 9, 8, 0, b"")
    return found


def _turned(orientation: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        from PIL import Image

        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                told = exif.tobytes()
            except Exception:  # the tag holds a number below 65536
                exif[0x0112] = 6
                told = exif.tobytes().replace(b"\x12\x01\x03\x00", b"\x12\x01\x0b\x00")
        Image.new("RGB", (40, 20)).save(file, "JPEG", exif=told)
        return file.getvalue()

    return make


def _many_scans() -> bytes:
    """A progressive JPEG whose last scan is there 5,000 times."""
    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").resize((2000, 2000)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * 5000 + content[-2:]


def _tiff_with(tag: int, value: int) -> Callable[[], bytes]:
    def make() -> bytes:
        from PIL import Image, TiffImagePlugin

        file, more = io.BytesIO(), TiffImagePlugin.ImageFileDirectory_v2()
        Image.new("RGB", (64, 64)).save(file, "TIFF", tiffinfo=more)
        content = bytearray(file.getvalue())
        at = content.find(struct.pack("<H", tag), 8)
        entry = struct.pack("<HHII", tag, 4, 1, value)
        if at < 0:  # in the place of another tag
            at = content.find(struct.pack("<H", 284), 8)
        content[at : at + 12] = entry
        return bytes(content)

    return make


def _circular_tiff() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "TIFF")
    content = bytearray(file.getvalue())
    first = struct.unpack("<I", content[4:8])[0]
    count = struct.unpack("<H", content[first : first + 2])[0]
    content[first + 2 + 12 * count : first + 6 + 12 * count] = struct.pack("<I", first)
    return bytes(content)


# ---- arrays --------------------------------------------------------------------------------------------------------


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _zip(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def _npy(description: str, content: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """An .npy file with this header."""
    head = description.encode() + b"\n"
    length = struct.pack("<H", len(head) % 2**16) if version == b"\1\0" else struct.pack("<I", len(head))
    return b"\x93NUMPY" + version + length + head + content


def _header(shape: str, kind: str = "|u1", order: str = "False") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}}}"


def _arrays(secret: str) -> Iterator[Handmade]:
    gray, labels = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
    ours = {"images": gray, "labels": labels}
    whole = {"images": _npy(_header("(4, 8, 8)"), bytes(256)), "labels": _npy(_header("(4,)"), bytes(4))}
    harmful = np.array([_Harmful()], object)
    found: dict[str, bytes | Callable[[], bytes]] = {
        "pickles": lambda: _npz(images=harmful, labels=labels),
        "class names that are pickles": lambda: _npz(**ours, class_names=harmful),
        "3 GB of zeros": lambda: _zip(
            images=_npy(_header("(3000, 1000, 1000)")) + bytes(3 * 10**8), labels=whole["labels"]
        ),
        "zeros as said": lambda: _npz(images=np.zeros((250, 1000, 1000), np.uint8), labels=np.arange(250) % 2),
        "images of 60,000 pixels a side": lambda: _npz(
            images=np.zeros((1, 60_000, 4_000), np.uint8), labels=labels[:1]
        ),
        "2 million tiny images": lambda: _npz(
            images=np.zeros((2_000_000, 1, 1), np.uint8), labels=np.zeros(2_000_000, int)
        ),
        "encrypted": _zip(**whole).replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
        "packed by bzip2": _zip(zipfile.ZIP_BZIP2, **whole),
        "packed by lzma": _zip(zipfile.ZIP_LZMA, **whole),
        "a single array": _npy(_header("(3,)"), b"abc"),
        "no arrays": _zip(),
        "names that leave the folder": _zip(**{"../../images": whole["images"], "labels": whole["labels"]}),
        "dates": lambda: _npz(images=gray, labels=np.zeros(10, "M8[s]")),
        "structures": lambda: _npz(images=np.zeros((10, 8, 8), [("a", "u1")]), labels=labels),
        "complex images": lambda: _npz(images=gray.astype(complex), labels=labels),
        "half precision": lambda: _npz(images=gray.astype(np.float16), labels=labels),
        "images that are NaN": lambda: _npz(images=np.full((10, 8, 8), np.nan), labels=labels),
        "images of 1e300": lambda: _npz(images=np.full((10, 8, 8), 1e300), labels=labels),
        "texts as images": lambda: _npz(images=np.full((10, 8, 8), "a"), labels=labels),
        "no images": lambda: _npz(images=gray[:0], labels=labels[:0]),
        "one image": lambda: _npz(images=gray[:1], labels=labels[:1]),
        "five dimensions": lambda: _npz(images=gray[:, None, None], labels=labels),
        "labels below 0": lambda: _npz(images=gray, labels=labels - 1),
        "labels above 2^63": lambda: _npz(images=gray, labels=labels.astype(np.uint64) + 2**63),
        "labels with gaps": lambda: _npz(images=gray, labels=labels * 1000),
        "labels that are floats": lambda: _npz(images=gray, labels=labels / 2),
        "fewer labels": lambda: _npz(images=gray, labels=labels[:3]),
        "60,000 class names": lambda: _npz(**ours, class_names=np.arange(60_000).astype(str)),
        "the same class name twice": lambda: _npz(**ours, class_names=np.array(["a", "a"])),
        "class names that are no UTF-8": lambda: _npz(**ours, class_names=np.array([b"caf\xe9", b"tea"])),
        "class names that clear the screen": lambda: _npz(**ours, class_names=np.array([SCREAM, "b"])),
        "class names that are no characters": lambda: _npz(
            **ours, class_names=np.array([0x110000, 0xD800], "<u4").view("<U1")
        ),
        "a class name of 40 million letters": lambda: _npz(**ours, class_names=np.array(["a" * 4 * 10**7, "b"])),
    }
    odd = {"negative": "(-4, 8, 8)", "huge": f"({2**62}, {2**62}, 8)", "true": "(True, 8, 8)", "text": "'abc'"}
    odd |= {
        "nested": "(" * 5000,
        "computed": "(9**9**9,)",
        "called": "__import__('os').system('true')",
        "floats": "(4.0, 8)",
    }
    for what, shape in odd.items():
        found[f"a {what} shape"] = _zip(**{**whole, "images": _npy(_header(shape), bytes(256))})
    for what, kind in {"pickled": "|O", "void": "|V9", "unknown": "q9", "long": "<U2000000000", "empty": "|S0"}.items():
        found[f"the {what} type"] = _zip(**{**whole, "images": _npy(_header("(4, 8, 8)", kind), bytes(256))})
    for version in (b"\3\0", b"\0\0", b"\xff\xff", b"\2\0"):
        found[f"version {version!r}"] = _zip(**{**whole, "images": _npy(_header("(4, 8, 8)"), bytes(256), version)})
    for what, content in found.items():
        yield Handmade("arrays .npz", what, write(content))
    sizes = ">IIII"
    for what, head in {
        "billions of images": (0x803, 2**32 - 1, 28, 28),
        "images without pixels": (0x803, 5, 0, 0),
        "images of 4,096 pixels a side": (0x803, 20, 4096, 4096),
        "labels": (0x801, 20, 28, 28),
        "floats": (0xD03, 20, 28, 28),
        "no images": (0x803, 0, 28, 28),
    }.items():
        content = gzip.compress(struct.pack(sizes, *head) + bytes(15_680))
        yield Handmade("arrays IDX", f"a header of {what}", write(content))
    many = struct.pack(sizes, 0x803, 20, 28, 28)
    yield Handmade("arrays IDX", "500 MB behind the images", write(lambda: gzip.compress(many + bytes(5 * 10**8), 1)))
    yield Handmade(
        "arrays IDX", "a thousand gzips in one", write(gzip.compress(many) + gzip.compress(b"\0" * 16) * 980)
    )
    yield Handmade(
        "arrays IDX", "a label of 200", write(gzip.compress(struct.pack(">II", 0x801, 1) + b"\xc8")), "labels-ubyte.gz"
    )
    yield Handmade("arrays CIFAR", "a label of 200", write(b"\xc8" + bytes(3072)))
    yield Handmade("arrays CIFAR", "a byte too many", change(lambda content: content + b"\0"))
    names: dict[str, Callable[[], bytes]] = {"no UTF-8": lambda: b"caf\xe9\n", "the screen": SCREAM.encode}
    for what, make in {**names, "200 MB": lambda: b"a" * 2 * 10**8}.items():
        yield Handmade("arrays CIFAR", f"class names: {what}", write(make), "names.txt")


# ---- lists and tables ----------------------------------------------------------------------------------------------


def _lists(secret: str) -> Iterator[Handmade]:
    rows = {
        "the path of a secret": f"{secret},a\n",
        "the path of a device": "/dev/zero,a\n",
        "a formula": "=1+1,=cmd|'/c calc'!A1\n",
        "the screen": f"pictures/0.png,{SCREAM}\n",
        "a NUL": "pictures/0.png\x00,a\n",
        "an open quote": '"pictures/0.png,a\n' * 1000,
        "a cell of a megabyte": f"pictures/0.png,{'a' * 10**6}\n",
        "a class name of 2,000 letters": f"pictures/0.png,{'a' * 2000}\n",
        "no UTF-8": "pictures/0.png,caf\udce9\n",
        "an address": "http://127.0.0.1:9/a.png,a\n",
        "a thousand commas": "," * 1000 + "\n",
        "the direction turned": "pictures/0.png,\u202egnp.exe\n",
        "60,000 classes": "".join(f"pictures/0.png,{n}\n" for n in range(60_000)),
    }
    for what, row in rows.items():
        more = "pictures/1.png,b\n" * 5
        yield Handmade("table of labels", what, write(f"path,label\n{row}{more}"))
    yield Handmade("table of labels", "a split that is none", write("path,label,split\npictures/0.png,a,both\n"))
    yield Handmade("table of labels", "columns twice", write("path,path,label,label\na,b,c,d\n"))
    lines = {
        "the path of a secret": secret,
        "a device": "/dev/zero",
        "an address that is none": "nothing://x/y",
        "a file by its address": f"file://{secret}",
        "an address in another": f"zip://a.png::file://{secret}",
        "an address in memory": "memory://a.png",
        "an address of a cache": "simplecache::http://127.0.0.1:9/a.png",
        "data": "data:,abc",
        "a bad address": "http://[::1/a.png",
        "the screen": f"pictures/{SCREAM}.png",
        "a formula": "=1+1.png",
        "no UTF-8": "pictures/caf\udce9.png",
        "a NUL": "pictures/\x00.png",
        "a megabyte": "a" * 10**6,
        "a folder": "pictures",
    }
    for what, line in lines.items():
        yield Handmade("list of images", what, write(f"{line}\npictures/0.png\n"))
    for what, make in _tables(secret).items():
        yield Handmade("table of images", what, make)


def _tables(secret: str) -> dict[str, Make]:
    def table(columns: Callable[[Any], dict[str, Any]], **options: Any) -> Make:
        def make(path: Path) -> None:
            import pyarrow as arrow
            from pyarrow import parquet

            path.unlink()
            parquet.write_table(arrow.table(columns(arrow)), path, compression="zstd", **options)

        return make

    picture = png(9, 9, 8, 0, bytes(90))
    return {
        "no images": table(lambda arrow: {"a": [1, 2]}),
        "no rows": table(lambda arrow: {"image": arrow.array([], arrow.binary())}),
        "nothing where images are": table(lambda arrow: {"image": arrow.array([None, None], arrow.binary())}),
        "structures without bytes": table(lambda arrow: {"image": [{"path": "a"}, None]}),
        "structures of bytes": table(lambda arrow: {"image": [{"bytes": picture, "path": secret}, None]}),
        "bytes that are numbers": table(lambda arrow: {"image": [{"bytes": 3}]}),
        "lists of bytes": table(lambda arrow: {"image": [[picture]], "path": ["a"]}),
        "the path of a secret": table(lambda arrow: {"path": [secret, "pictures/0.png"]}),
        "no path": table(lambda arrow: {"path": arrow.array([None, "pictures/0.png"])}),
        "the screen as a name": table(lambda arrow: {"image": [picture], "name": [SCREAM]}),
        "the screen as a column": table(lambda arrow: {SCREAM: [1]}),
        "no names": table(lambda arrow: {"image": [picture], "name": arrow.array([None], arrow.string())}),
        "a cell of 600 MB": table(lambda arrow: {"image": [bytes(6 * 10**8)]}),
        "a cell of 1 MB, 2,000 times": table(lambda arrow: {"image": [bytes(10**6)] * 2000}),
        "a million rows": table(lambda arrow: {"image": [b""] * 10**6}, row_group_size=1000),
        "a name of 300 MB": table(lambda arrow: {"image": [picture], "name": ["a" * 3 * 10**8]}),
        "5,000 columns": table(lambda arrow: {f"column {n}": [picture] for n in range(5000)}),
    }


# ---- settings and runs ---------------------------------------------------------------------------------------------


_YAML: dict[str, str | bytes | Callable[[], bytes]] = {
    "an alias bomb": BOMB,
    "deep lists": "[" * DEEP,
    "deep dashes": "- " * DEEP,
    "deep mappings": "".join("  " * n + "a:\n" for n in range(200)),
    "a function": "training: !!python/object/apply:os.system ['true']",
    "a merge": "training: {<<: {model: lenet5}}\ndata: {}",
    "a list": "- training\n- data\n",
    "a number": "3",
    "nothing": "---\n...\n",
    "several documents": "a: 1\n---\nb: 2\n",
    "UTF-16": "training: {}".encode("utf-16"),
    "no UTF-8": b"training: caf\xe9",
    "control characters": f'"{SCREAM}": 1',
    "keys that are lists": "? [a, b]\n: 1\n",
    "keys that are numbers": "3: 1\ntraining: {4: 5}\ndata: {6: 7}",
    "dates": "training: 2026-01-01\ndata: 2026-99-99",
    "an unknown tag": "training: !secret a",
    "a million commas": "[" + "a," * 10**6 + "]",
    "a text of 20 MB": lambda: b"a" * 2 * 10**7,
    "an open quote": 'a: "' + "b\n" * 1000,
    "numbers by sixty": "model: 1:30:59:59:59:59",
    "a number of 5,000 digits": f"epochs: {'9' * 5000}",
    "a number of a million digits": f"training: {{epochs: {'9' * 10**6}}}",
}


def _settings(secret: str) -> Iterator[Handmade]:
    for what, content in _YAML.items():
        yield Handmade("settings", what, write(content))
        yield Handmade("run: configuration", what, write(content))
    names = {"file": secret, "preset": secret, "config": secret, "include": secret}
    for name, value in {**names, "init": secret, "model": f"hf:{secret}", "data": secret, "resume": secret}.items():
        yield Handmade("run: configuration", f"{name} is a secret", settings("training", **{name: value}))
        yield Handmade("settings", f"{name} is a secret", write(f"{name}: {value}\n"))
    others: dict[str, Any] = {
        **{"model": "os:system", "members": 10**9, "size": 10**9, "epochs": -1, "seed": 2**70, "learning_rate": "nan"},
        **{"head": ["softmax"], "prior": "1e999", "posterior": 3, "batch_size": 0, "initial_std": 0, "samples": 1.5},
        **{"class_weights": "1," * 10**5, "bayesian": SCREAM, "freeze": "a" * 10**6, "dropout": 2, "clip": -1},
        **{"devices": 10**6, "accelerator": "tpu", "data": "s3://bucket/x", "activation": "os.system", "norm": None},
        **{"validation_fraction": 1, "label_smoothing": 9, "workers": -1, "precision": "8", "flip": True},
    }
    for name, value in others.items():
        yield Handmade("run: configuration", f"{name} is {str(value)[:30]!a}", settings("training", **{name: value}))
        yield Handmade("settings", f"{name} is {str(value)[:30]!a}", write(json.dumps({name: value})))


def _runs(secret: str) -> Iterator[Handmade]:
    digits = [*"012345678"]
    described: dict[str, dict[str, Any]] = {
        "NaN means": {"mean": [float("nan")]},
        "a deviation of 0": {"std": [0.0]},
        "two channels": {"channels": 2, "mean": [0.5, 0.5], "std": [1.0, 1.0]},
        "colour": {"channels": 3, "mean": [0.5] * 3, "std": [1.0] * 3},
        "a million means": {"mean": [0.5] * 60_000},
        "a class twice": {"class_names": [*digits, "8"]},
        "a class too few": {"class_names": digits},
        "60,000 classes": {"class_names": [str(n) for n in range(60_000)]},
        "30,000 classes": {"class_names": [str(n) for n in range(30_000)]},
        "a class that clears the screen": {"class_names": [*digits, SCREAM]},
        "a class whose direction is turned": {"class_names": [*digits, "\u202e9"]},
        "a class without a name": {"class_names": [*digits, " "]},
        "a class of 1,001 letters": {"class_names": [*digits, "9" * 1001]},
        "a class that is a formula": {"class_names": [*digits, "=1+1"]},
        "classes that are numbers": {"class_names": list(range(10))},
        "classes in a text": {"class_names": "0123456789"},
        "images of 4,096 pixels": {"size": 4096},
        "images of 10^9 pixels": {"size": 10**9},
        "padding of 10^9": {"padding": 10**9},
        "padding of 15": {"padding": 15},
        "no images": {"num_data": -1},
        "10^400 images": {"num_data": 10**400},
        "an unknown fit": {"fit": "os.system"},
        "a name that is a list": {"name": ["digits"]},
        "a name that clears the screen": {"name": SCREAM},
    }
    for what, values in described.items():
        yield Handmade("run: configuration", what, settings("data", **values))
    for what, values in {"members in members": {"members": 3}, "no members": {"members": 1}}.items():
        yield Handmade("run: ensemble", what, settings("training", **values))

    def circle(path: Path) -> None:
        import shutil

        shutil.rmtree(path.parent / "members" / "0")
        (path.parent / "members" / "0").symlink_to(path.parent, target_is_directory=True)

    yield Handmade("run: ensemble", "an ensemble that is its own member", circle, "ensemble/config.yaml")
    for what, value in {"threads": 10**9, "more threads": 2**70, "no threads": -1, "words": "many"}.items():
        yield Handmade("run: environment", what, tree("threads", value=value))
    for what, text in {
        "another column": "epoch,secret\n1,2\n",
        "cells too many": "epoch\n1,2,3\n",
        "the screen": f"epoch\n{SCREAM}\n",
        "NaN": "epoch,val_nll\nnan,inf\n",
        "a cell of a megabyte": "epoch\n" + "1" * 10**6 + "\n",
        "a million rows": "epoch\n" + "1\n" * 10**6,
        "an open quote": '"epoch\n' * 1000,
    }.items():
        yield Handmade("run: metrics", what, write(text))


# ---- weights -------------------------------------------------------------------------------------------------------


def _weights(secret: str) -> Iterator[Handmade]:
    import torch

    changes: dict[str, Callable[[Any], Any]] = {
        "half precision": lambda t: t.half(),
        "brain floats": lambda t: t.bfloat16(),
        "double precision": lambda t: t.double(),
        "double precision of 1e300": lambda t: torch.full_like(t, 1e300, dtype=torch.float64),
        "whole numbers": lambda t: t.int(),
        "complex numbers": lambda t: t.to(torch.complex64),
        "8 bits": lambda t: t.to(torch.float8_e4m3fn),
        "truth": lambda t: t.bool(),
        "NaN": lambda t: t * float("nan"),
        "infinity": lambda t: t / 0.0,
        "huge": lambda t: torch.full_like(t, 3e38),
        "denormal": lambda t: torch.full_like(t, 1e-45),
        "a value too few": lambda t: t.flatten()[:-1],
        "turned": lambda t: t.flatten(),
        "empty": lambda t: t[:0],
        "missing": lambda t: None,
        "a single number": lambda t: t.flatten()[0].clone(),
    }
    kinds = {
        "run: weights": r"weight\.mean$",
        "run: pruned": r"\.mean$",
        "saved: tensors": r"weight\.mean$",
        "initial weights": r"weight$",
    }
    for kind, pattern in kinds.items():
        for what, how in changes.items():
            yield Handmade(kind, f"weights: {what}", tensor(pattern, how))
    for what, how in changes.items():
        yield Handmade("run: weights", f"deviations: {what}", tensor(r"weight\.rho$", how))
    for kind in ("run: weights", "initial weights", "saved: tensors"):
        for what, content in _safetensors().items():
            yield Handmade(kind, what, write(content))
    for what, value in {
        "a list": "[]",
        "nothing": "null",
        "deep lists": "[" * DEEP,
        "no JSON": "secret",
        "pruned as a list": '{"pruned": []}',
        "pruned without bits": '{"pruned": {"a": [1]}}',
        "a number of 5,000 digits": f'{{"pruned": {"9" * 5000}}}',
        "5 MB": json.dumps({"a": "b" * 5 * 10**6}),
    }.items():
        yield Handmade("run: weights", f"notes: {what}", notes(value=value))
        yield Handmade("resume: state", f"notes: {what}", notes(value=value))
    for shape in ([2**23], [2**60, 2**60], [-8], [8.0], "8", [0], [[8]], [], [2**70]):
        yield Handmade("run: pruned", f"the shape {shape}", _pruned(shape))


def _safetensors() -> dict[str, bytes | Callable[[], bytes]]:
    """Files of tensors whose headers lie."""
    one: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    zero = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return {
        "a header of 2^63 bytes": (2**63).to_bytes(8, "little") + b"{}",
        "a header of 90 MB": (9 * 10**7).to_bytes(8, "little") + b" " * 1000,
        "overlapping tensors": packed({"a": one, "b": one}, bytes(4)),
        "offsets from behind": packed({"a": {**one, "data_offsets": [4, 0]}}, bytes(4)),
        "offsets beyond the end": packed({"a": {**one, "data_offsets": [0, 2**40]}}, bytes(4)),
        "offsets below 0": packed({"a": {**one, "data_offsets": [-4, 0]}}, bytes(4)),
        "a shape of 2^62 x 2^62": packed({"a": {**one, "shape": [2**62, 2**62]}}, bytes(4)),
        "a shape of 2^64": packed({"a": {**one, "shape": [2**64]}}, bytes(4)),
        "a shape below 0": packed({"a": {**one, "shape": [-1]}}, bytes(4)),
        "a thousand sides": packed({"a": {**one, "shape": [1] * 1000}}, bytes(4)),
        "an unknown type": packed({"a": {**one, "dtype": "F7"}}, bytes(4)),
        "four bits": packed({"a": {**one, "dtype": "F4", "shape": [8]}}, bytes(4)),
        "notes that are numbers": packed({"__metadata__": {"notes": 3}, "a": one}, bytes(4)),
        "a name that clears the screen": packed({SCREAM: one}, bytes(4)),
        "a name of a megabyte": packed({"a" * 10**6: one}, bytes(4)),
        "60,000 empty tensors": lambda: packed({f"network.{n}": zero for n in range(60_000)}, b""),
        "the same name twice": b'\x6e\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' + bytes(4),
        "a header that is a list": packed([], b""),
        "deep lists": (2 * DEEP).to_bytes(8, "little") + b"[" * 2 * DEEP,
        "a pickle": pickle.dumps(_Harmful()),
    }


def _pruned(shape: Any) -> Make:
    """A pruned tensor says that it has this shape, with bits for it."""
    import torch

    def how(content: bytes) -> bytes:
        from safetensors.torch import load, save

        tensors, told = load(content), dict(unpacked(content)[0]["__metadata__"])
        kept = json.loads(told["notes"])
        name = next(iter(kept["pruned"]))
        kept["pruned"][name] = shape
        bits = next(key for key in tensors if key.startswith(name) and tensors[key].dtype is torch.uint8)
        tensors[bits] = torch.zeros(2**20, dtype=torch.uint8)
        return save(tensors, {"notes": json.dumps(kept)})

    return change(how)


# ---- what was fitted -----------------------------------------------------------------------------------------------


def _fitted(secret: str) -> Iterator[Handmade]:
    import torch

    nan, inf = float("nan"), float("inf")
    for name, values in {
        "thresholds": ([], [nan], ["inf"], ["nan"], [0.1, 0.2], "a", [None], [1e308], [[0.1]]),
        "score": ("magic", None, [], "__class__"),
        "class_names": (["a", "a"], [SCREAM], 3, ["0"]),
        "measured": ({}, [], {"images": -1}, {"images": 1e999}),
        "causes": ([], {"a": 1}, "x"),
        "origin": ([], "x", {"weights": None}),
        "novelty_threshold": (nan, "x", 1e308),
        "images": (-1, "many", 10**400),
        "format": (2, "1", None, [1]),
        "confidence": (2, nan, "sure"),
        "target": (nan, inf, "x"),
        "goal": (SCREAM, [], "cost"),
    }.items():
        for value in values:
            yield Handmade("run: rule", f"{name} is {str(value)[:20]!a}", tree(name, value=value))
    for name, values in {
        "temperature": (0, -1, nan, 1e-300, 1e300, "1", None),
        "threshold": (nan, -1, "x", 1e308),
        "quantiles": ({}, [], {"entropy": [nan] * 101}, {"entropy": [1, 0]}, {"x": [0.1]}),
        "scores": ({}, [], {"entropy": {}}, {"entropy": {"auroc": 9, "interval": [0, 1]}}),
        "images": (-1, 0, 10**400),
        "weights": (None, 3, "x"),
        "coverage": (nan, 2, "x"),
    }.items():
        for value in values:
            yield Handmade("run: calibration", f"{name} is {str(value)[:20]!a}", tree(name, value=value))
    changes: dict[str, Callable[[Any], Any]] = {
        "NaN": lambda t: t * nan,
        "zeros": lambda t: t * 0,
        "1e30": lambda t: torch.full_like(t, 1e30),
        "empty": lambda t: t[:0],
        "a row less": lambda t: t[1:],
        "flat": lambda t: t.flatten(),
        "double precision": lambda t: t.double(),
        "missing": lambda t: None,
    }
    for part in ("held_out", r"score\."):
        for what, how in changes.items():
            yield Handmade("run: novelty", f"{part}: {what}", tensor(part, how))
    for part in ("prediction/probs", "labels", "prediction/entropy", "examples"):
        for what, how in changes.items():
            if part not in ("labels", "examples") or what not in ("NaN", "1e30"):
                yield Handmade("run: validation", f"{part}: {what}", tensor(f"^{part}$", how))
    for part in ("test/probs", "test/draws", "test/labels", "validation/probs"):
        for what in ("zeros", "a row less", "flat", "missing"):
            yield Handmade("evaluation", f"{part}: {what}", tensor(f"^{part}$", changes[what]))
            yield Handmade("evaluation, reported", f"{part}: {what}", tensor(f"^{part}$", changes[what]))
    for place, value in (
        *((("metrics",), {}), (("metrics", "settings"), {}), (("metrics", "settings", "samples"), 10**9)),
        *((("runs",), []), (("runs",), [secret]), (("runs",), ["../" * 50]), (("noise",), [{}])),
        *((("metrics", "accuracy"), "high"), (("metrics", "intervals"), None), (("seconds",), SCREAM)),
        *((("metrics", "settings", "bootstrap"), 10**12), (("metrics", "settings", "data"), secret)),
        *((("class_names",), ["a", "a"]), (("parts", "test", "members"), [10**9]), (("parts",), {})),
    ):
        for kind in ("evaluation", "evaluation, reported"):
            yield Handmade(kind, f"{'.'.join(place)} is {str(value)[:30]!a}", notes(*place, value=value))


# ---- trainings that go on ------------------------------------------------------------------------------------------


def _resumed(secret: str) -> Iterator[Handmade]:
    import torch

    nan = float("nan")
    changes: dict[str, Callable[[Any], Any]] = {
        "of another shape": lambda t: t.flatten()[:3],
        "flat": lambda t: t.flatten(),
        "empty": lambda t: t[:0],
        "double": lambda t: t.double(),
        "whole": lambda t: t.int(),
        "half": lambda t: t.half(),
        "NaN": lambda t: t * nan,
        "infinite": lambda t: torch.full_like(t, float("inf")),
        "negative": lambda t: torch.full_like(t, -1.0),
        "missing": lambda t: None,
    }
    for part in (r"^optimizer\..*exp_avg$", r"^optimizer\..*exp_avg_sq$", r"^optimizer\..*step$", r"^network\..*mean$"):
        for what, how in changes.items():
            if not (part.endswith("step$") and what in ("of another shape", "flat", "empty")):
                yield Handmade("resume: state", f"{part}: {what}", tensor(part, how))
    for place, value in (
        *(
            (("optimizer",), {}),
            (("optimizer",), []),
            (("optimizer", "parameters"), []),
            (("optimizer", "stateless"), 3),
        ),
        *((("optimizer", "structure"), {}), (("optimizer", "structure"), {"dict": [["state", 3]]})),
        *((("progress", "epoch"), -1), (("progress", "epoch"), 10**9), (("progress", "batch"), 10**9)),
        *((("progress",), {}), (("progress",), []), (("progress", "step"), nan), (("best",), "low"), (("best",), nan)),
        *(
            (("rows",), 3),
            (("rows",), [{}]),
            (("rows",), [{"epoch": SCREAM}]),
            (("trace",), [[]]),
            (("sums",), {"a": 1}),
        ),
        *((("settings",), []), (("settings",), {"training": 3}), (("settings",), {"training": {"epochs": SCREAM}})),
    ):
        yield Handmade("resume: state", f"{'.'.join(place)} is {str(value)[:30]!a}", notes(*place, value=value))
    for what, value in {"threads": 10**9, "no threads": -1, "words": "many"}.items():
        yield Handmade("resume: tables", what, tree("threads", value=value), "stopped/environment.json")


# ---- saved and exported networks, weights to start from, and parts --------------------------------------------------


def _saved(secret: str) -> Iterator[Handmade]:
    built = ("built_as",)
    for place, value in (
        *(
            (built, {"name": "lenet5", "init": secret}),
            (built, {"name": f"hf:{secret}"}),
            (built, {"name": "os:system"}),
        ),
        *((built, []), (built, None), (built, {"name": 3}), (built, {"name": "lenet5", "num_classes": 10**12})),
        *(
            (built, {"name": "lenet5", "image_size": 10**9}),
            (built, {"name": "hf:owner/name"}),
            (built, {"name": "a" * 10**6}),
        ),
        *(
            (("structure",), []),
            (("structure",), {}),
            (("structure", "frozen"), "x"),
            (("structure", "posteriors"), [[]]),
        ),
        *(
            (("tensors",), {}),
            (("tensors",), {"tied": {"a": "a"}, "pruned": {}}),
            (("tensors",), {"tied": [], "pruned": {}}),
        ),
        *(
            (("tensors",), {"tied": {}, "pruned": {"a": [10**12]}}),
            (("data",), {"class_names": ["a", "a"]}),
            (("data",), None),
        ),
        *(
            (("version",), "9" * 4000),
            (("version",), None),
            (("format",), []),
            (("class",), SCREAM),
            (("temperature",), SCREAM),
        ),
        *((("members",), 3), (("members",), [{"name": []}]), (("members",), [{"name": "softplus"}] * 10**5)),
    ):
        yield Handmade("saved: description", f"{place[-1]} is {str(value)[:40]!a}", tree(*place, value=value))

    def circle(path: Path) -> None:
        import shutil

        shutil.rmtree(path.parent / "member0")
        (path.parent / "member0").symlink_to(path.parent, target_is_directory=True)

    yield Handmade("saved: description", "an ensemble that is its own member", circle, "several/network.json")
    trees: dict[str, str | bytes | Callable[[], bytes]] = {
        "deep lists": "[" * DEEP,
        "a list": "[]",
        "a number": "3",
        "a number of 5,000 digits": "9" * 5000,
        "20 MB": lambda: b'"' + b"a" * 2 * 10**7 + b'"',
        "a million lists": lambda: b"[" + b"[]," * 10**6 + b"[]]",
        "NaN": "NaN",
        "UTF-16": '{"format": 1}'.encode("utf-16"),
    }
    for kind in ("saved: description", "run: rule", "parts: manifest", "run: Hugging Face", "run: calibration"):
        for what, content in trees.items():
            yield Handmade(kind, what, write(content))
    for name, value in {
        "auto_map": {"AutoConfig": "somebody/code--configuration.Config"},
        "attn_implementation": "somebody/kernel",
        "_name_or_path": secret,
        "model_type": "timm_wrapper",
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "hidden_sizes": "large",
        "layer_type": secret,
        "hidden_act": "os.system",
        "trust_remote_code": True,
        "dtype": "secret",
        "id2label": {str(n): SCREAM for n in range(1000)},
        "out_features": [secret],
    }.items():
        yield Handmade("run: Hugging Face", f"{name} is {str(value)[:30]!a}", tree(name, value=value))


def _others(secret: str) -> Iterator[Handmade]:
    import torch

    def saved(content: Any, **options: Any) -> Callable[[], bytes]:
        def make() -> bytes:
            file = io.BytesIO()
            torch.save(content() if callable(content) else content, file, **options)
            return file.getvalue()

        return make

    circle: dict[str, Any] = {}
    circle["model"] = circle
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"model": deep}
    files: dict[str, bytes | Callable[[], bytes]] = {
        "a pickle that starts a program": pickle.dumps(_Harmful()),
        "the same in torch's form": saved({"a": _Harmful()}),
        "the same in torch's old form": saved({"a": _Harmful()}, _use_new_zipfile_serialization=False),
        "a whole network": saved(lambda: torch.nn.Linear(2, 2)),
        "a dictionary in itself": saved(circle),
        "300 dictionaries in each other": saved(deep),
        "numbers": saved({"a": 1}),
        "a list": saved([torch.zeros(1)]),
        "sparse tensors": saved({"a": torch.eye(3).to_sparse()}),
        "tensors that are views": saved(lambda: {"a": torch.zeros(1).expand(10**6)}),
        "a tensor of 4 TB in a byte": saved(lambda: {"conv1.weight": torch.zeros(1).expand(10**6, 10**6)}),
        "a tensor without memory": saved(lambda: {"a": torch.zeros(10**6, 10**6, device="meta")}),
        "names that clear the screen": saved({SCREAM: torch.zeros(1)}),
        "names that are numbers": saved({3: torch.zeros(1), None: torch.zeros(2)}),
        "20,000 tensors": saved(lambda: {str(n): torch.zeros(0) for n in range(20_000)}),
        "zeros packed a thousandfold": lambda: _repacked(
            saved(lambda: {"a": torch.zeros(4 * 10**8, dtype=torch.uint8)})()
        ),
        "a pickle without end": b"\x80\x02" + b"(" * 10**6,
        "a text of the old form": b"cos\nsystem\n(S'true'\ntR.",
    }
    for what, content in files.items():
        yield Handmade("initial weights of torch", what, write(content))
        yield Handmade("checkpoint of a Trainer", what, write(content))
    for place, value in (
        *(
            (("complete",), "no"),
            (("inputs",), []),
            (("settings",), SCREAM),
            (("chunk",), 10**400),
            (("rows",), SCREAM),
        ),
        *((("weights",), None), (("run",), secret), (("inputs", "images"), 10**9)),
    ):
        yield Handmade("parts: manifest", f"{place[-1]} is {str(value)[:30]!a}", tree(*place, value=value))

    def part(columns: dict[str, Any]) -> Make:
        def make(path: Path) -> None:
            import pyarrow as arrow
            from pyarrow import parquet

            path.unlink()
            parquet.write_table(arrow.table(columns), path)

        return make

    for what, columns in {
        "no column error": {"path": ["a"]},
        "errors that are numbers": {"error": [1, 2]},
        "no rows": {"error": []},
        "a million rows": {"error": [None] * 10**6},
    }.items():
        yield Handmade("parts: a part", what, part(columns))
    for what, value in {"[]": "[]", "deep lists": "[" * DEEP, "no JSON": SCREAM, "nothing": ""}.items():
        yield Handmade("exported", f"description: {what}", _described(value))
    for place, value in (
        *((("data", "size"), 4096), (("head",), "x"), (("rule",), {}), (("samples",), -1), (("fitted",), ["decision"])),
        *((("format",), SCREAM), (("data", "class_names"), ["a", "a"]), (("temperature",), float("nan"))),
    ):
        yield Handmade("exported", f"{'.'.join(place)} is {str(value)[:30]!a}", _described(place, value))
    for where in (secret, f"../secret/{Path(secret).name}", "/dev/zero", "picture.png"):
        yield Handmade("exported", f"its numbers are in {where[-12:]}", _external(where))


def _repacked(content: bytes) -> bytes:
    """A zip whose members are packed as well as can be."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


def _described(place: Any, value: Any = None) -> Make:
    """An exported network says something else of itself."""

    def how(content: bytes) -> bytes:
        import onnx

        model = onnx.load_from_string(content)
        entry = next(entry for entry in model.metadata_props if entry.key == "dubito")
        entry.value = place if isinstance(place, str) else json.dumps(_with(json.loads(entry.value), place, value))
        return bytes(model.SerializeToString())

    return change(how)


def _external(place: str) -> Make:
    """An exported network says that its numbers are in another file."""

    def how(content: bytes) -> bytes:
        import onnx

        model = onnx.load_from_string(content)
        largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        largest.ClearField("raw_data")
        largest.data_location = onnx.TensorProto.EXTERNAL
        largest.external_data.add(key="location", value=place)
        return bytes(model.SerializeToString())

    return change(how)
