"""Files of strangers beside runs: tables, lists, arrays, weights and checkpoints end in one sentence too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import dubito
from dubito.data import open_dataset
from dubito.data.archive import Arrays
from dubito.data.formats import read_cifar, read_class_names, read_idx_images
from dubito.errors import DubitoError, OptionError
from dubito.files import write_atomically
from dubito.foreign import digest_of, read_lines
from dubito.models import load_weights, read_weights
from dubito.runs.config import configure
from dubito.runs.run import Run
from dubito.tables import Listing, Parts, make_predict_fn
from dubito.threads import same_threads


def refused(act: Callable[[], object], words: str) -> str:
    """The one sentence that it ends in, in which these words are."""
    with pytest.raises(DubitoError) as raised:
        act()
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert len(sentence) < 2000
    assert words in sentence, sentence
    return sentence


@pytest.mark.parametrize("read", [read_idx_images, Arrays, read_class_names, lambda path: read_cifar(path, 1, 10)])
def test_arrays_are_not_read_from_pipes(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    refused(lambda: read(tmp_path / "pipe.npz"), "it is not a file")


def test_records_are_counted_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "batch.bin").touch()
    os.truncate(tmp_path / "batch.bin", 10**12)  # a thousand times what memory has
    refused(lambda: read_cifar(tmp_path / "batch.bin", 1, 10, count=5), "has 1000000000000 bytes, but must have 15365")


def test_a_folder_in_the_place_of_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "evaluation.safetensors").mkdir()
    refused(lambda: write_atomically(tmp_path / "evaluation.safetensors", "text"), "is a folder, but must be a file")
    assert os.listdir(tmp_path) == ["evaluation.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_network_saved_in_another_precision_predicts_image_files(dtype: torch.dtype, tmp_path: Path) -> None:
    network = dubito.models.build("lenet5", in_channels=1)
    about: dict[str, Any] = {"class_names": [*"0123456789"], "size": 32, "mean": [0.3], "std": [0.3]}
    dubito.save(network, tmp_path / "single", **about)
    network.to(dtype).convolution1.double()  # and one layer is unlike the others
    dubito.save(network, tmp_path / "other", **about)
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    found, expected = (make_predict_fn(tmp_path / name, 2, device="cpu")(images) for name in ("other", "single"))
    assert np.allclose(found["entropy"], expected["entropy"], atol=0.01)


def test_a_checkpoint_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    from dubito.training import Classifier

    os.mkfifo(tmp_path / "pipe.ckpt")
    found: list[str] = []
    load = partial(Classifier.load_from_checkpoint, tmp_path / "pipe.ckpt")
    thread = Thread(target=lambda: found.append(refused(load, "it is not a file")), daemon=True)
    thread.start()
    thread.join(20)
    assert found


def test_members_are_of_the_classes_of_their_ensemble(tmp_path: Path) -> None:
    data = replace(describe(), class_names=tuple("0123456789"))
    member = configure(model="lenet5", data="digits", epochs=1)
    run = Run(tmp_path / "run", replace(member, members=2), data)
    run.create()
    for number in range(2):
        names = data.class_names[: 10 - number]
        Run(run.member_path(number), member, replace(data, class_names=names)).create()
    refused(run.load, "1 is of other classes or images than its ensemble")


def test_lines_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"a\r\nb\n")
    assert list(read_lines(tmp_path / "lines.txt")) == ["a\r\n", "b\n"]
    for name in ("lines.txt", "lines.csv"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 10**12)
    data = describe()
    refused(lambda: Listing([str(tmp_path / "lines.txt")], data).images, "is longer than 1048576 characters")
    refused(lambda: open_dataset(tmp_path / "lines.csv"), "is longer than 1048576 characters")
    with pytest.raises(ValueError, match="not a file"):
        digest_of(tmp_path)


def describe() -> Any:
    return dubito.runs.description.DataDescription("x", 1, ("a", "b"), (0.5,), (0.5,), 0, 3)


def test_a_table_of_labels_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "labels.csv").symlink_to(tmp_path / "secret")
    assert "hunter2" not in refused(
        lambda: open_dataset(tmp_path / "labels.csv"), "must have the columns path and label"
    )


def test_images_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    rows = "".join(f"{number}.png,{'ab'[number % 2]}\n" for number in range(10))
    (tmp_path / "labels.csv").write_text(f"path,label\n{rows}")
    refused(open_dataset(tmp_path / "labels.csv").train, "which is all of them")


@pytest.mark.parametrize("line", ["http://[::1/a.png", "zip://a.png::file:///dev/null", "nothing://x/y"])
def test_an_address_that_cannot_be_opened_is_a_row_with_an_error(line: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "images.txt").write_text(f"{line}\n")
    (chunk,) = Listing([str(tmp_path / "images.txt")], describe()).chunks()
    assert chunk.read(describe()).pictures == [line]


def test_a_list_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images.txt").touch()
    refused(lambda: Listing([str(tmp_path / "images.txt")], describe()).images, "There are no images in")


def test_tables_of_images_are_bounded_and_no_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    os.mkfifo(tmp_path / "pipe.parquet")
    refused(lambda: list(Listing([str(tmp_path / "pipe.parquet")], describe()).chunks()), "is no file")
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_BYTES", "1000000")
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_RATIO", "1")
    for name, cells in {"large": [bytes(3_000_000)], "repeated": [bytes(100_000)] * 64}.items():
        file = tmp_path / f"{name}.parquet"
        parquet.write_table(arrow.table({"image": cells}), file, compression="zstd")
        (chunk,) = Listing([str(file)], describe()).chunks()
        refused(lambda: chunk.read(describe()), "but may take 1000000, see DUBITO_MAX_UNPACKED_BYTES")  # noqa: B023


@pytest.mark.parametrize("text", ["[]", "3", "[" * 10_000, "{", "\udce9"])
def test_a_manifest_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text, errors="surrogateescape")
    refused(lambda: Parts(tmp_path, {}, resume=True), "is damaged")


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parts = Parts(tmp_path / "parts", {})
    parts.path(0).write_bytes(b"PAR1")
    parquet.write_table(arrow.table({"path": ["a"]}), parts.path(1))
    parts.path(2).mkdir()
    for number in range(3):
        refused(lambda: parts.count(number), "is damaged")  # noqa: B023


@pytest.mark.parametrize("name", ["best.safetensors", "novelty.safetensors"])
def test_what_is_no_file_has_no_fingerprint(name: str, own_run: Path) -> None:
    (own_run / name).unlink()
    os.mkfifo(own_run / name)
    refused(lambda: Run.open(own_run).origin(), f"{name} is damaged (it is not a file)")


@pytest.mark.filterwarnings("ignore:The result will not be bit-identical")
@pytest.mark.parametrize("threads", [10**9, 2**70, -1, "many", None])
def test_a_number_of_threads_that_makes_no_sense_is_left_alone(threads: Any) -> None:
    before = torch.get_num_threads()
    with same_threads({"threads": threads}):
        assert torch.get_num_threads() == before


@pytest.mark.parametrize("versions", [True, ["torch"], "2.0", 3, None])
def test_versions_that_are_no_versions_are_left_alone(versions: Any) -> None:
    with same_threads({"versions": versions}):
        pass


def test_long_settings_are_not_repeated_at_length() -> None:
    with pytest.raises(OptionError) as raised:
        configure(class_weights="1," * 100_000)
    assert len(str(raised.value)) < 300


def test_dictionaries_around_weights_end(tmp_path: Path) -> None:
    circle: dict[str, Any] = {}
    circle["model"] = circle
    torch.save(circle, tmp_path / "circle.pt")
    refused(lambda: read_weights(tmp_path / "circle.pt"), "there is no state dict in it")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t * float("nan"),
        lambda t: t.to(torch.complex64),
        lambda t: t.int(),
        lambda t: t.to_sparse(),
        lambda t: t.to("meta"),
        lambda t: t.double() * 1e300,
    ],
)
def test_weights_to_start_from_are_finite_and_of_their_type(change: Callable[[Any], Any]) -> None:
    network = torch.nn.Linear(2, 2)
    state = {name: change(value.detach() + 1) for name, value in network.state_dict().items()}
    refused(lambda: load_weights(network, state), "of another type, or not finite")
    assert load_weights(network, {name: value.half() for name, value in network.state_dict().items()}) == []


def test_names_in_a_message_are_of_bounded_length() -> None:
    refused(lambda: load_weights(torch.nn.Linear(2, 2), {"a" * 10**6: torch.zeros(1)}), "unexpected")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02(((", {"state_dict": 3}, {"dubito": 3}, {"dubito": {"built_as": []}}, [1], torch.zeros(1)],
)
def test_a_checkpoint_of_a_trainer_that_is_none_is_refused(content: Any, tmp_path: Path) -> None:
    from dubito.training import Classifier

    if isinstance(content, bytes):
        (tmp_path / "x.ckpt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "x.ckpt")
    refused(lambda: Classifier.load_from_checkpoint(tmp_path / "x.ckpt"), "x.ckpt")
