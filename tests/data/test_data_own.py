"""The user's own data: folders of classes and .npz files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubito.data import in_memory, load, open_dataset, read_image, statistics
from dubito.errors import DataError, DubitoWarning, OptionError

RNG = np.random.default_rng(0)


def picture(path: Path, gray: bool = False, value: int | None = None, size: tuple[int, int] = (32, 32)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if gray else (*size, 3)
    pixels = RNG.integers(0, 256, shape) if value is None else np.full(shape, value)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def class_folders(root: Path, counts: dict[str, int], gray: bool = False) -> None:
    for name, count in counts.items():
        for number in range(count):
            picture(root / name / f"{number:03}.png", gray)


def test_a_folder_of_classes_is_split_by_the_seed_and_by_class(tmp_path: Path) -> None:
    class_folders(tmp_path, {"cat": 20, "ant": 10})
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    train, test = load(tmp_path, "train"), load(tmp_path, "test")
    assert train.class_names == test.class_names == ("ant", "cat")
    assert torch.bincount(train.labels).tolist() == [8, 16]
    assert torch.bincount(test.labels).tolist() == [2, 4]
    every = torch.cat([train.images, test.images])
    files = sorted(tmp_path.rglob("*.png"))
    originals = {read_image(path, 3).numpy().tobytes() for path in files}
    assert {image.numpy().tobytes() for image in every} == originals
    assert len(originals) == 30
    assert torch.equal(load(tmp_path, "test").images, test.images)
    assert not torch.equal(load(tmp_path, "test", seed=1).images, test.images)


def test_train_and_test_folders_are_kept_and_statistics_come_from_training_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / "train" / name / "x.png", gray=True)
        picture(tmp_path / "test" / name / "x.png", gray=True, value=255)
    train, test = load(tmp_path, "train"), load(tmp_path, "test")
    assert (len(train), len(test)) == (2, 2)
    assert train.channels == 1
    assert int(test.images.min()) == 255
    assert (test.mean, test.std) == (train.mean, train.std) == statistics(train.images)
    values = train.images.double() / 255
    assert train.mean[0] == pytest.approx(float(values.mean()), abs=1e-6)
    assert train.std[0] == pytest.approx(float(values.std(correction=0)), abs=1e-6)


def test_training_does_not_open_a_folders_test_images(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    for name in ("a", "b"):
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "x.png").write_bytes(b"not an image")
    source = open_dataset(tmp_path)
    assert len(source.train()) == 4
    with pytest.raises(DataError, match="not a known image format"):
        source.test()


def test_broken_images_of_the_share_that_is_set_aside_are_named_before_training(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 10, "b": 10})
    train, held_out = _paths(tmp_path)
    whole = load(tmp_path, "test")
    for path in (train[3], held_out[0]):
        path.write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"2 of the 20 images of .* --strict refuses") as refused:
        open_dataset(tmp_path, strict=True).train()
    assert all(str(path) in str(refused.value) for path in (train[3], held_out[0]))
    source = open_dataset(tmp_path)
    with pytest.warns(DubitoWarning, match=r"2 of the 20 images of .* are left out") as caught:
        rest = source.train()
    assert len(rest) == 15  # the split stays what it was
    assert torch.equal(in_memory(source.test().images), in_memory(whole.images)[1:])  # and is not told again
    assert all(f"{path} cannot be read as an image" in str(caught[0].message) for path in (train[3], held_out[0]))
    for path in held_out:
        path.write_bytes(b"not an image")
    with pytest.warns(DubitoWarning, match="5 of the 20"), pytest.raises(DataError, match="4 of the 4 test images of"):
        load(tmp_path, "test")


def test_data_without_splits_can_be_tested_as_a_whole(tmp_path: Path) -> None:
    class_folders(tmp_path / "own", {"a": 10, "b": 10})
    rows = "".join(f"own/{name}/{number:03}.png,{name}\n" for name in "ab" for number in range(10))
    (tmp_path / "own.csv").write_text(f"path,label\n{rows}")
    np.savez(tmp_path / "own.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    for name in ("own", "own.csv", "own.npz"):
        source = open_dataset(tmp_path / name)
        assert not source.has_splits
        assert (len(source.test()), len(source.test(whole=True))) == (4, 20)
        assert torch.bincount(source.test(whole=True).labels).tolist() == [10, 10]
    class_folders(tmp_path / "split" / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "split" / "test", {"a": 1, "b": 2})
    assert len(open_dataset(tmp_path / "split").test(whole=True)) == 3


def _paths(root: Path) -> tuple[list[Path], list[Path]]:
    from dubito.data.listing import ClassFolders

    folders = ClassFolders(root)
    return folders.files("train")[0], folders.files("test")[0]


def test_gray_images_stay_gray_unless_one_has_colours(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 5, "b": 5}, gray=True)
    assert load(tmp_path, "train").channels == 1
    train, _ = _paths(tmp_path)
    picture(train[0])
    assert load(tmp_path, "train").channels == 3
    assert load(tmp_path, "test").channels == 3


def test_other_sizes_are_resized(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "small.png", value=7, size=(8, 20))
    picture(tmp_path / "b" / "large.jpg", value=7, size=(100, 50))
    data = load(tmp_path, "train")
    assert data.images.shape == (2, 3, 32, 32)
    assert set(data.images.unique().tolist()) == {7}
    assert load(tmp_path, "train", size=12).images.shape == (2, 3, 12, 12)


def test_every_kind_of_own_data_comes_in_the_size_that_is_asked_for(tmp_path: Path) -> None:
    class_folders(tmp_path / "folder", {"a": 5, "b": 5}, gray=True)
    np.savez(tmp_path / "own.npz", images=np.zeros((10, 32, 32), np.uint8), labels=LABELS)
    for path in (tmp_path / "folder", tmp_path / "own.npz"):
        source = open_dataset(path, size=48)
        assert source.size == source.train().size == 48
        assert source.test().images.shape[1:] == (1, 48, 48)
    for size in (0, -1, 10**6):
        with pytest.raises(OptionError, match="size is"):
            open_dataset(tmp_path / "own.npz", size=size)


def test_folders_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sub-folders"):
        open_dataset(tmp_path)
    class_folders(tmp_path / "one" / "train", {"a": 1})
    with pytest.raises(DataError, match="no such folder 'test'"):
        open_dataset(tmp_path / "one")
    class_folders(tmp_path / "one" / "test", {"other": 1})
    with pytest.raises(DataError, match="other is a class that the training images do not have"):
        load(tmp_path / "one", "test")
    class_folders(tmp_path / "two", {"a": 2})
    (tmp_path / "two" / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no images"):
        load(tmp_path / "two", "train")


def test_a_path_is_never_taken_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "mnist", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    for path in (Path("mnist"), "./mnist"):
        assert open_dataset(path).class_names == ("a", "b")
    assert open_dataset("mnist").num_classes == 10


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    class_folders(tmp_path, {"bus": 2, "train": 2})
    assert open_dataset(tmp_path).class_names == ("bus", "train")


def test_all_broken_images_are_named_at_once_and_left_out(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 10, "b": 10})
    train, _ = _paths(tmp_path)
    whole = load(tmp_path, "train")
    train[0].write_bytes(b"")
    train[9].write_bytes(train[9].read_bytes()[:-40])
    Image.new("RGB", (40, 40)).save(tmp_path / "a" / "x.eps")
    (tmp_path / "a" / "x.eps").rename(train[12])  # by its content, which is never given to Pillow's EPS reader
    broken = [train[number] for number in (0, 9, 12)]
    with pytest.warns(DubitoWarning, match="3 of the 20 images .* are left out") as caught:
        rest = load(tmp_path, "train")
    text = "".join(str(warning.message) for warning in caught)
    assert all(f"{path} cannot be read as an image" in text for path in broken)
    kept = [number for number in range(16) if number not in (0, 9, 12)]
    assert torch.equal(in_memory(rest.images), in_memory(whole.images)[kept])
    assert rest.labels.tolist() == whole.labels[kept].tolist()
    with pytest.raises(DataError, match=r"3 of the 20 images .* --strict refuses") as refused:
        open_dataset(tmp_path, strict=True).train()
    assert all(str(path) in str(refused.value) for path in broken)
    for path in train:
        path.write_bytes(b"")
    with pytest.raises(DataError, match="which is all of them"):
        load(tmp_path, "train")


def test_validation_folders_are_used_for_validation(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 6, "b": 4})
    class_folders(tmp_path / "test", {"a": 2, "b": 2})
    assert open_dataset(tmp_path).validation() is None
    class_folders(tmp_path / "val", {"a": 3, "b": 1})
    source = open_dataset(tmp_path)
    kept, held_out = source.parts(0.5, seed=3)
    assert torch.bincount(kept.labels).tolist() == [6, 4]
    assert torch.bincount(held_out.labels).tolist() == [3, 1]
    assert len(source.test()) == 4
    assert "10 train, 4 validation and 4 test images" in source.describe_splits()
    shutil.rmtree(tmp_path / "test")
    assert len(open_dataset(tmp_path).parts()[1]) == 4
    with pytest.raises(DataError, match="has no test images, only train and validation"):
        load(tmp_path, "test")
    with pytest.raises(DataError, match="digits has no validation images of its own"):
        load("digits", "validation")


def test_files_in_the_format_of_a_phone_do_not_go_unnoticed(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 6, "b": 4})
    assert "left out" not in open_dataset(tmp_path).describe_splits()
    for name in ("a/1.HEIC", "a/deeper/2.heic", "b/notes", "b/.hidden.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert (
        open_dataset(tmp_path)
        .describe_splits()
        .endswith("Files that are not images (png, jpg, bmp, gif, webp, tiff) are left out: 2 .heic, 1 notes.")
    )


def test_a_table_of_paths_and_labels_is_data(tmp_path: Path) -> None:
    class_folders(tmp_path, {"x": 10, "y": 10})
    rows = [(path.relative_to(tmp_path), "cat" if path.parent.name == "y" else "dog") for path in _sorted(tmp_path)]
    table = tmp_path / "images.csv"
    table.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    train, test = load(table, "train"), load(table, "test")
    assert train.class_names == ("cat", "dog")
    assert (len(train), len(test)) == (16, 4)
    splits = ["train"] * 5 + ["val"] * 2 + ["test"] * 3
    lines = [f"{path},{label},{split}\n" for (path, label), split in zip(rows, splits * 2, strict=True)]
    table.write_text("path,label,split\n" + "".join(lines))
    source = open_dataset(table)
    assert [len(part) for part in (*source.parts(), source.test())] == [10, 4, 6]
    assert torch.equal(source.train().images[0], read_image(tmp_path / rows[0][0], 3))
    assert source.train().labels.tolist() == [1] * 5 + [0] * 5


TABLES = {
    "columns": ("file,label\na.png,b\n", "must have the columns path and label, named in its first line"),
    "empty": ("path,label\n", "has no rows"),
    "hole": ("path,label\na.png,\n", "Line 2 of .* lacks a path or a label"),
    "split": ("path,label,split\na.png,b,later\n", "has the split 'later'"),
    "test alone": ("path,label,split\na.png,b,test\n", "has no row with the split 'train'"),
    "class": ("path,label,split\na.png,b,train\na.png,c,test\n", "has the test class 'c'"),
    "bytes": ("path,label\n\udcff,b\n", "cannot be read as a table"),
}


@pytest.mark.parametrize("fault", TABLES)
def test_tables_that_make_no_sense_are_refused(tmp_path: Path, fault: str) -> None:
    text, reason = TABLES[fault]
    picture(tmp_path / "a.png")
    (tmp_path / "own.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=reason):
        load(tmp_path / "own.csv", "test")


def test_a_plain_folder_serves_where_classes_do_not_matter(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 3, "b": 2})
    picture(tmp_path / "c.png")
    part = open_dataset(tmp_path, labelled=False, size=32, channels=1, statistics=((0.5,), (0.2,))).test()
    assert part.images.shape == (6, 1, 32, 32)
    assert part.mean == (0.5,)
    (tmp_path / "test").mkdir()
    class_folders(tmp_path / "test", {"a": 2})
    class_folders(tmp_path / "train", {"a": 2})
    assert len(open_dataset(tmp_path, labelled=False).test()) == 2


def _sorted(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png"))


def test_the_size_of_a_folder_suits_its_images(tmp_path: Path) -> None:
    sizes = {"small": (20, 20), "middle": (100, 130), "large": (400, 250)}
    for name, size in sizes.items():
        for number in range(5):
            picture(tmp_path / name / "a" / f"{number}.jpg", size=size)
            picture(tmp_path / name / "b" / f"{number}.jpg", size=size)
    assert [open_dataset(tmp_path / name).size for name in sizes] == [32, 96, 224]
    np.savez(tmp_path / "own.npz", images=np.zeros((10, 50, 70), np.uint8), labels=LABELS)
    assert open_dataset(tmp_path / "own.npz").size == 64


LABELS = np.arange(10) % 2


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 1), (1, 32, 32), (32, 32, 3), (3, 32, 32)])
@pytest.mark.parametrize("floats", [False, True])
def test_npz_layouts_come_out_alike(tmp_path: Path, shape: tuple[int, ...], floats: bool) -> None:
    pixels = RNG.integers(0, 256, (10, *shape)).astype(np.uint8)
    path = tmp_path / "own.npz"
    stored = (pixels / 255).astype(np.float32) if floats else pixels
    np.savez(path, x_train=stored, y_train=LABELS, x_test=stored[:4], y_test=LABELS[:4, None])
    data = load(path, "train")
    channels_last = len(shape) == 3 and shape[-1] in (1, 3)
    expected = pixels.transpose(0, 3, 1, 2) if channels_last else pixels.reshape(10, -1, 32, 32)
    assert np.array_equal(data.images.numpy(), expected)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.class_names == ("0", "1")
    assert (data.mean, data.std) == statistics(data.images)
    test = load(path, "test")
    assert len(test) == 4
    assert (test.mean, test.std) == (data.mean, data.std)


def test_npz_with_one_set_of_images_is_split_and_resized(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    images = np.repeat(np.arange(10, dtype=np.uint8), 20 * 24).reshape(10, 20, 24)
    np.savez_compressed(path, images=images, labels=LABELS, class_names=np.array(["no", "yes"]))
    train, test = load(path, "train"), load(path, "test")
    assert train.class_names == ("no", "yes")
    assert train.images.shape == (8, 1, 32, 32)
    assert torch.bincount(test.labels).tolist() == [1, 1]
    seen = torch.cat([train.images[:, 0, 0, 0], test.images[:, 0, 0, 0]])
    assert sorted(seen.tolist()) == list(range(10))


def test_npz_training_does_not_read_test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    pixels = np.zeros((10, 32, 32), np.uint8)
    np.savez(path, x_train=pixels, y_train=LABELS, x_test=np.array([object()]), y_test=LABELS)
    source = open_dataset(path)
    assert len(source.train()) == 10
    with pytest.raises(DataError, match=r"array x_test of .* cannot be read"):  # a pickle, which is never loaded
        source.test()


PIXELS = np.zeros((10, 8, 8), np.uint8)
WRONG = {
    "arrays": ({"a": PIXELS}, "holds the arrays a, but must hold"),
    "counts": ({"images": PIXELS[:9], "labels": LABELS}, "9 images, but 10 labels"),
    "range": ({"images": PIXELS / 1.0 + 2, "labels": LABELS}, r"floats must lie in \[0, 1\]"),
    "nan": ({"images": PIXELS * np.nan, "labels": LABELS}, r"floats must lie in \[0, 1\]"),
    "dtype": ({"images": PIXELS.astype(np.int64), "labels": LABELS}, "is int64, but must be uint8"),
    "shape": ({"images": PIXELS[:, 0], "labels": LABELS}, r"has the shape \(10, 8\)"),
    "channels": ({"images": np.zeros((10, 8, 8, 4), np.uint8), "labels": LABELS}, "with 1 or 3 channels"),
    "negative": ({"images": PIXELS, "labels": LABELS - 1}, "class numbers from 0 on"),
    "fractions": ({"images": PIXELS, "labels": LABELS / 2}, "class numbers from 0 on"),
    "gap": ({"images": PIXELS, "labels": LABELS * 2}, "but none is 1"),
    "names": ({"images": PIXELS, "labels": LABELS, "class_names": np.array(["one"])}, "has the label 1 in labels"),
    "identifiers": ({"images": PIXELS, "labels": LABELS + 10**12}, "but none is 0"),  # without counting up to them
    "twice": (
        {"images": PIXELS, "labels": LABELS, "class_names": np.array(["a", "a"])},
        "Two classes are called .a.",
    ),
    "pickle": ({"images": np.array([{}] * 10), "labels": LABELS}, "cannot be read: Object arrays"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_npz_files_that_make_no_sense_are_refused(tmp_path: Path, fault: str) -> None:
    arrays, reason = WRONG[fault]
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=reason) as error:
        load(path, "train")
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\x1b[2J", b"a\nb", "a\u202eb".encode()])
def test_folders_and_labels_that_are_no_names_of_classes_are_refused_before_training(
    tmp_path: Path, name: bytes
) -> None:
    """Predictions and reports could not be written with them."""
    class_folders(tmp_path / "folders", {"a": 5})
    folder = os.path.join(os.fsencode(tmp_path / "folders"), name)
    os.mkdir(folder)
    (tmp_path / "folders" / "a" / "000.png").rename(os.path.join(os.fsdecode(folder), "0.png"))
    with pytest.raises(DataError, match=r"folders cannot be used: The class name .* has control characters or is not"):
        open_dataset(tmp_path / "folders").train()
    (tmp_path / "list.csv").write_bytes(b'path,label\nfolders/a/001.png,"' + name + b'"\nfolders/a/002.png,a\n')
    with pytest.raises(DataError, match=r"list\.csv cannot be"):
        open_dataset(tmp_path / "list.csv").train()


def test_a_single_array_that_is_called_npz_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", PIXELS)
    (tmp_path / "own.npy").rename(tmp_path / "own.npz")
    with pytest.raises(DataError, match=r"is a single array, but must be an \.npz"):
        load(tmp_path / "own.npz", "train")


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    for content in (b"", b"PK\x03\x04 cut", b"\x80\x04."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"own\.npz cannot be read"):
            open_dataset(path)
    np.savez(path, images=PIXELS, labels=LABELS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"own\.npz cannot be read"):
        open_dataset(path)
    (tmp_path / "own.txt").write_text("a")
    with pytest.raises(DataError, match=r"own\.txt is a file, but own data must be an \.npz"):
        open_dataset(tmp_path / "own.txt")
    with pytest.raises(DataError, match="does not exist"):
        open_dataset(tmp_path / "absent.npz")
    with pytest.raises(
        OptionError, match=r"data set is 'mnits', but must be one of .*'mnist'.* or the path of a folder"
    ):
        open_dataset("mnits")
    with pytest.raises(OptionError, match="split is 'val'"):
        load("digits", "val")  # type: ignore[arg-type]
