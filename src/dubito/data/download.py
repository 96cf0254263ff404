"""Where a data set's files come from: a mirror, the cache, or the official sources, in that order.

The cache is laid out like a mirror (`mnist/train-images-idx3-ubyte.gz`, ...), with a SHA256SUMS file that records
what was verified when it was downloaded. A file enters the cache by a rename, after its checks, so whatever lies under
its final name is whole. A folder mirror is read in place.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse
from urllib.request import url2pathname

from dubito.data.registry import DataFile, DatasetInfo, Split, dataset_info
from dubito.errors import DataError, OptionError
from dubito.progress import Advance, progress_bar

CACHE_VARIABLE = "DUBITO_CACHE"
MIRROR_VARIABLE = "DUBITO_MIRROR"

_SUMS = "SHA256SUMS"
_TIMEOUT = 30
_ABSENT = (403, 404, 410)  # object stores answer 403 for what is not there
_hashes: dict[tuple[str, int, int], str] = {}
"""SHA-256 of files already read in this process, by path, size and time of change."""
_remote_sums: dict[str, Mapping[str, str]] = {}
"""SHA256SUMS of URL mirrors already asked in this process."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Status:
    """Where a data set is on this machine."""

    name: str
    place: Literal["embedded", "mirror", "cache", "absent"]
    path: Path | None
    bytes: int


def cache_folder(cache: PathLike | None = None) -> Path:
    """The cache: the argument, else the environment's DUBITO_CACHE, else the platform's folder for caches."""
    chosen = cache or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("dubito"))


def fetch(
    name: str, *, cache: PathLike | None = None, mirror: PathLike | None = None, split: Split | None = None
) -> Path:
    """The folder that holds a data set's files, verified; downloads what is not there yet.

    `mirror` (or the environment's DUBITO_MIRROR) is a folder or a URL and is tried first. With `split`, only the files
    which that split needs are looked at.

    >>> fetch("digits")
    Traceback (most recent call last):
    dubito.errors.OptionError: data set 'digits' comes with scikit-learn, so there is nothing to download.
    """
    info = dataset_info(name)
    if not info.files:
        raise OptionError(f"data set {name!r} comes with scikit-learn, so there is nothing to download.")
    files = info.files_for(split)
    folder = cache_folder(cache)
    failures: list[str] = []
    location = _mirror(mirror)
    if isinstance(location, Path):
        if _present(location / info.folder, files):
            _verify(location, info, files, _read_sums(location))
            return location / info.folder
        failures.append(f"the mirror {location} has no {info.folder}")
    elif location:
        try:
            _fetch_from_url(location, info, files, folder)
            return folder / info.folder
        except _UnavailableError as error:
            failures.append(f"the mirror {location} {error}")
    if _present(folder / info.folder, files):
        _verify(folder, info, files, _read_sums(folder / info.folder, info.folder))
        return folder / info.folder
    _fetch_officially(info, files, folder, failures)
    return folder / info.folder


def status(name: str, *, cache: PathLike | None = None, mirror: PathLike | None = None) -> Status:
    """Where a data set is on disk, and how many bytes it takes there; asks no network and verifies nothing.

    >>> status("digits").place
    'embedded'
    """
    info = dataset_info(name)
    if not info.files:
        return Status(name, "embedded", None, 0)
    location = _mirror(mirror)
    places: list[tuple[Literal["mirror", "cache"], Path]] = [("cache", cache_folder(cache))]
    if isinstance(location, Path):
        places.insert(0, ("mirror", location))
    for place, root in places:
        folder = root / info.folder
        if _present(folder, info.files):
            return Status(name, place, folder, sum((folder / file.name).stat().st_size for file in info.files))
    return Status(name, "absent", None, 0)


# Folder mirrors and the cache ------------------------------------------------------------------------------------


def _mirror(mirror: PathLike | None) -> Path | str | None:
    """A mirror as a folder or as a URL that ends with a slash; None if there is none."""
    given = os.fspath(mirror) if mirror else os.environ.get(MIRROR_VARIABLE, "")
    if not given:
        return None
    scheme = urlparse(given).scheme.lower()
    if scheme in ("http", "https"):
        return given.rstrip("/") + "/"
    folder = Path(url2pathname(urlparse(given).path)) if scheme == "file" else Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"the mirror is {given!r}, which is not a folder on this machine; set {MIRROR_VARIABLE} to an existing "
            "folder or an http(s) URL, or unset it."
        )
    return folder


def _present(folder: Path, files: Sequence[DataFile]) -> bool:
    return all((folder / file.name).is_file() for file in files)


