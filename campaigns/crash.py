"""Kills at random moments: `python -m campaigns.crash`.

Commands on small runs of the embedded digits are killed by SIGKILL, each at a random moment of the time that it takes
undisturbed. After every kill no file may be half written, what was there before must still be there, the next command
must work, its result must be that of an undisturbed one, bit for bit, and no temporary file may be left.

One process imports everything and forks a child for each command, so that a kill costs no start of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from campaigns.campaign import Deadline, Tally, chance, options
from dubito.cli import run as command_line
from dubito.files import is_unfinished

GOOD = ("recovered", "untouched")
"""The kill came in the middle; or the command had ended, or had not begun."""
BAD = ("half written", "lost", "refused", "different", "litter")
TRAIN = "train --model lenet5 --data digits --epochs 2 --validation-samples 1 --checkpoint-minutes 0.005 --out run"
QUICK = ("train", "resume", "evaluate", "prune", "predict")
ROUND = (*QUICK, *QUICK, "report", "export", "predict on Ray")
"""The order of kinds: the slow ones come less often."""
LIMIT = 600.0
"""Seconds after which an undisturbed command counts as hung."""


@dataclass(frozen=True)
class Kind:
    """A command to kill.

    Attributes:
        command: what is killed, in a folder that begins as a copy of `begins_as`.
        begins_as: the name of a prepared folder.
        again: the command that follows the kill, chosen by what the kill left.
        result: what the folder must hold in the end, as something to compare.
    """

    command: str
    begins_as: str
    again: Callable[[Path], str]
    result: Callable[[Path], Any]


def trained(folder: Path) -> dict[str, Any]:
    """Everything of a run that an undisturbed training decides: bits of tensors, and metrics without times."""
    run = folder / "run"
    content: dict[str, Any] = {name: tensors(run / f"{name}.safetensors") for name in ("best", "last", "validation")}
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    timed = rows[0].index("seconds")
    content["metrics"] = [row[:timed] + row[timed + 1 :] for row in rows]
    content["others"] = [(run / name).read_bytes() for name in ("posterior.csv", "config.yaml", "novelty.safetensors")]
    return content


def tensors(file: Path) -> dict[str, bytes]:
    """The bits of each tensor of a file."""
    with safe_open(file, framework="pt") as content:
        return {key: content.get_tensor(key).numpy().tobytes() for key in content.keys()}  # noqa: SIM118


def evaluated(folder: Path) -> dict[str, Any]:
    """The metrics and predictions of an evaluation, which must also be those of the file for people."""
    from dubito.evaluation import Evaluation

    found = Evaluation.load(folder / "run")
    told = json.loads((folder / "run" / "evaluation.json").read_text())["metrics"]
    return {"metrics": found.metrics, "told": told, "tensors": tensors(folder / "run" / "evaluation.safetensors")}


def pruned(folder: Path) -> list[bytes]:
    """The files of a pruned run."""
    return [(folder / "pruned" / name).read_bytes() for name in ("best.safetensors", "config.yaml", "pruning.json")]


def reported(folder: Path) -> Any:
    """What stands in a report but for its figures, whose identifiers are random; and how it ends."""
    page = (folder / "report.html").read_text()
    return page.rstrip().endswith("</html>"), evaluated(folder)["metrics"]["settings"], sorted(figures(folder))


def figures(folder: Path) -> Iterator[str]:
    """The names of a report's figures, none of them empty."""
    for path in (folder / "figures").iterdir():
        if path.stat().st_size:
            yield path.name


def exported(folder: Path) -> Any:
    """What an exported network says of a gray image."""
    from dubito.exporting import OnnxModel

    model = OnnxModel(folder / "network.onnx")
    size = model.description.data.size
    return model.predict(torch.full((1, 1, size, size), 128, dtype=torch.uint8)).probs.tolist()


def predicted(folder: Path) -> bytes:
    """The rows of a file of predictions."""
    return (folder / "predictions.csv").read_bytes()


