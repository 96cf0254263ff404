"""A case in a process of its own: how it ends, and what it costs.

The process is forked from one that has imported everything, so that a case takes milliseconds. An audit hook of Python
tells which programs it starts, which addresses it calls and which files it opens; the access time of a secret file
tells whether something else than Python has read it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dubito.errors import DubitoError
from dubito.harmless import printable

__all__ = ["BAD", "GOOD", "Bounds", "Ended", "Guard", "run_alone"]

GOOD = ("read", "refused")
BAD = ("foreign", "unclear", "hung", "memory", "crashed", "opened")
"""Another exception than dubito's own; a refusal that is no clear sentence; too long; too much memory; a signal;
another program, address or file."""

LONGEST = 2000
"""Characters of a sentence."""
WAITING = 20
"""A process that waits, without working, may do so this many times longer than one that works: machines are busy."""
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn")
ADDRESSES = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")


@dataclass(frozen=True)
class Bounds:
    """What a case may cost: seconds of a processor, and megabytes (of a million bytes) above what is there before."""

    seconds: float = 10.0
    megabytes: float = 1000.0


@dataclass(frozen=True)
class Ended:
    """How a case ended.

    Attributes:
        outcome: one of `GOOD` and `BAD`.
        detail: what it said of that.
        seconds: of a processor.
        megabytes: its peak above what its process had from the one that it was forked from. Pages of libraries
            that the case is the first to use count too, for a fork does not have them.
        whole: megabytes of the whole process at its peak.
    """

    outcome: str
    detail: str
    seconds: float
    megabytes: float
    whole: float = 0.0


class Guard:
    """What a case may open: its folder, and what the interpreter and its libraries need.

    Args:
        secret: a file that no case may read; its content must not be in what a case says either.
        allowed: folders that may be read besides.
    """

    def __init__(self, secret: Path, *allowed: Path) -> None:
        self.secret = secret
        self.password = secret.read_text()
        places = [sys.prefix, sys.base_prefix, *sys.path, "/proc", "/sys", "/dev", "/usr", "/etc", "/lib", "/lib64"]
        self.temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        self.root = os.path.realpath(secret.parent.parent) + os.sep
        self.places = tuple(os.path.realpath(place) + os.sep for place in (*places, *map(str, allowed)) if place)

    def forget(self) -> None:
        """From now on the secret is unread."""
        os.utime(self.secret, ns=(0, self.secret.stat().st_mtime_ns))

    def was_read(self) -> bool:
        """Whether the secret was read since."""
        return self.secret.stat().st_atime_ns != 0

    def watch(self, folder: Path, found: list[str], *, follows: bool) -> None:
        """Tell in `found` what this process does that it should not. It cannot be undone."""
        own = os.path.realpath(folder) + os.sep

        def look(event: str, given: tuple[Any, ...]) -> None:
            if event in PROGRAMS or (event in ADDRESSES and not follows):
                found.append(f"{event} {given[:2]!r}"[:300])
            elif event == "open" and isinstance(given[0], (str, bytes)):
                path = os.path.realpath(os.fsdecode(given[0])) + os.sep
                writes = bool((given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and not path.startswith("/dev/")
                if path.startswith(self.temporary) and not path.startswith(self.root):
                    return  # a library's own
                if not (path.startswith(own) or (not writes and (follows or path.startswith(self.places)))):
                    found.append(f"open {path} {given[1]}"[:300])

        sys.addaudithook(look)


def run_alone(act: Callable[[], object], folder: Path, guard: Guard, bounds: Bounds, *, follows: bool = False) -> Ended:
    """Do something in `folder`, in a process of its own; `follows` says that it may open what its files name."""
    said = folder.parent / "said.txt"
    guard.forget()
    before = _own()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_the_case(act, folder, said, writer, guard, bounds, follows)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        hung = not _ends(child, bounds.seconds * WAITING)
        if hung:
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        told = pipe.read()
    seconds, whole = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6
    megabytes = max(0.0, whole - before)
    outcome, detail = json.loads(told) if told else ("crashed", f"status {status}")
    if not told and not hung and os.WIFSIGNALED(status):
        detail = signal.Signals(os.WTERMSIG(status)).name
    words = said.read_text(errors="replace")
    if guard.was_read() and not follows:
        outcome, detail = "opened", f"the secret was read; {detail}"
    if guard.password in words + detail:
        outcome, detail = "opened", f"the secret was told; {detail}"
    if outcome in GOOD and (odd := _control(words)):
        outcome, detail = "unclear", f"it prints {odd!a}; {detail}"
    if outcome in GOOD and megabytes > bounds.megabytes:
        outcome, detail = "memory", f"{megabytes:.0f} MB; {detail}"
    if hung or detail == "SIGXCPU" or seconds > bounds.seconds:
        outcome, detail = "hung", f"{seconds:.1f} s; {detail}"
    return Ended(outcome, detail, seconds, megabytes, whole)


def _own() -> float:
    """Megabytes that this process has in memory, without files such as libraries: what a fork of it begins with."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024 / 1e6