def _verify(root: Path, info: DatasetInfo, files: Sequence[DataFile], sums: Mapping[str, str]) -> None:
    """Every file against the checksum that lies beside it, if there is one."""
    for file in files:
        path = root / info.folder / file.name
        expected = sums.get(f"{info.folder}/{file.name}")
        if expected and _sha256(path) != expected:
            raise DataError(
                f"{path} does not have the SHA-256 that {_SUMS} gives it, so it is corrupt; delete it and "
                "download it again."
            )


def _sha256(path: Path) -> str:
    """A file's SHA-256, computed once in this process as long as the file does not change."""
    state = path.stat()
    key = (str(path.absolute()), state.st_size, state.st_mtime_ns)
    if key not in _hashes:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        _hashes[key] = digest.hexdigest()
    return _hashes[key]


def _read_sums(root: Path, folder: str = "") -> dict[str, str]:
    """The SHA256SUMS of a folder, if it has one, by path relative to the mirror's root."""
    path = root / _SUMS
    if not path.is_file():
        return {}
    prefix = f"{folder}/" if folder else ""
    sums = _parse_sums(path.read_text(encoding="utf-8", errors="replace"), str(path))
    return {prefix + name: digest for name, digest in sums.items()}


def _parse_sums(text: str, name: str) -> dict[str, str]:
    """Lines `hash  relative/path`, as sha256sum writes them."""
    sums: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        digest, _, path = line.strip().partition(" ")
        path = path.lstrip(" *").removeprefix("./")
        if len(digest) != 64 or not path:
            raise DataError(f"{name} has the line {line!r}, but its lines must be a SHA-256 and a path.")
        sums[path] = digest.lower()
    return sums


# Downloads -------------------------------------------------------------------------------------------------------


class _UnavailableError(Exception):
    """A source that does not have a file or cannot be reached; the message completes "the source ..."."""


def _fetch_from_url(mirror: str, info: DatasetInfo, files: Sequence[DataFile], cache: Path) -> None:
    """Bring what is not yet in the cache, or differs from the mirror's SHA256SUMS, from a URL mirror."""
    if mirror not in _remote_sums:
        _remote_sums[mirror] = _download_sums(mirror)
    sums = _remote_sums[mirror]
    folder = cache / info.folder
    recorded = _read_sums(folder, info.folder)
    wanted: list[tuple[DataFile, str | None]] = []
    for file in files:
        key = f"{info.folder}/{file.name}"
        expected = sums.get(key, recorded.get(key))
        path = folder / file.name
        if not path.is_file() or (expected and _sha256(path) != expected):
            wanted.append((file, f"sha256:{sums[key]}" if key in sums else None))
    if not wanted:
        return
    with _staging(cache) as staging:
        for file, known_hash in wanted:
            url = f"{mirror}{info.folder}/{file.name}"
            try:
                path = _download(url, known_hash, staging / file.name)
            except _WrongHashError:
                raise DataError(
                    f"{url} does not have the SHA-256 that the mirror's {_SUMS} gives it, so it is corrupt; "
                    "repair the mirror."
                ) from None
            if known_hash is None:
                _check_unhashed(path, file, url)
        _move_in(folder, [staging / file.name for file, _ in wanted])


def _fetch_officially(info: DatasetInfo, files: Sequence[DataFile], cache: Path, failures: list[str]) -> None:
    """Download from each official source in turn until one gives everything."""
    bring: Callable[[str, DatasetInfo, Sequence[DataFile], Path], None]
    bring = _bring_archive if info.archive else _bring_files
    for source in info.sources:
        try:
            bring(source, info, files, cache)
            return
        except _UnavailableError as error:
            failures.append(f"{source} {error}")
        except _WrongHashError as error:
            failures.append(f"{source} sent a file whose checksum is not the official one ({error})")
    raise DataError(
        f"data set {info.name!r} is not in the cache {cache} and could not be downloaded: {'; '.join(failures)}; set "
        f"{MIRROR_VARIABLE} to a folder or URL that holds {info.folder}/{files[0].name} and its other files, or "
        "connect to the network."
    )


def _bring_files(source: str, info: DatasetInfo, files: Sequence[DataFile], cache: Path) -> None:
    folder = cache / info.folder
    missing = [file for file in files if not (folder / file.name).is_file()]
    with _staging(cache) as staging:
        paths = [_download(source + file.name, file.hash, staging / file.name) for file in missing]
        _move_in(folder, paths)