def in_parts(folder: Path) -> list[Any]:
    """The rows of all parts of predictions, and what the manifest says of them."""
    from pyarrow import parquet

    parts = sorted((folder / "parts").glob("part-*.parquet"))
    manifest = json.loads((folder / "parts" / "manifest.json").read_text())
    told = [manifest[name] for name in ("complete", "rows", "errors", "parts")]
    return [told, [path.name for path in parts], [parquet.read_table(path).to_pydict() for path in parts]]


def kinds() -> dict[str, Kind]:
    """Every command that is killed."""
    found = {"train": Kind(TRAIN, "nothing", goes_on, trained)}
    found["resume"] = Kind("train --resume run", "stopped", goes_on, trained)
    same = {
        "evaluate": ("evaluate run --samples 4 --seed 1 --noise 0,0.2 --bootstrap 30 --out metrics.json", evaluated),
        "report": ("report run --samples 4 --out report.html --figures figures", reported),
        "prune": ("prune run --sparsity 0.6 --samples 2 --out pruned", pruned),
        "export": ("export run --samples 2 --out network.onnx", exported),
        "predict": ("predict run digits --samples 4 --out predictions.csv", predicted),
    }
    for name, (command, result) in same.items():
        found[name] = Kind(command, "evaluated", lambda folder, command=command: command, result)  # type: ignore[misc]
    on_ray = "predict run digits --samples 4 --engine ray --workers 2 --chunk 40 --out parts"
    found["predict on Ray"] = Kind(on_ray, "evaluated", lambda folder: f"{on_ray} --resume", in_parts)
    found["prune"] = Kind(same["prune"][0], "evaluated", prunes_unless_done, pruned)
    return found


def goes_on(folder: Path) -> str:
    """What a user does after a training was killed: resume it, or begin again if it had not begun."""
    return "train --resume run" if (folder / "run" / "config.yaml").exists() else TRAIN


def prunes_unless_done(folder: Path) -> str:
    """What a user does after a pruning was killed: use the folder if it is there, else prune again."""
    done = (folder / "pruned" / "config.yaml").exists()
    return "predict pruned digits --samples 2 --top 1" if done else "prune run --sparsity 0.6 --samples 2 --out pruned"


def start(command: str, folder: Path) -> int:
    """A child that runs a command in a folder; its words go to a file beside it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            said = os.open(folder.parent / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(said, stream)
            os.chdir(folder)
            code = command_line(command.split())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return child


def end(child: int, seconds: float) -> int | None:
    """The exit code of a child that ends in so many seconds; else it is killed, and there is none."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == -signal.SIGKILL else code


def undisturbed(command: str, folder: Path) -> float:
    """Run a command to its end; gives its seconds. A command that fails ends the campaign."""
    began = time.monotonic()
    code = end(start(command, folder), LIMIT)
    if code != 0:
        raise SystemExit(f"`dubito {command}` failed undisturbed: {said(folder)}")
    return time.monotonic() - began


def said(folder: Path) -> str:
    """The last line of what the last command said."""
    lines = (folder.parent / "said.txt").read_text(errors="replace").splitlines()
    return lines[-1][:300] if lines else ""


def prepare(root: Path) -> None:
    """The folders that commands begin in: nothing, a training stopped after its first epoch, an evaluated run."""
    (root / "nothing").mkdir()
    (root / "stopped").mkdir()
    child = start(TRAIN, root / "stopped")
    while not (root / "stopped" / "run" / "metrics.csv").exists():
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (root / "evaluated").mkdir()
    undisturbed(TRAIN, root / "evaluated")
    undisturbed("evaluate run --samples 2 --noise 0,0.1 --bootstrap 20", root / "evaluated")