def _ends(child: int, seconds: float) -> bool:
    """Whether a process ends in so many seconds."""
    handle = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))
    finally:
        os.close(handle)


def _be_the_case(
    act: Callable[[], object],
    folder: Path,
    said: Path,
    writer: int,
    guard: Guard,
    bounds: Bounds,
    follows: bool,
) -> None:
    """Never returns: this process is the case, and tells how it ended."""
    found: list[str] = []
    try:
        os.setsid()
        faulthandler.disable()
        words = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(words, stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", errors="replace", closefd=False) for stream in (1, 2))
        os.chdir(folder)
        _limit(bounds)
        _show_own_warnings()
        guard.watch(folder, found, follows=follows)
        outcome, detail = _outcome(act)
        sys.stdout.flush()
        sys.stderr.flush()
        if found:
            outcome, detail = "opened", f"{found[0]}; {detail}"
        os.write(writer, json.dumps([outcome, detail[:4000]]).encode())
    finally:
        os._exit(0)


def _limit(bounds: Bounds) -> None:
    """The system ends what goes far beyond the bounds, so that this machine is safe."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(bounds.seconds) + 1, int(bounds.seconds) + 2))
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = own + int(4e6 * bounds.megabytes)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _show_own_warnings() -> None:
    """As a command does it."""
    from dubito.cli.failure import _show_warning
    from dubito.errors import DubitoWarning

    warnings.showwarning = lambda *given, **more: _show_warning(False, *given, **more)
    warnings.simplefilter("ignore")
    warnings.simplefilter("default", DubitoWarning)


def _outcome(act: Callable[[], object]) -> tuple[str, str]:
    from dubito.cli.failure import UsageError

    try:
        act()
        return "read", ""
    except (DubitoError, UsageError) as error:
        if _lacks_memory(error):
            return "memory", str(error)
        return ("refused" if _is_clear(str(error)) else "unclear"), str(error)
    except SystemExit as stop:
        return ("read", "") if stop.code in (0, None) else ("foreign", f"exit {stop.code}")
    except MemoryError as error:
        return "memory", str(error)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = [part for part in traceback.extract_tb(error.__traceback__) if "/dubito/" in part.filename][-1:] or [
            last
        ]
        place = where[0].filename.rpartition("/src/")[2]
        return "foreign", f"{type(error).__name__}: {str(error)[:300]!a} at {place}:{where[0].lineno}"


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error came from asking for more memory than this process may have."""
    while error is not None:
        if isinstance(error, MemoryError) or re.search(r"allocate|bad_alloc|not enough memory", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_clear(sentence: str) -> bool:
    """Whether it is one sentence, of a bearable length. Commands write out its control characters."""
    return bool(sentence.strip()) and len(printable(sentence)) <= LONGEST and "\n" not in sentence


def _control(words: str) -> str:
    """The first line that has something in it that a terminal would obey."""
    for line in re.sub("[\n\t]", " ", words).splitlines():
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in line):
            return line[:200]
    return ""