def _bring_archive(source: str, info: DatasetInfo, files: Sequence[DataFile], cache: Path) -> None:
    """Download the archive and keep the expected members, all splits at once; nothing else in it is written."""
    assert info.archive
    with _staging(cache) as staging:
        archive = _download(source + info.archive.name, info.archive.hash, staging / info.archive.name)
        paths = _extract(archive, info, staging)
        _move_in(cache / info.folder, paths)


def _extract(archive: Path, info: DatasetInfo, target: Path) -> list[Path]:
    wanted = {f"{info.folder}/{file.name}": file for file in info.files}
    paths: list[Path] = []
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = wanted.pop(member.name.removeprefix("./"), None)
                content = tar.extractfile(member) if file and member.isfile() else None
                if file is None or content is None:
                    continue
                path = target / file.name
                with content, path.open("wb") as stream:
                    shutil.copyfileobj(content, stream, 1 << 20)
                paths.append(path)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _UnavailableError(f"sent a corrupt {archive.name} ({error})") from error
    if wanted:
        raise _UnavailableError(f"sent an {archive.name} without {', '.join(wanted)}")
    return paths


class _WrongHashError(Exception):
    """What was downloaded is not what was published."""


class _Bar:
    """The progress bar as pooch uses it, which counts bytes and learns their number when the answer begins."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._complete = False

    @property
    def total(self) -> int:
        """Only set, never read."""
        return 0

    @total.setter
    def total(self, count: int) -> None:
        self._advance(0, total=count // 1000 or None)

    def update(self, count: int) -> None:
        """So many more bytes have arrived."""
        if not self._complete:
            self._advance(count // 1000)

    def reset(self) -> None:
        """All bytes have arrived: pooch now counts them once more."""
        self._complete = True

    def close(self) -> None:
        """The bar disappears by itself."""


def _download(url: str, known_hash: str | None, path: Path) -> Path:
    """One file by pooch, checked against its hash."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with progress_bar(f"Downloading {path.name} (kB)") as advance:
            downloader = pooch.HTTPDownloader(progressbar=_Bar(advance), timeout=_TIMEOUT)
            return Path(pooch.retrieve(url, known_hash, fname=path.name, path=path.parent, downloader=downloader))
    except ValueError as error:
        if "does not match the known hash" in str(error):
            raise _WrongHashError(path.name) from error
        raise _UnavailableError(f"gave no {path.name} ({error})") from error
    except OSError as error:
        raise _UnavailableError(f"gave no {path.name} ({_why(error)})") from error
    finally:
        logger.setLevel(level)


def _download_sums(mirror: str) -> Mapping[str, str]:
    """The mirror's SHA256SUMS; empty if it has none."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            path = _download(mirror + _SUMS, None, Path(temporary) / _SUMS)
        except _UnavailableError as error:
            if isinstance(error.__cause__, OSError) and _http_code(error.__cause__) in _ABSENT:
                return {}
            raise
        return _parse_sums(path.read_text(encoding="utf-8", errors="replace"), mirror + _SUMS)


def _check_unhashed(path: Path, file: DataFile, url: str) -> None:
    """Without a hash, at least: a gzip file must unpack to its end, any other have the official size."""
    if not file.name.endswith(".gz"):
        if path.stat().st_size != file.size:
            raise DataError(f"{url} has {path.stat().st_size} bytes, but must have {file.size}; repair the mirror.")
        return
    try:
        with gzip.open(path) as stream:
            while stream.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{url} is not a complete gzip file ({error}); repair the mirror.") from error


@contextlib.contextmanager
def _staging(cache: Path) -> Iterator[Path]:
    """A folder beside the data, on the same file system, that disappears whatever happens."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
    except OSError as error:
        raise DataError(
            f"the cache {cache} cannot be written ({_why(error)}); set {CACHE_VARIABLE} to a folder that can."
        ) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_in(folder: Path, paths: Sequence[Path]) -> None:
    """Rename finished files into the cache and record their hashes there."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = _read_sums(folder)
    for path in paths:
        sums[path.name] = _sha256(path)
        os.replace(path, folder / path.name)
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    handle, temporary = tempfile.mkstemp(prefix=".partial-", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, folder / _SUMS)


def _http_code(error: OSError) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)


def _why(error: OSError) -> str:
    """A short reason: requests' own messages span several lines."""
    if code := _http_code(error):
        return f"HTTP {code}"
    if error.strerror:
        return error.strerror
    name = type(error).__name__
    return "no connection" if "Connection" in name else "no answer in time" if "Timeout" in name else name
