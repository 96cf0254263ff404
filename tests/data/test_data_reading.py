"""Images on disk: which part of a picture a network sees, and batches that threads read."""

from __future__ import annotations

import itertools
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dubito.data import Batches, ImageFiles, PhotoAugmentation, in_memory, read_image, shrunk, with_channels
from dubito.data.fitting import Window, box, fitted
from dubito.data.reading import read_ahead
from dubito.errors import DataError, DubitoWarning, OptionError

RNG = np.random.default_rng(0)


def photo(path: Path, width: int, height: int, orientation: int = 1) -> Path:
    """A smooth picture: red grows to the right, green downwards, blue is constant."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.stack([x, y, np.full_like(x, 90)], -1).round().astype(np.uint8)
    Image.fromarray(pixels).save(
        path, exif=exif, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {})
    )
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    folder = tmp_path_factory.mktemp("photos")
    sizes = itertools.cycle([(160, 120), (120, 200), (128, 128)])
    paths = [photo(folder / f"{number:02}.jpg", *next(sizes)) for number in range(20)]
    return ImageFiles(paths, channels=3, size=72)


def test_crop_pad_and_stretch_show_the_part_that_they_name(tmp_path: Path) -> None:
    path = photo(tmp_path / "x.png", 200, 100)
    crop, pad, stretch = (read_image(path, 3, 50, fit=fit).float() for fit in ("crop", "pad", "stretch"))  # type: ignore[arg-type]
    # A pixel of the output is centred over `step` pixels of the picture, so a linear colour has a known value there.
    places = (torch.arange(50) + 0.5) / 50
    across = 255 * (places * 200 - 0.5) / 199
    assert torch.allclose(stretch[0, 25], across, atol=1)
    assert torch.allclose(crop[0, 25], 255 * (50 + places * 100 - 0.5) / 199, atol=1)
    assert torch.allclose(crop[1, :, 25], 255 * (places * 100 - 0.5) / 99, atol=1)
    assert torch.allclose(pad[0, 25], across, atol=2)
    assert bool((pad[:, :12] == 0).all())
    assert bool((pad[:, 38:] == 0).all())
    assert torch.allclose(pad[1, 14:36, 25], 255 * (((places[14:36] - 0.25) * 200) - 0.5) / 99, atol=2)
    with pytest.raises(OptionError, match="fit is 'squeeze', but must be one of 'crop', 'pad', 'stretch'"):
        read_image(path, 3, 50, fit="squeeze")  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_turned_file_gives_the_upright_image(tmp_path: Path, fit: str) -> None:
    upright = Image.open(photo(tmp_path / "x.png", 90, 300))
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    window = Window(0.5, 1.2, 0.3, 0.9, True)
    for part in (None, window):
        expected = read_image(tmp_path / "x.png", 3, 40, fit=fit, window=part)  # type: ignore[arg-type]
        assert torch.equal(read_image(tmp_path / "turned.png", 3, 40, fit=fit, window=part), expected)  # type: ignore[arg-type]


def test_a_large_jpeg_is_decoded_at_reduced_size_and_looks_the_same(tmp_path: Path) -> None:
    path = photo(tmp_path / "x.jpg", 1200, 900)
    with Image.open(path) as picture:
        slow = torch.from_numpy(fitted(picture.convert("RGB"), 64)).float()
    assert (read_image(path, 3, 64).float() - slow).abs().max() <= 4
    with Image.open(path) as picture:
        picture.draft(None, (86, 64))
        assert picture.size == (150, 113)  # what there is to gain


def test_windows_have_their_area_ratio_and_place() -> None:
    generator = torch.Generator().manual_seed(0)
    windows = PhotoAugmentation().windows(4000, generator)
    assert all(0.35 <= window.area <= 1 and 3 / 4 <= window.ratio <= 4 / 3 for window in windows)
    logs = torch.tensor([math.log(window.ratio) for window in windows])
    spread = math.log(4 / 3) / math.sqrt(3)  # of a uniform number from -log 4/3 to log 4/3
    assert abs(float(logs.mean())) < 5 * spread / math.sqrt(4000)
    areas = torch.tensor([window.area for window in windows])
    assert abs(float(areas.mean()) - 0.675) < 5 * (0.65 / math.sqrt(12)) / math.sqrt(4000)
    assert abs(sum(window.flip for window in windows) / 4000 - 0.5) < 5 * 0.5 / math.sqrt(4000)
    assert not any(window.flip for window in PhotoAugmentation(flip=False).windows(100, generator))
    for window in windows[:200]:
        for width, height in ((100, 100), (300, 40)):
            left, top, right, bottom = box(width, height, "crop", window)
            assert 0 <= left < right <= width + 1e-9
            assert 0 <= top < bottom <= height + 1e-9
            assert (right - left) / (bottom - top) == pytest.approx(window.ratio)
            share = (right - left) * (bottom - top) / (width * height)
            fits = math.sqrt(window.area * width * height / window.ratio) <= height
            assert share == pytest.approx(window.area) if fits and width == 300 else share <= window.area + 1e-9
    for wrong in ({"area": (0, 1)}, {"area": (0.5, 0.4)}, {"ratio": (2, 1)}):
        with pytest.raises(OptionError):
            PhotoAugmentation(**wrong)  # type: ignore[arg-type]


def test_a_window_is_the_part_of_the_picture_that_it_names(tmp_path: Path) -> None:
    path = photo(tmp_path / "x.png", 200, 100)
    straight = read_image(path, 3, 50, window=Window(0.5, 1, 0.25, 0, False)).float()
    places = (torch.arange(50) + 0.5) / 50
    assert torch.allclose(straight[0, 25], 255 * (25 + places * 100 - 0.5) / 199, atol=1)
    assert torch.equal(read_image(path, 3, 50, window=Window(0.5, 1, 0.25, 0, True)).float(), straight.flip(-1))


def test_files_are_chosen_like_rows_of_a_tensor(files: ImageFiles) -> None:
    whole = in_memory(files)
    assert whole.shape == files.shape == (20, 3, 72, 72)
    mask = torch.arange(20) % 3 == 0
    for index in (slice(2, 9, 3), [4, 1], torch.tensor([7, 7]), mask, slice(0, 0)):
        chosen = files[index]
        assert isinstance(chosen, ImageFiles)
        assert torch.equal(in_memory(chosen), whole[index])
    assert torch.equal(files[3], whole[3])
    assert torch.equal(torch.cat(list(files.split(7))), whole)
    assert torch.equal(in_memory(with_channels(files[:2], 1))[0], read_image(files.paths[0], 1, 72))
    assert shrunk(files[:2], 16).shape == shrunk(whole[:2], 16).shape == (2, 3, 16, 16)
    assert (shrunk(files[:2], 24).float() - shrunk(whole[:2], 24).float()).abs().max() < 8


def _equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def _batches(files: ImageFiles, **options: object) -> Batches:
    given = {"shuffle": True, "seed": 3, "augment": PhotoAugmentation(), **options}
    return Batches(files, torch.arange(20), 8, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_from_disk_do_not_depend_on_workers_and_resume_bit_for_bit(files: ImageFiles, workers: int) -> None:
    whole = list(_batches(files))
    other = _batches(files.like(files.paths, workers=workers))
    assert _equal(list(other), whole)
    other.set_epoch(0)
    for start in range(4):
        assert _equal(list(other.iter_from(start)), whole[start:])
    second = list(_batches(files).iter_from(0))
    assert _equal(second, whole)
    again = _batches(files)
    assert _equal(list(again), whole)
    assert not _equal(list(again), whole)
    ranks = [list(_batches(files, rank=rank, world_size=2)) for rank in (0, 1)]
    seen = torch.cat([labels for part in ranks for _, labels in part])
    assert sorted(seen.tolist()) == list(range(20))


def test_batches_from_disk_and_memory_are_equal_without_augmentation(files: ImageFiles) -> None:
    options = {"augment": None, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    assert _equal(list(_batches(files, **options)), list(_batches(in_memory(files), **options)))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="needs images on disk"):
        _batches(in_memory(files))  # type: ignore[arg-type]


def test_a_file_that_breaks_during_training_is_left_out_of_its_batch(files: ImageFiles, tmp_path: Path) -> None:
    paths = [*files.paths[:19], str(tmp_path / "gone.jpg")]
    whole = list(_batches(files))
    with pytest.warns(DubitoWarning, match=r"gone\.jpg does not exist. It is left out of its batch"):
        rest = list(_batches(files.like(paths)))
    assert [len(images) for images, _ in rest] == [len(images) - int((labels == 19).any()) for images, labels in whole]
    for (images, labels), (other, others) in zip(whole, rest, strict=True):
        kept = labels != 19
        assert torch.equal(images[kept], other)
        assert torch.equal(labels[kept], others)
    with pytest.raises(DataError, match=r"gone\.jpg does not exist"):
        list(Batches(files.like(paths[19:]), torch.arange(1), 8))
    with pytest.raises(DataError, match=r"gone\.jpg does not exist"):
        files.like(paths).read()


def test_reading_ahead_is_bounded_and_ends_with_its_iterator() -> None:
    begun: list[int] = []
    before = set(threading.enumerate())
    results = read_ahead(lambda number: begun.append(number) or number, range(1000), workers=2, ahead=5)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert max(begun) <= 10 + 5
    results.close()  # type: ignore[attr-defined]
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(begun) < 20
