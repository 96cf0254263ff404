"""Pages whose code is run when the site is built, and what it printed and drew.

A block that begins with ```python run or ```console run is run, in the order of the page, all blocks of a page in one
process and one empty folder. Its output comes below it, with the figures that matplotlib has open at its end. With the
mark `fold` the code is folded away. `![text](run:NAME.png)` is a picture that the page's code wrote. A block that
fails fails the build.

    python -m site_builder.tutorials docs/tutorials/regression.md       # run one page and print what it gives

What a page gave is kept in build/tutorials until the page or the package changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from site_builder.pages import FENCE, ROOT, Block, block_of, blocks

KEPT = ROOT / "build" / "tutorials"
PICTURE = re.compile(r"\]\(run:([^)\s]+)\)")


class TutorialError(Exception):
    """A block of a page failed."""


@dataclass(frozen=True)
class Outcome:
    """What a block printed, and the names of the figures that it drew."""

    output: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    """What the blocks of a page gave, and the folder of their pictures."""

    outcomes: tuple[Outcome, ...]
    folder: Path
    seconds: float


def run_page(name: str, text: str) -> Ran | None:
    """Run the marked blocks of a page, unless it has been run as it is; None if none is marked."""
    marked = [block for block in blocks(text) if block.runs]
    if not marked:
        return None
    folder = KEPT / name / _fingerprint(text)
    if not (folder / "outcomes.json").exists():
        shutil.rmtree(KEPT / name, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        _run(name, marked, folder)
    content = json.loads((folder / "outcomes.json").read_text(encoding="utf-8"))
    outcomes = tuple(Outcome(one["output"], tuple(one["figures"])) for one in content["outcomes"])
    return Ran(outcomes, folder / "work", content["seconds"])


def with_outcomes(text: str, ran: Ran, pictures: str) -> str:
    """The page with the output below each block; `pictures` is the way from it to the folder of its pictures."""
    outcomes = iter(ran.outcomes)

    def shown(match: re.Match[str]) -> str:
        block = block_of(match, text)
        if not block.runs:
            return match[0]
        outcome = next(outcomes)
        parts = [f"```{block.language}\n{block.code}```"]
        if "fold" in block.marks:
            parts = ['??? note "The code"\n\n' + "".join(f"    {line}\n" for line in parts[0].splitlines())]
        if outcome.output:
            parts.append(f"```{{ .text .output }}\n{outcome.output}\n```")
        parts += [f"![What this draws]({pictures}/{figure})" for figure in outcome.figures]
        return "\n\n".join(parts)

    return PICTURE.sub(rf"]({pictures}/\1)", FENCE.sub(shown, text))


def pictures_of(text: str, ran: Ran) -> list[str]:
    """The names of the pictures that the page shows."""
    return [*(figure for outcome in ran.outcomes for figure in outcome.figures), *PICTURE.findall(text)]


def _run(name: str, marked: list[Block], folder: Path) -> None:
    began = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "site_builder.session", str(folder / "outcomes.json.part")],
        input=json.dumps([{"language": block.language, "code": block.code, "line": block.line} for block in marked]),
        text=True,
        capture_output=True,
        cwd=folder / "work",
        env=_environment(),
    )
    if found.returncode:
        raise TutorialError(f"{name} does not run.\n{found.stdout}\n{found.stderr}")
    written = folder / "outcomes.json.part"
    content = {"outcomes": json.loads(written.read_text(encoding="utf-8")), "seconds": time.monotonic() - began}
    written.write_text(json.dumps(content), encoding="utf-8")
    written.rename(folder / "outcomes.json")


def _environment() -> dict[str, str]:
    """That of a terminal without colours, one thread, the programs of this Python first."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }


def _fingerprint(text: str) -> str:
    """Of all that the outcome depends on: the page, the package, the examples, and how they are run."""
    sources = [path for place in ("src/dubito", "examples") for path in (ROOT / place).rglob("*.py")]
    sources += [ROOT / "site_builder" / name for name in ("session.py", "tutorials.py")]
    digest = hashlib.sha256(text.encode())
    for path in sorted(sources):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> None:
    """Run the pages that are named, and print what they give."""
    for name in sys.argv[1:]:
        text = Path(name).read_text(encoding="utf-8")
        ran = run_page(Path(name).stem, text)
        if ran:
            print(with_outcomes(text, ran, str(ran.folder)))
            print(f"{name}: {ran.seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
