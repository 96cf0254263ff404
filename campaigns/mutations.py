"""Mutations of files: seeded, by bytes and by what the bytes mean. Each takes a whole file and gives another one."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from copy import deepcopy
from random import Random
from typing import Any

__all__ = [
    "SCREAM",
    "Mutate",
    "by_bytes",
    "of_gzip",
    "of_json",
    "of_npz",
    "of_onnx",
    "of_png",
    "of_safetensors",
    "of_sizes",
    "of_text",
    "of_yaml",
    "packed",
    "png",
    "unpacked",
]

Mutate = Callable[[bytes, Random], bytes]

WHOLE = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
SIZES = (0, 1, 3, 4_000, 9_000, 30_000, 65_535, 10**6, 2**31 - 1)
"""Widths and heights of images, in pixels."""
NUMBERS = ("0", "-1", "1e999", "-0.0", "nan", "NaN", "inf", "1e308", "9" * 5000, "0x10", "1_0", ".5", "٣", "1e-400")
SCREAM = "\x1b[2J\x1b]0;owned\x07"
"""What clears a terminal, and renames it."""


def values(secret: str) -> tuple[Any, ...]:
    """What stands in a tree where something else is expected; `secret` is the path of a file that nobody may open."""
    deep: Any = "deep"
    for _ in range(45):
        deep = [deep]
    return (
        *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**70), 10**30, 0.5, -0.0, 1e-320, 1e308),
        *(math.nan, math.inf, -math.inf, "", " ", "a", "0", "nan", "é\u202e", "\x00", SCREAM, "x" * 20_000, "\ud800"),
        *(secret, f"file://{secret}", f"hf:{secret}", "os:system", "lenet5", "resnet20", "../..", "=1+1", "softmax"),
        *([], {}, [[]], [0.5], ["a", "a"], [math.nan], {"a": 1}, {"": {}}, [None] * 3, list(range(3000)), deep),
    )


def by_bytes(content: bytes, chance: Random, most: int = 8) -> bytes:
    """Bytes turned, set, left out, doubled, moved, cut off or put behind; most often near an end, where headers are."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, most)):
        at, length = _place(changed, chance), chance.choice((1, 1, 2, 4, 8, 64, 1000))
        match chance.randrange(9):
            case 0:
                changed[at : at + 1] = bytes(byte ^ (1 << chance.randrange(8)) for byte in changed[at : at + 1])
            case 1:
                changed[at : at + length] = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))]) * length
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                other = _place(changed, chance)
                changed[at : at + length] = changed[other : other + length]
            case 5 if chance.random() < 0.3:
                del changed[at:]
            case 6:
                changed += chance.randbytes(length)
            case _:
                code = chance.choice(("B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
                size = struct.calcsize(code)
                changed[at : at + size] = struct.pack(code, chance.choice(WHOLE) % 256**size)
    return bytes(changed)


def _place(content: bytearray, chance: Random) -> int:
    near = min(len(content), chance.choice((32, 256, 2**40)))
    place = chance.randrange(near + 1)
    return place if chance.random() < 0.7 else len(content) - place


def of_text(content: bytes, chance: Random) -> bytes:
    """Numbers, words, quotes and lines of a text changed, and control characters put in."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(chance.randint(1, 4)):
        lines = text.split("\n")
        line = chance.randrange(len(lines))
        match chance.randrange(7):
            case 0 | 1 if found := list(re.finditer(r"-?\d+(\.\d+)?", text)):
                text = _replaced(text, chance.choice(found), chance.choice(NUMBERS))
            case 2 if found := list(re.finditer(r"\w+", text)):
                text = _replaced(text, chance.choice(found), chance.choice(found)[0])
            case 3:
                text = "\n".join([*lines[:line], *lines[line : line + 1] * 2, *lines[line + 1 :]])
            case 4:
                text = "\n".join([*lines[:line], *lines[line + 1 :]])
            case 5:
                at = chance.randrange(len(text) + 1)
                more = (
                    "\x00",
                    "\x1b[2J",
                    "\r",
                    '"',
                    "'",
                    "{",
                    "[",
                    "]",
                    "}",
                    ":",
                    ",",
                    "\ufeff",
                    "\u2028",
                    "&a ",
                    "*a",
                )
                text = text[:at] + chance.choice(more) * chance.choice((1, 1, 1, 100)) + text[at:]
            case _ if found := list(re.finditer(r"[^\w\s]", text)):
                text = _replaced(text, chance.choice(found), chance.choice(("", ",", ":", "\t", "\n", "!!", "- ")))
    return text.encode("utf-8", "surrogateescape")


def _replaced(text: str, found: re.Match[str], by: str) -> str:
    return text[: found.start()] + by + text[found.end() :]


def mutated_tree(tree: Any, chance: Random, pool: tuple[Any, ...]) -> Any:
    """A tree of lists and dictionaries with a few values replaced, left out, renamed, exchanged or put in; in place."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return chance.choice(pool)
        outer, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del outer[key]
            case 1 if isinstance(outer, dict):
                outer[chance.choice((f"{key}x", "", "size", "file", "0", SCREAM))] = outer.pop(key)
            case 2:
                other, place = chance.choice(places)
                outer[key] = json.loads(json.dumps(other[place]))
            case 3 if isinstance(outer[key], (int, float)) and not isinstance(outer[key], bool):
                outer[key] = chance.choice((-outer[key], outer[key] * 10**9, outer[key] + 1, str(outer[key])))
            case _:
                outer[key] = deepcopy(chance.choice(pool))  # which would else be put into itself
    return tree


def _places(tree: Any) -> Iterable[tuple[Any, Any]]:
    """Every place in a tree, as what it is in and its key."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield tree, key
        yield from _places(value)


def of_json(secret: str) -> Mutate:
    """Mutations of what a JSON file says."""

    def mutate(content: bytes, chance: Random) -> bytes:
        tree = mutated_tree(json.loads(content), chance, values(secret))
        return json.dumps(tree).encode()

    return mutate


def of_yaml(secret: str) -> Mutate:
    """Mutations of what a YAML file says."""
    import yaml

    def mutate(content: bytes, chance: Random) -> bytes:
        pool = tuple(value for value in values(secret) if value != "\ud800")  # which YAML cannot be written with
        tree = mutated_tree(yaml.load(content, yaml.CSafeLoader), chance, pool)
        text = str(yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=chance.random() < 0.5))
        if chance.random() < 0.1:  # an alias, or the same name twice
            text += chance.choice(("a: &a [1]\nb: *a\n", text, "? [a]\n: 1\n", "<<: {a: 1}\n", "!!binary a\n"))
        return text.encode("utf-8", "surrogatepass")

    return mutate


def of_safetensors(secret: str) -> Mutate:
    """Mutations of types, shapes, offsets, numbers and notes of tensors; half of them in a well-formed file."""

    def mutate(content: bytes, chance: Random) -> bytes:
        header, data = unpacked(content)
        match chance.randrange(6):
            case 0 | 1 if "__metadata__" in header:
                notes = header["__metadata__"]
                key = chance.choice(sorted(notes))
                changed = mutated_tree(json.loads(notes[key]), chance, values(secret))
                notes[key] = json.dumps(changed)
            case 2:
                header = mutated_tree(header, chance, values(secret))
            case 3:
                return by_bytes(content, chance)
            case _:
                return _with_other_tensors(header, data, chance)
        return packed(header, data)

    return mutate


def _with_other_tensors(header: dict[str, Any], data: bytes, chance: Random) -> bytes:
    """A well-formed file in which some tensors have other numbers, types or shapes, are missing, or are new."""
    notes = header.pop("__metadata__", None)
    parts = {name: (about, data[slice(*about["data_offsets"])]) for name, about in header.items()}
    for name in chance.sample(sorted(parts), min(len(parts), chance.choice((1, 1, 2, 5)))):
        about, own = parts[name]
        match chance.randrange(6):
            case 0:
                del parts[name]
            case 1:
                parts[name + chance.choice(("x", ".", " ", "\x1b"))] = parts.pop(name)
            case 2:
                parts[name] = ({**about, "dtype": chance.choice(("I32", "U32"))}, own)
            case 3:
                shape = about["shape"]
                other = chance.choice(([*shape[1:], *shape[:1]], [math.prod(shape)], [1, *shape], [*shape, 1]))
                parts[name] = ({**about, "shape": other}, own)
            case 4:
                size = chance.choice((0, 1, 7))
                parts[name] = ({"dtype": chance.choice(("F16", "F64", "BF16", "I8", "BOOL")), "shape": [size]}, b"")
                width = {"F16": 2, "F64": 8, "BF16": 2}.get(parts[name][0]["dtype"], 1)
                parts[name] = (parts[name][0], b"\x01" * size * width)
            case _:
                pattern = chance.choice(
                    (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\0\0", b"\xff\xff\x7f\x7f", b"\xff" * 4)
                )
                parts[name] = (about, (pattern * (len(own) // 4 + 1))[: len(own)])
    body, told = b"", {} if notes is None else {"__metadata__": notes}
    for name, (about, own) in parts.items():
        told[name] = {**about, "data_offsets": [len(body), len(body) + len(own)]}
        body += own
    return packed(told, body)


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def packed(header: Any, data: bytes) -> bytes:
    """The safetensors file of a header and data.

    >>> unpacked(packed({"a": 1}, b"data"))
    ({'a': 1}, b'data')
    """
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def of_sizes(content: bytes, chance: Random, width: int = 37, height: int = 53) -> bytes:
    """Whatever may be the width or height of an image set to another number, in every coding of numbers."""
    codes = ("<H", ">H", "<I", ">I")
    known = [struct.pack(code, side + less) for code in codes for side in (width, height) for less in (0, -1)]
    known += [str(side).encode() for side in (width, height)]
    found = [(place.start(), one) for one in known for place in re.finditer(re.escape(one), content[:2000])]
    changed = bytearray(content)
    for at, one in chance.sample(found, min(len(found), chance.choice((1, 2, 4, 8)))):
        size = chance.choice(SIZES)
        if one.isdigit():
            changed[at : at + len(one)] = str(size).encode()
        else:
            code = "<" if one[0] else ">"
            code += {2: "H", 4: "I"}[len(one)]
            changed[at : at + len(one)] = struct.pack(code, size % 256 ** len(one))
    return _with_checksums(bytes(changed))


def of_png(content: bytes, chance: Random) -> bytes:
    """Chunks of a PNG changed, doubled, left out or moved, with checksums that fit; other files are left to bytes."""
    if not content.startswith(_PNG):
        return by_bytes(content, chance)
    chunks = list(_chunks(content))
    for _ in range(chance.randint(1, 3)):
        number = chance.randrange(len(chunks))
        kind, data = chunks[number]
        match chance.randrange(6):
            case 0 if kind == b"IDAT":
                chunks[number] = kind, zlib.compress(by_bytes(_inflated(data), chance))
            case 1:
                chunks[chance.randrange(len(chunks))] = chunks[number]
            case 2:
                chunks.insert(number, (chance.choice((b"tRNS", b"PLTE", b"iCCP", b"zTXt", b"eXIf", b"acTL")), data))
            case 3:
                bomb = b"name\0\0" + zlib.compress(bytes(10**7))
                chunks.insert(number, (chance.choice((b"iCCP", b"zTXt")), bomb))
            case 4 if len(chunks) > 2:
                del chunks[number]
            case _:
                chunks[number] = kind, by_bytes(data, chance, 2)
    return _PNG + b"".join(map(_chunk, chunks))


_PNG = b"\x89PNG\r\n\x1a\n"


def _chunks(content: bytes) -> Iterable[tuple[bytes, bytes]]:
    at = len(_PNG)
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        yield content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        at += 12 + length


def png(width: int, height: int, bits: int, colour: int, pixels: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG with this header, these unpacked pixels, and more chunks before them."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), *more, (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    return _PNG + b"".join(map(_chunk, chunks))


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _with_checksums(content: bytes) -> bytes:
    """A PNG whose chunks say what they hold; anything else as it is."""
    return _PNG + b"".join(map(_chunk, _chunks(content))) if content.startswith(_PNG) else content


def _inflated(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return data


def of_gzip(content: bytes, chance: Random) -> bytes:
    """What a gzip file holds changed by bytes, and packed again."""
    return gzip.compress(by_bytes(gzip.decompress(content), chance), 1, mtime=0)


def of_npz(content: bytes, chance: Random) -> bytes:
    """Arrays of an .npz with other headers and bytes, packed again; or entries of its directory changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(sorted(members))
    own = members[name]
    head, body = own[:128], own[128:]
    match chance.randrange(5):
        case 0:
            head = of_text(head.replace(b" ", b""), chance).ljust(128)[:128]
        case 1:
            kinds = (
                b"'|O'",
                b"'<f2'",
                b"'<c16'",
                b"'<i8'",
                b"'|S9'",
                b"'<U9'",
                b"'<M8[s]'",
                b"'|V4'",
                b"[('a','<f4')]",
            )
            head = re.sub(rb"'[|<]..'", chance.choice(kinds), head, count=1).ljust(128)[:128]
        case 2:
            shape = b"(" + b",".join(str(chance.choice(WHOLE)).encode() for _ in range(chance.randint(0, 5))) + b",)"
            head = re.sub(rb"\([^)]*\)", shape, head, count=1).ljust(128)[:128]
        case 3:
            body = by_bytes(body, chance)
        case _:
            return by_bytes(content, chance)
    members[name] = head + body
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for inner, data in members.items():
            archive.writestr(inner, data)
    return file.getvalue()


def of_onnx(secret: str, key: str) -> Mutate:
    """What an ONNX file says of itself changed, or its graph: names, numbers, shapes, and where its numbers are."""
    import onnx

    def mutate(content: bytes, chance: Random) -> bytes:
        model = onnx.load_from_string(content)
        entry = next(entry for entry in model.metadata_props if entry.key == key)
        tensor = chance.choice(model.graph.initializer)
        node = chance.choice(model.graph.node)
        match chance.randrange(7):
            case 0 | 1:
                entry.value = json.dumps(mutated_tree(json.loads(entry.value), chance, values(secret))).encode(
                    "utf-8", "replace"
                )
            case 2:
                tensor.dims[:] = [chance.choice((0, 1, -1, 2**40)) for _ in tensor.dims]
            case 3:
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value=chance.choice((secret, "../secret/password", "x")))
            case 4:
                node.op_type = chance.choice(("Loop", "Reshape", "Expand", "ConstantOfShape", "Mul", "x", "MatMul"))
            case 5:
                node.input[:] = [chance.choice(model.graph.node).output[0] for _ in node.input]
            case _:
                return by_bytes(content, chance)
        return bytes(model.SerializeToString())

    return mutate