def half_written(folder: Path) -> str | None:
    """The first file with a name of its own that cannot be read to its end."""
    from pyarrow import parquet

    for path in sorted(folder.rglob("*")):
        if not path.is_file() or any(is_unfinished(part) for part in path.relative_to(folder).parts):
            continue
        try:
            if path.suffix == ".safetensors":
                tensors(path)
            elif path.suffix == ".parquet":
                parquet.read_table(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
            elif not path.stat().st_size:
                raise ValueError("empty")
        except Exception as error:
            return f"{path.relative_to(folder)}: {error}"
    return None


def lost(kind: Kind, before: Path, folder: Path) -> str | None:
    """The first file of the run that was there before and has gone, or whose weights are others."""
    if kind.begins_as != "evaluated":
        return None
    for path in (before / "run").rglob("*"):
        now = folder / "run" / path.relative_to(before / "run")
        if not now.exists():
            return str(path.relative_to(before))
        if path.suffix == ".safetensors" and path.stem != "evaluation" and path.read_bytes() != now.read_bytes():
            return str(path.relative_to(before))
    return None


def attack(kind: Kind, root: Path, seconds: float, wanted: Any) -> tuple[str, str]:
    """Kill a command after so many seconds, and say how that ended."""
    folder = root / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / kind.begins_as, folder)
    code = end(start(kind.command, folder), seconds)
    if code not in (None, 0):
        return "refused", f"the command itself: {said(folder)}"
    if found := half_written(folder):
        return "half written", found
    if found := lost(kind, root / kind.begins_as, folder):
        return "lost", found
    again = kind.again(folder)
    if end(start(again, folder), LIMIT) != 0:
        return "refused", f"`dubito {again}`: {said(folder)}"
    litter = [str(path.relative_to(folder)) for path in folder.rglob("*") if is_unfinished(path.name)]
    if litter:
        return "litter", litter[0]
    try:
        same = kind.result(folder) == wanted
    except Exception as error:
        return "half written", f"the result: {error}"
    return ("recovered" if code is None else "untouched", "") if same else ("different", "the result")


def import_all() -> None:
    """What the children would import."""
    import matplotlib.pyplot  # noqa: F401
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytorch_lightning  # noqa: F401

    import dubito.evaluation.report
    import dubito.exporting
    import dubito.training.fit  # noqa: F401

    torch.set_num_threads(1)  # a fork does not take threads along


def campaign(given: Namespace, root: Path) -> int:
    """All cases, in an order that is the same for a seed."""
    deadline = Deadline(given.minutes)
    tally = Tally(GOOD, BAD)
    prepare(root)
    all_kinds, seconds, wanted = kinds(), {}, {}
    for name, kind in all_kinds.items():
        folder = Path(shutil.copytree(root / kind.begins_as, root / f"undisturbed-{name}"))
        seconds[name] = undisturbed(kind.command, folder)
        wanted[name] = kind.result(folder)
        print(f"{name}: {seconds[name]:.1f} s undisturbed", flush=True)
    for number in range(given.kills):
        if deadline.over:
            break
        name = ROUND[number % len(ROUND)]
        moment = chance(given.seed, name, number).random() * seconds[name]
        outcome, detail = attack(all_kinds[name], root, moment, wanted[name])
        tally.add(name, outcome, {"number": number, "moment": round(moment, 3), "detail": detail})
        print(f"{number + 1}: {name} after {moment:.2f} s: {outcome} {detail}", flush=True)
    whole = {name: round(value, 2) for name, value in seconds.items()}
    return tally.finish(given, deadline, kills=tally.cases, undisturbed_seconds=whole)


def main(arguments: Sequence[str] | None = None) -> int:
    """The campaign as a command; its exit code is 1 if a case ended badly."""
    parser = options("crash", "Kill commands by SIGKILL at random moments.", minutes=60)
    parser.add_argument("--kills", type=int, default=200, help="how many commands are killed")
    given = parser.parse_args(arguments)
    given.out = given.out.resolve()
    import_all()
    with tempfile.TemporaryDirectory() as root:
        return campaign(given, Path(root))


if __name__ == "__main__":
    sys.exit(main())
