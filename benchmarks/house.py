"""How far a reader has to walk: files that a forward pass, a prediction and an HTTP request touch, lines, and imports.

    python -m benchmarks.house src                       # this tree
    python -m benchmarks.house ../before/src src         # two, side by side

A file is touched if a function in it is called. A change of file is a call whose nearest caller inside dubito is in
another file, or which comes from outside. Lines are those of code: no blank lines, comments or docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.import_graph import ImportGraph, circles

ROOT = Path(__file__).parents[1]
NOT_CORE = (
    *("models", "data", "runs", "training", "evaluation", "decisions", "engines", "serving", "export", "exporting"),
    *("saving", "tables", "zoo", "benchmark", "paper", "cli", "files", "foreign", "limits", "harmless", "class_names"),
    *("progress", "threads", "memory", "errors", "__init__", "__main__"),
)
"""Files and folders of dubito that are no mathematics."""
IMAGES, DRAWS = 32, 10


class Walk:
    """Notes the files of `folder` whose functions are called, while it is on, also in threads that start later."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder) + os.sep
        self.on = False
        self.files: set[str] = set()
        self.changes = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if not self.on or event != "call" or not file.startswith(self.folder):
            return
        self.files.add(file.removeprefix(self.folder))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self.folder):
            caller = caller.f_back
        self.changes += caller is None or caller.f_code.co_filename != file

    def of(self, action: Callable[[], Any]) -> dict[str, Any]:
        """What one execution touches, after a first one that imports what is needed."""
        action()
        self.files, self.changes, self.on = set(), 0, True
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            action()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            self.on = False
        return self.found()

    def found(self) -> dict[str, Any]:
        return {"files": sorted(self.files), "changes": self.changes}


def walk_forward(walk: Walk) -> dict[str, Any]:
    """One forward pass of a Bayesian convolution that draws."""
    import torch

    import dubito

    layer, images = dubito.BayesConv2d(3, 8, 3), torch.zeros(2, 3, 8, 8)
    return walk.of(lambda: layer(images))


def walk_prediction(walk: Walk) -> dict[str, Any]:
    """One prediction of LeNet-5."""
    import torch

    import dubito

    model, images = dubito.models.build("lenet5", 10, 1), torch.zeros(IMAGES, 1, 32, 32)
    return walk.of(lambda: dubito.predict(model, images, DRAWS))


def walk_request(walk: Walk) -> dict[str, Any]:
    """One HTTP request for a prediction, as the server's process sees it."""
    from dubito import cli

    with tempfile.TemporaryDirectory() as folder:
        run, port = str(Path(folder) / "run"), free_port()
        assert cli.run(["train", "--epochs", "1", "--validation-samples", "1", "--out", run]) == 0

        def ask() -> None:
            for recorded in (False, True):  # the first request imports what is needed
                walk.on = recorded
                post(f"http://127.0.0.1:{port}/predict")
            walk.on = False
            print(json.dumps(walk.found()))
            sys.stdout.flush()
            os._exit(0)

        def wait_and_ask() -> None:
            while not alive(f"http://127.0.0.1:{port}/health"):
                time.sleep(0.1)
            ask()

        threading.Thread(target=wait_and_ask, daemon=True).start()
        threading.setprofile(walk)
        sys.setprofile(walk)
        cli.run(["serve", run, "--port", str(port)])
    raise RuntimeError("the server ended before it was asked")


WALKS = {"forward": walk_forward, "prediction": walk_prediction, "request": walk_request}


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def post(url: str) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (8, 8), 128).save(file, "png")
    frontier = "frontier"
    head = f'--{frontier}\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    body = head.encode() + file.getvalue() + f"\r\n--{frontier}--\r\n".encode()
    asked = urllib.request.Request(url, body, {"Content-Type": f"multipart/form-data; boundary={frontier}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert json.load(answer)["predictions"]


def code_lines(text: str) -> int:
    """Lines of code without blank lines, comments and docstrings.

    >>> code_lines('"What it does."\\n\\nx = 1  # one\\n# two\\ny = [\\n    2,\\n]\\n')
    4
    """
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def size(folder: Path) -> dict[str, int]:
    """Lines and files, of the mathematics and of everything."""
    files = {path: code_lines(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}
    core = [n for path, n in files.items() if path.relative_to(folder).with_suffix("").parts[0] not in NOT_CORE]
    return {"core lines": sum(core), "core files": len(core), "lines": sum(files.values()), "files": len(files)}


def look_at(source: Path) -> dict[str, Any]:
    """Everything about one source tree, which must hold a folder `dubito`."""
    folder = source.resolve() / "dubito"
    if not folder.is_dir():
        raise SystemExit(f"{source} holds no folder dubito, but must be a source tree such as src.")
    graph = ImportGraph(folder)
    found: dict[str, Any] = {"walks": {name: walked(folder, name) for name in WALKS}, **size(folder)}
    found["import circles"] = circles({(one.importer, one.imported) for one in graph.inside()})
    return found


def walked(folder: Path, name: str) -> dict[str, Any]:
    """A walk in a process of its own, which imports dubito from this tree."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("DUBITO_")}
    surroundings |= {"PYTHONPATH": os.pathsep.join([str(folder.parent), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    surroundings |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "benchmarks.house", "--walk", name, str(folder.parent)]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"The {name} of {folder} failed: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: a column for each tree."""
    rows: dict[str, list[str]] = {}
    for tree in found.values():
        for name, walk in tree["walks"].items():
            text = f"{len(walk['files'])} files, {walk['changes']} changes of file"
            rows.setdefault(f"one {name}", []).append(text)
        for part in ("core", ""):
            lines, files = (tree[f"{part} {what}".strip()] for what in ("lines", "files"))
            rows.setdefault(f"code of the {part or 'whole'}", []).append(f"{lines:,} lines in {files} files")
        rows.setdefault("circles of imports", []).append(str(len(tree["import circles"])))
    heads = ["", *found]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs="+", help="folders that hold the package dubito")
    parser.add_argument("--files", action="store_true", help="also list the files and the circles")
    parser.add_argument("--walk", choices=list(WALKS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.walk:
        found = WALKS[given.walk](Walk(given.trees[0] / "dubito"))
        print(json.dumps(found))
        return
    trees = {str(tree): look_at(tree) for tree in given.trees}
    print(table(trees))
    for name, tree in trees.items() if given.files else ():
        for action, walk in tree["walks"].items():
            print(f"\n{name}, one {action}: {', '.join(walk['files'])}")
        for circle in tree["import circles"]:
            print(f"{name}, circle: {' -> '.join([*circle, circle[0]])}")


if __name__ == "__main__":
    main()
