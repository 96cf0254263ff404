"""Files from strangers: `python -m campaigns.files`.

Folders that dubito has made (runs, saved networks, exported ones, data sets, images) are opened again after one file in
them was changed at random, or by hand. Whatever a file holds, opening it must end in a result or in one clear sentence:
in no other exception, crash or hang, without another program, address or file, and in bounded memory.

Each case has a process of its own; see :mod:`campaigns.isolation`.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from campaigns.campaign import Deadline, Tally, chance, options
from campaigns.handmade import handmade
from campaigns.isolation import BAD, GOOD, Bounds, Ended, Guard, run_alone
from campaigns.openings import Kind, inside, kinds, place_parts, prepare

HANDMADE = "by hand: "


@dataclass(frozen=True)
class Case:
    """A file to be opened.

    Attributes:
        kind: of the file.
        file: its name.
        make: makes it from the one that is there, at the path that it gets.
        what: is said of it.
        by_hand: whether it was thought of; making it may take a lot of memory.
        follows: whether it rightly leads to other files, as links do.
    """

    kind: Kind
    file: str
    make: Callable[[Path], object]
    what: str
    by_hand: bool = False
    follows: bool = False


def mutated(kind: Kind, seed: int, number: int, root: Path) -> Case:
    """The case of this number: one of the kind's files, changed in one of its ways."""
    file = kind.files[number % len(kind.files)]
    mutate = kind.mutations[number // len(kind.files) % len(kind.mutations)]

    def make(path: Path) -> None:
        content = mutate((root / kind.folder / file).read_bytes(), chance(seed, kind.name, number))
        path.unlink()
        path.write_bytes(content)

    return Case(kind, file, make, f"mutation {number}")


def by_hand(all_kinds: Sequence[Kind], secret: str) -> Iterator[Case]:
    """The cases that were thought of."""
    named = {kind.name: kind for kind in all_kinds}
    for one in handmade(secret, {kind.name: kind.files for kind in all_kinds}):
        kind = named[one.kind]
        yield Case(kind, one.file or kind.files[0], one.make, one.what, by_hand=True, follows="a link" in one.what)


def attack(case: Case, root: Path, guard: Guard, bounds: Bounds) -> Ended:
    """Make the case's folder and open it."""
    folder = root / "case" / case.kind.folder
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(root / case.kind.folder, folder, copy_function=os.link)
    make = partial(case.make, folder / case.file)
    in_a_child(make) if case.by_hand else make()
    follows = case.follows or case.kind.follows
    return run_alone(partial(case.kind.open, case.file), folder, guard, bounds, follows=follows)


def import_most() -> None:
    """What all cases need, so that no case has to import it."""
    import matplotlib.pyplot  # noqa: F401
    import onnxruntime  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import dubito.evaluation.report
    import dubito.exporting
    import dubito.tables  # noqa: F401

    tempfile.gettempdir()  # which tries where files can be written
    torch.set_num_threads(1)  # a fork does not take threads along


def import_rest() -> None:
    """What is as large as all else together, and needed by few."""
    from transformers import AutoModelForImageClassification  # noqa: F401

    import dubito.training.fit  # noqa: F401


def in_a_child(act: Callable[[], object]) -> None:
    """Do something in a process of its own, which leaves this one as it is; it must not fail."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("What is to be attacked could not be made.")


def warm(kind: Kind, root: Path, guard: Guard, bounds: Bounds) -> None:
    """Open the untouched folder here, so that what is imported and prepared at first use is there for every case.

    After that, a case must be able to do it: else it is no attack that fails.
    """
    folder = root / "case" / kind.folder
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(root / kind.folder, folder)
    with inside(folder), silence():
        kind.open(kind.files[0])
    until = Deadline(1)
    while threading.active_count() > 1 and not until.over:  # readers end a moment after their work
        time.sleep(0.01)
    if threading.active_count() > 1:
        raise SystemExit(f"{kind.name} leaves threads behind, which a fork does not take along.")
    for file in kind.files:
        ended = attack(Case(kind, file, lambda path: None, "untouched"), root, guard, bounds)
        if ended.outcome != "read":
            raise SystemExit(f"{kind.name}, {file}, cannot be opened untouched: {ended.outcome}, {ended.detail}")


@contextmanager
def silence() -> Iterator[None]:
    """What is printed goes nowhere."""
    sys.stdout.flush()
    kept, nowhere = (os.dup(1), os.dup(2)), os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
        sys.stdout.flush()
    finally:
        for stream, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, stream)
        for handle in (*kept, nowhere):
            os.close(handle)


def campaign(given: Namespace, root: Path) -> int:
    """All cases, kind by kind; the exit code."""
    deadline, tally = Deadline(given.minutes), Tally(GOOD, BAD)
    bounds = Bounds(given.seconds, given.megabytes)
    (root / "secret").mkdir()
    secret = root / "secret" / "password"
    secret.write_text("hunter2-of-nobody")
    import_most()
    if given.folders is None or not (given.folders / "made").exists():
        in_a_child(partial(prepare, root))
    else:
        shutil.copytree(given.folders / "made", root, dirs_exist_ok=True)
    place_parts(root / "parts", root / "case" / "parts")
    if given.folders is not None:
        shutil.copytree(root, given.folders / "made", dirs_exist_ok=True)
    guard = Guard(secret, Path.cwd(), root / "cache")
    everything = kinds(str(secret))
    chosen = [kind for kind in everything if re.search(given.only, kind.name)]
    hand = list(by_hand(everything, str(secret)))
    shares = sum(kind.share for kind in chosen)
    worst: dict[str, dict[str, Any]] = {}
    planned = 0
    for kind in sorted(chosen, key=lambda kind: kind.heavy):
        if kind.heavy:
            import_rest()
        warm(kind, root, guard, bounds)
        count = math.ceil(given.mutated * kind.share / shares)
        cases = [case for case in hand if case.kind is kind]
        planned += len(cases) + count
        numbers = range(given.first, given.first + count)
        for case in (*cases, *(mutated(kind, given.seed, number, root) for number in numbers)):
            if deadline.over:
                break
            ended = attack(case, root, guard, bounds)
            title = HANDMADE * case.by_hand + kind.name
            facts = {"file": case.file, "what": case.what, "detail": ended.detail}
            tally.add(title, ended.outcome, facts)
            if ended.outcome in BAD:
                print(f"{title}, {case.file}, {case.what}: {ended.outcome}: {ended.detail[:500]}", flush=True)
            most = worst.setdefault(kind.name, {"seconds": 0.0, "megabytes": 0.0, "whole": 0.0})
            most["seconds"] = max(most["seconds"], round(ended.seconds, 2))
            most["megabytes"] = max(most["megabytes"], round(ended.megabytes))
            most["whole"] = max(most["whole"], round(ended.whole))
        print(f"{kind.name}: {tally.cases} cases, {deadline.passed:.0f} s, at most {worst.get(kind.name)}", flush=True)
    by_hands = sum(row["cases"] for row in tally.rows() if row["kind"].startswith(HANDMADE))
    totals = {"mutated": tally.cases - by_hands, "handmade": by_hands, "left_out": planned - tally.cases}
    peaks = {name: max(most[name] for most in worst.values()) for name in ("seconds", "megabytes", "whole")}
    return tally.finish(given, deadline, **totals, most=peaks, most_of_kinds=worst)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m campaigns.files`; the exit code is 1 if a case ended badly."""
    parser = options("files", "Open files that strangers have changed.", minutes=60)
    parser.add_argument("--mutated", type=int, default=10_000, help="files that are changed at random")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation of each kind")
    parser.add_argument("--only", default="", help="only the kinds with such names (a regular expression)")
    parser.add_argument("--folders", type=Path, help="keep what is made to be attacked, and take it from there")
    parser.add_argument("--seconds", type=float, default=10, help="processor time of a case, at most")
    parser.add_argument(
        "--megabytes", type=float, default=1000, help="memory of a case above what is there before, at most"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        os.environ["DUBITO_CACHE"] = f"{root}/cache"
        return campaign(given, Path(root))


if __name__ == "__main__":
    sys.exit(main())
