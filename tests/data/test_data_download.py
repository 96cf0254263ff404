"""Mirror, cache and official sources."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from data_files import tar_of, write_cifar, write_mnist, write_sums

from dubito.data import cache_folder, download, fetch, load, open_dataset, status
from dubito.data.registry import Archive, DatasetInfo
from dubito.errors import DataError, OptionError

if TYPE_CHECKING:
    from conftest import Server

Table = dict[str, DatasetInfo]


def files_in(folder: Path) -> set[str]:
    return (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        if folder.exists()
        else set()
    )


def partial(cache: Path) -> list[Path]:
    return list(cache.rglob(".partial-*")) if cache.exists() else []


def official(table: Table, name: str, source: str, root: Path) -> DatasetInfo:
    """The data set as published at `source`, with the hashes of the files in `root`."""
    info = table[name]
    files = tuple(
        dataclasses.replace(file, hash="md5:" + hashlib.md5((root / info.folder / file.name).read_bytes()).hexdigest())
        for file in info.files
    )
    table[name] = dataclasses.replace(info, files=files, sources=(source,))
    return table[name]


@pytest.mark.usefixtures("tiny")
def test_a_folder_mirror_is_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, cache = tmp_path / "mirror", tmp_path / "cache"
    write_mnist(mirror)
    write_sums(mirror)
    assert fetch("mnist", cache=cache, mirror=mirror) == mirror / "mnist"
    assert fetch("mnist", cache=cache, mirror=mirror.as_uri()) == mirror / "mnist"
    monkeypatch.setenv("DUBITO_MIRROR", str(mirror))
    monkeypatch.setenv("DUBITO_CACHE", str(cache))
    assert fetch("mnist") == mirror / "mnist"
    assert not cache.exists()
    size = sum(path.stat().st_size for path in (mirror / "mnist").iterdir())
    assert status("mnist") == download.Status("mnist", "mirror", mirror / "mnist", size)
    assert status("fashion-mnist").place == "absent"


@pytest.mark.usefixtures("tiny")
def test_a_mirror_file_that_differs_from_sha256sums_is_refused_by_name(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_sums(tmp_path)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    assert len(load("mnist", "train", mirror=tmp_path)) == 20  # the other split is not concerned
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz does not have the SHA-256"):
        load("mnist", "test", mirror=tmp_path)


@pytest.mark.usefixtures("tiny")
def test_checksums_are_computed_once_while_a_file_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path)
    write_sums(tmp_path)
    fetch("mnist", mirror=tmp_path)
    monkeypatch.setattr(hashlib, "sha256", lambda: pytest.fail("hashed again"))
    fetch("mnist", mirror=tmp_path)


@pytest.mark.usefixtures("tiny")
def test_training_never_opens_test_files(tmp_path: Path) -> None:
    """They are not there, and nothing misses them until they are asked for."""
    write_mnist(tmp_path)
    write_sums(tmp_path)
    for path in (tmp_path / "mnist").glob("t10k-*"):
        path.unlink()
    source = open_dataset("mnist", mirror=tmp_path)
    assert len(source.train()) == 20
    with pytest.raises(DataError):
        source.test()


@pytest.mark.usefixtures("tiny")
def test_a_malformed_sha256sums_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "SHA256SUMS").write_text("123 mnist/x\n")
    with pytest.raises(DataError, match="SHA256SUMS has the line '123 mnist/x'"):
        fetch("mnist", mirror=tmp_path)


@pytest.mark.usefixtures("tiny")
def test_a_mirror_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a folder.*DUBITO_MIRROR"):
        fetch("mnist", mirror=tmp_path / "nowhere")


@pytest.mark.usefixtures("tiny")
def test_without_network_and_files_the_sentence_tells_of_the_mirror(tmp_path: Path) -> None:
    for mirror in (None, tmp_path, "http://127.0.0.1:9/"):
        with pytest.raises(DataError) as error:
            fetch("mnist", mirror=mirror)
        text = str(error.value)
        assert "set DUBITO_MIRROR to a folder or URL that holds mnist/train-images-idx3-ubyte.gz" in text
        assert "no connection" in text
        assert "\n" not in text
    assert not partial(cache_folder())
    assert status("mnist").place == "absent"


def test_names_are_checked() -> None:
    with pytest.raises(OptionError, match="'digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100'"):
        fetch("imagenet")
    with pytest.raises(OptionError, match="comes with scikit-learn"):
        fetch("digits")


@pytest.mark.usefixtures("tiny")
def test_a_url_mirror_is_downloaded_once(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(server.folder)
    write_sums(server.folder)
    monkeypatch.setenv("DUBITO_MIRROR", server.url)
    source = open_dataset("mnist")
    source.train()
    assert not [path for path in server.asked if "t10k" in path]
    source.test()
    assert status("mnist").place == "cache"
    folder = cache_folder() / "mnist"
    for path in (server.folder / "mnist").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    asked = len(server.asked)
    assert asked == 5  # SHA256SUMS and four files
    source.train()
    assert len(server.asked) == asked
    server.http.shutdown()
    server.http.server_close()
    download._remote_sums.clear()
    assert fetch("mnist") == folder  # the cache does without the mirror
    assert not partial(cache_folder())


@pytest.mark.usefixtures("tiny")
def test_a_url_mirror_whose_file_changed_is_downloaded_again(server: Server) -> None:
    write_mnist(server.folder)
    write_sums(server.folder)
    fetch("mnist", mirror=server.url)
    write_mnist(server.folder, seed=1)
    write_sums(server.folder)
    download._remote_sums.clear()
    folder = fetch("mnist", mirror=server.url)
    name = "train-images-idx3-ubyte.gz"
    assert (folder / name).read_bytes() == (server.folder / "mnist" / name).read_bytes()


@pytest.mark.usefixtures("tiny")
def test_a_url_mirror_with_a_wrong_file_is_refused_by_name(server: Server) -> None:
    write_mnist(server.folder)
    write_sums(server.folder)
    path = server.folder / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz does not have the SHA-256"):
        fetch("mnist", mirror=server.url)
    assert files_in(cache_folder()) == set()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("sums", [True, False])
def test_an_interrupted_download_leaves_nothing(server: Server, sums: bool) -> None:
    write_mnist(server.folder)
    if sums:
        write_sums(server.folder)
    server.truncate.add("/mnist/train-labels-idx1-ubyte.gz")
    with pytest.raises(DataError):
        fetch("mnist", mirror=server.url)
    assert files_in(cache_folder()) == set()
    assert not partial(cache_folder())
    server.truncate.clear()
    assert files_in(fetch("mnist", mirror=server.url)) >= {"train-labels-idx1-ubyte.gz"}


@pytest.mark.usefixtures("tiny")
def test_a_keyboard_interrupt_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(server.folder)
    real = download._download

    def interrupted(url: str, known_hash: str | None, path: Path) -> Path:
        if "labels" in url:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        return real(url, known_hash, path)

    monkeypatch.setattr(download, "_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", mirror=server.url)
    assert files_in(cache_folder()) == set()


def test_a_url_mirror_without_sums_still_checks_what_it_can(server: Server, tiny: Table) -> None:
    write_mnist(server.folder)
    (server.folder / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is not a complete gzip file"):
        fetch("mnist", mirror=server.url)
    write_cifar(server.folder, tiny["cifar10"])
    (server.folder / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"test_batch\.bin has 6 bytes"):
        fetch("cifar10", mirror=server.url)
    assert files_in(cache_folder()) == set()


def test_a_mirror_that_lacks_the_data_set_falls_back_to_the_official_source(
    tmp_path: Path, server: Server, tiny: Table
) -> None:
    mirror = tmp_path / "mirror"
    write_cifar(mirror, tiny["cifar10"])
    write_mnist(server.folder)
    official(tiny, "mnist", f"{server.url}/mnist/", server.folder)
    assert fetch("mnist", mirror=mirror) == cache_folder() / "mnist"
    assert fetch("cifar10", mirror=mirror) == mirror / "cifar-10-batches-bin"
    asked = len(server.asked)
    assert fetch("mnist", mirror=mirror, split="train") == cache_folder() / "mnist"
    assert len(server.asked) == asked


def test_each_official_source_is_tried_in_turn(server: Server, tiny: Table) -> None:
    write_mnist(server.folder / "whole")
    shutil.copytree(server.folder / "whole", server.folder / "damaged")
    (server.folder / "damaged" / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(b"x")
    info = official(tiny, "mnist", f"{server.url}/whole/mnist/", server.folder / "whole")
    sources = ("http://127.0.0.1:9/", f"{server.url}/absent/", f"{server.url}/damaged/mnist/", *info.sources)
    tiny["mnist"] = dataclasses.replace(info, sources=sources)
    assert fetch("mnist") == cache_folder() / "mnist"
    assert len(load("mnist", "test")) == 10
    shutil.rmtree(cache_folder())
    tiny["mnist"] = dataclasses.replace(info, sources=sources[:3])
    with pytest.raises(DataError, match=r"no connection.*HTTP 404.*checksum is not the official one"):
        fetch("mnist")
    assert files_in(cache_folder()) == set()


def publish_archive(server: Server, tiny: Table, content: bytes) -> None:
    (server.folder / "cifar-100-binary.tar.gz").write_bytes(content)
    tiny["cifar100"] = dataclasses.replace(
        tiny["cifar100"],
        sources=(server.url + "/",),
        archive=Archive("cifar-100-binary.tar.gz", len(content), "md5:" + hashlib.md5(content).hexdigest()),
    )


def test_an_archive_gives_its_expected_members_and_nothing_else(tmp_path: Path, server: Server, tiny: Table) -> None:
    write_cifar(tmp_path / "made", tiny["cifar100"])
    evil = {"../evil.txt": b"x", "cifar-100-binary/../../evil.txt": b"x", "cifar-100-binary/readme.html": b"x"}
    publish_archive(server, tiny, tar_of(tmp_path / "made" / "cifar-100-binary", evil))
    fetch("cifar100", split="train")
    names = {"train.bin", "test.bin", "fine_label_names.txt", "SHA256SUMS"}
    assert files_in(cache_folder()) == {f"cifar-100-binary/{name}" for name in names}
    assert not list(tmp_path.rglob("evil.txt"))
    assert len(load("cifar100", "test")) == 10
    assert server.asked == ["/cifar-100-binary.tar.gz"]


def test_an_archive_without_a_member_or_with_a_wrong_hash_is_refused(
    tmp_path: Path, server: Server, tiny: Table
) -> None:
    write_cifar(tmp_path / "made", tiny["cifar100"])
    publish_archive(server, tiny, tar_of(tmp_path / "made" / "cifar-100-binary", leave_out="test.bin"))
    with pytest.raises(DataError, match=r"without cifar-100-binary/test\.bin"):
        fetch("cifar100")
    (server.folder / "cifar-100-binary.tar.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"checksum is not the official one \(cifar-100-binary\.tar\.gz\)"):
        fetch("cifar100")
    publish_archive(server, tiny, b"not a tar at all")
    with pytest.raises(DataError, match=r"sent a corrupt cifar-100-binary\.tar\.gz"):
        fetch("cifar100")
    assert files_in(cache_folder()) == set()


def test_a_cached_file_that_changed_since_its_download_is_refused(server: Server, tiny: Table) -> None:
    write_mnist(server.folder)
    official(tiny, "mnist", f"{server.url}/mnist/", server.folder)
    path = fetch("mnist") / "train-images-idx3-ubyte.gz"
    path.write_bytes(b"x" * 100)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz does not have the SHA-256"):
        fetch("mnist")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, server: Server, tiny: Table) -> None:
    (tmp_path / "file").write_text("")
    write_mnist(server.folder)
    official(tiny, "mnist", f"{server.url}/mnist/", server.folder)
    with pytest.raises(DataError, match=r"cannot be written.*DUBITO_CACHE"):
        fetch("mnist", cache=tmp_path / "file")
