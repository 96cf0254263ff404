"""Image files of every kind become the tensors that the networks expect."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubito.data import fitting, images, read_image
from dubito.errors import DataError, OptionError

RED = (255, 0, 0)


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "webp", "tiff", "jpg", "ppm"])
def test_common_formats_give_the_same_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.new("RGB", (32, 32), (200, 100, 50)).save(path)
    image = read_image(path, 3)
    assert image.shape == (3, 32, 32)
    assert image.dtype == torch.uint8
    assert torch.allclose(image.float().mean((1, 2)), torch.tensor([200.0, 100.0, 50.0]), atol=4)
    gray = read_image(path, 1)
    assert gray.shape == (1, 32, 32)
    assert abs(float(gray.float().mean()) - (0.299 * 200 + 0.587 * 100 + 0.114 * 50)) < 4


def test_pixels_of_the_right_size_are_left_alone(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert np.array_equal(read_image(tmp_path / "x.png", 3).numpy(), pixels.transpose(2, 0, 1))
    assert np.array_equal(read_image(tmp_path / "x.png", 3, padding=2).numpy(), pixels.transpose(2, 0, 1))


def test_padding_frames_the_image_like_mnist(tmp_path: Path) -> None:
    Image.new("L", (28, 28), 255).save(tmp_path / "x.png")
    image = read_image(tmp_path / "x.png", 1, padding=2)
    assert int(image.long().sum()) == 28 * 28 * 255
    assert bool((image[:, 2:30, 2:30] == 255).all())
    Image.new("L", (100, 50), 255).save(tmp_path / "y.png")
    assert torch.equal(read_image(tmp_path / "y.png", 1, padding=2), image)
    assert bool((read_image(tmp_path / "y.png", 1) == 255).all())


@pytest.mark.parametrize("values", [(0, 0), (65535, 255), (257, 1), (32768, 128)])
def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path, values: tuple[int, int]) -> None:
    Image.fromarray(np.full((32, 32), values[0], np.uint16)).save(tmp_path / "x.png")
    Image.fromarray(np.full((32, 32), values[0], np.int32)).save(tmp_path / "x.tiff")
    for name in ("x.png", "x.tiff"):
        assert read_image(tmp_path / name, 3).unique().tolist() == [values[1]]


def test_floats_must_lie_between_0_and_1(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 0.2, np.float32)).save(tmp_path / "x.tiff")
    assert read_image(tmp_path / "x.tiff", 1).unique().tolist() == [51]
    Image.fromarray(np.full((8, 8), 3, np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(DataError, match=r"x\.tiff has pixel values from 3\.0 to 3\.0"):
        read_image(tmp_path / "x.tiff", 1)


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    half = Image.new("RGBA", (32, 32), (*RED, 0))
    half.paste((*RED, 255), (0, 0, 16, 32))
    half.save(tmp_path / "rgba.png")
    half.convert("LA").save(tmp_path / "la.png")
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([0, 0, 0, *RED])
    palette.paste(1, (0, 0, 16, 32))
    palette.save(tmp_path / "p.png", transparency=0)
    for name in ("rgba.png", "p.png"):
        image = read_image(tmp_path / name, 3)
        assert image[:, 0, 0].tolist() == list(RED)
        assert image[:, 0, 31].tolist() == [255, 255, 255]
    assert read_image(tmp_path / "la.png", 1)[0, 0, [0, 31]].tolist() == [76, 255]


def test_palette_bilevel_and_cmyk_images_are_read(tmp_path: Path) -> None:
    palette = Image.new("P", (32, 32), 1)
    palette.putpalette([0, 0, 0, *RED])
    palette.save(tmp_path / "p.png")
    assert read_image(tmp_path / "p.png", 3)[:, 5, 5].tolist() == list(RED)
    Image.new("1", (32, 32), 1).save(tmp_path / "1.png")
    assert read_image(tmp_path / "1.png", 1).unique().tolist() == [255]
    Image.new("CMYK", (32, 32), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    red = read_image(tmp_path / "cmyk.jpg", 3)[:, 5, 5].float()
    assert torch.allclose(red, torch.tensor([255.0, 0, 0]), atol=6)


def test_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in (RED, (0, 0, 255))]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "x.gif", 3)[:, 0, 0].tolist() == list(RED)


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    picture = Image.new("L", (32, 32), 0)
    picture.paste(255, (0, 0, 32, 16))  # white above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter: white to the right
    picture.save(tmp_path / "x.png", exif=exif)
    image = read_image(tmp_path / "x.png", 1)
    assert image[0, 16, [2, 29]].tolist() == [0, 255]


def test_open_files_are_read_too() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (9, 9), RED).save(stream, "png")
    stream.seek(0)
    assert read_image(stream, 3)[:, 0, 0].tolist() == list(RED)
    with pytest.raises(DataError, match="the image cannot be read as an image"):
        read_image(io.BytesIO(b"no"), 3)


def png(size: tuple[int, int] = (64, 64)) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(noise).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a known image format"),
        (b"hello", "not a known image format"),
        (png()[:2000], "truncated"),
        (png()[:40], ""),
        (png()[:2000] + bytes(100) + png()[2100:], ""),
    ],
)
def test_unreadable_files_are_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as an image") as error:
        read_image(path, 3)
    text = str(error.value)
    assert str(path) in text
    assert reason in text
    assert "\n" not in text


def test_a_sentence_quotes_no_name_of_any_length() -> None:
    """A list of images may have a line of a megabyte, of which a terminal would show each control character as four."""
    for look in (lambda path: read_image(path, 3), images.inspect_image):
        with pytest.raises(DataError, match=r"^pictures/.* \.\.\. .*does not exist\.$") as error:
            look("pictures/" + "\1" * 100_000)
        assert len(str(error.value)) < 400
        assert str(error.value).isprintable()


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.png does not exist"):
        read_image(tmp_path / "absent.png", 3)
    with pytest.raises(DataError, match="is a folder"):
        read_image(tmp_path, 3)
    with pytest.raises(OptionError, match="channels is 2"):
        read_image(tmp_path, 2)


@pytest.mark.parametrize("side", [9_500, 40_000])
def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path: Path, side: int) -> None:
    """The header alone claims the size; there are no pixels behind it."""
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    content = b"\x89PNG\r\n\x1a\n" + chunk + png()[33:]
    (tmp_path / "bomb.png").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one sentence, no warning beside it
        with pytest.raises(DataError, match=r"bomb\.png .* pixels"):
            read_image(tmp_path / "bomb.png", 3)


def test_transparency_of_sixteen_bits_is_laid_over_white(tmp_path: Path) -> None:
    pixels = np.zeros((32, 32), np.uint16)
    pixels[:16] = 30_000
    Image.fromarray(pixels).save(tmp_path / "x.png", transparency=30_000)
    image = read_image(tmp_path / "x.png", 1)
    assert image[0, [0, 15, 16, 31], 5].tolist() == [255, 255, 0, 0]


@pytest.mark.parametrize(
    ("mode", "orientation"),
    # Pillow 13 itself scrambles an uncompressed CMYK TIFF that lies on its side, so that one stands upright.
    [*((mode, turn) for mode in ("P", "RGBA", "LA", "I;16", "F", "RGB", "L") for turn in (1, 6)), ("CMYK", 1)],
)
def test_large_pictures_are_converted_in_strips_to_what_small_ones_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int
) -> None:
    gray = np.add.outer(np.arange(240), np.arange(400)) * 255 // 638
    picture = Image.fromarray(gray.astype(np.uint8))
    made = Image.fromarray((gray / 255).astype(np.float32)) if mode == "F" else picture.convert(mode)
    path = tmp_path / ("x.tif" if mode in ("F", "CMYK") else "x.png")
    exif = Image.Exif()
    exif[0x0112] = orientation
    made.save(path, exif=exif)
    for fit in fitting.FITS:
        usual = read_image(path, 3, 32, fit=fit).int()
        with monkeypatch.context() as patch:
            patch.setattr(images, "LARGE", 1000)
            patch.setattr(images, "_STRIP", 2000)
            assert (read_image(path, 3, 32, fit=fit).int() - usual).abs().float().mean() < 3


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16"])
def test_strips_change_no_pixel_of_a_picture_that_is_not_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    noise = Image.effect_noise((70, 50), 100)
    picture = Image.merge("RGBA", [noise.rotate(angle) for angle in (0, 10, 20, 30)])
    picture = noise.convert("I;16") if mode == "I;16" else picture.convert(mode)
    picture.save(tmp_path / "x.png", **({"transparency": 3} if mode == "P" else {}))
    usual = read_image(tmp_path / "x.png", 3, 32)
    monkeypatch.setattr(images, "_STRIP", 300)
    assert torch.equal(read_image(tmp_path / "x.png", 3, 32), usual)


def test_a_large_picture_takes_bounded_memory_and_gives_it_back(tmp_path: Path) -> None:
    """A palette is converted in strips, and heap that is free is given back though the process keeps small parts."""
    import subprocess
    import sys

    Image.new("P", (5000, 5000)).save(tmp_path / "palette.png", transparency=0)
    code = (
        "from dubito.memory import keep_freed_memory; keep_freed_memory(); import re, sys\n"
        "from pathlib import Path; from PIL import Image; from dubito.data import read_image\n"
        "def kilobytes(what): return int(re.search(what + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "Image.init(); before = kilobytes('VmRSS'); read_image(sys.argv[1], 3)\n"
        "print(kilobytes('VmHWM') - before, kilobytes('VmRSS') - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "palette.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, kept = (int(number) / 1024 for number in done.stdout.split())
    assert peak < 80, "the picture has 24 MB, in RGBA 95"
    assert kept < 12


@pytest.mark.parametrize("form", ["EPS", "ICO", "PCX", "TGA", "SGI"])
def test_other_formats_are_refused_whatever_the_name(tmp_path: Path, form: str) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "photo.png", form)
    for read in (lambda path: read_image(path, 3), images.inspect_image):
        with pytest.raises(DataError, match="not a known image format"):
            read(tmp_path / "photo.png")


def test_a_jpeg_of_endless_scans_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (2000, 2000)).save(tmp_path / "x.jpg", progressive=True)
    content = (tmp_path / "x.jpg").read_bytes()
    start = content.rindex(b"\xff\xda")
    (tmp_path / "x.jpg").write_bytes(content[:start] + content[start:-2] * 300 + b"\xff\xd9")
    with pytest.raises(DataError, match="scans"):
        read_image(tmp_path / "x.jpg", 3)


def test_a_line_of_pixels_is_padded_within_bounds(tmp_path: Path) -> None:
    Image.new("L", (60_000, 2), 255).save(tmp_path / "line.png")
    assert read_image(tmp_path / "line.png", 1, 32, fit="pad").shape == (1, 32, 32)


def test_the_limit_of_an_image_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (100, 100)).save(tmp_path / "x.png")
    monkeypatch.setenv("DUBITO_MAX_IMAGE_BYTES", "8000")
    with pytest.raises(DataError, match=r"at most 1000 of a PNG.*DUBITO_MAX_IMAGE_BYTES"):
        read_image(tmp_path / "x.png", 1)
