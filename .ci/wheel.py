"""Build dubito, and try what was built as somebody would who installs it: `make wheel`, or `python .ci/wheel.py`.

1. The source archive is built, and the wheel from it, so that the archive holds all that a build needs.
2. The wheel holds every file of `src/dubito`, and its metadata are valid.
3. It is installed into a new environment without extras: help works, and an error says what to install.
4. With all extras every module is imported, and a small run is trained, judged, reported, exported and served.

Everything that is installed is tried in a folder outside the checkout, without its paths.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("all", "dev", "docs", "hf", "onnx", "parquet", "ray", "serve", "tensorboard", "train")
IMPORTS = """
import importlib, pkgutil, sys
import dubito
names = [module.name for module in pkgutil.walk_packages(dubito.__path__, "dubito.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(len(names), "modules of", dubito.__path__[0])
"""


def main() -> None:
    """Build, check, install and try; the first thing that fails ends it."""
    parser = argparse.ArgumentParser(description="Build the source archive and the wheel, install the wheel, try it.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install into [this one]")
    parser.add_argument(
        "--constraints", default=str(ROOT / "constraints.txt"), help="pinned packages; '' for none [constraints.txt]"
    )
    parser.add_argument("--dist", default=str(ROOT / "dist"), help="where the two files go [dist]")
    parser.add_argument("--keep", action="store_true", help="keep the environment and what was made in it")
    given = parser.parse_args()
    dist = Path(given.dist)
    wheel = build(dist)
    check(wheel)
    folder = Path(tempfile.mkdtemp(prefix="dubito-wheel-"))
    try:
        environment = Installed(folder, given.python, given.constraints)
        environment.install(str(wheel))
        try_without_extras(environment)
        environment.install(f"{wheel}[all]")
        try_everything(environment)
    finally:
        if given.keep:
            say(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"{wheel.name} installs and works on Python {environment.version}.")


# ---- what was built ------------------------------------------------------------------------------------------------


def build(dist: Path) -> Path:
    """The wheel, which is built from the source archive."""
    for old in dist.glob("dubito-*"):
        old.unlink()
    done = subprocess.run([sys.executable, "-m", "build", "--outdir", dist, ROOT], capture_output=True, text=True)
    require(done.returncode == 0, done.stdout + done.stderr)
    (archive,) = dist.glob("dubito-*.tar.gz")
    (wheel,) = dist.glob("dubito-*-py3-none-any.whl")
    for file in (archive, wheel):
        say(f"{file.name}: {file.stat().st_size:,} bytes.")
    return wheel


def check(wheel: Path) -> None:
    """That the wheel has all files of the package and no others, and metadata that a registry takes."""
    from packaging.metadata import Metadata

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (text,) = [archive.read(name) for name in names if name.endswith(".dist-info/METADATA")]
    packed = {name for name in names if name.startswith("dubito/")}
    files = {
        path for path in (ROOT / "src" / "dubito").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    require(packed == expected, f"The wheel lacks {expected - packed} or has too much: {packed - expected}.")
    metadata = Metadata.from_email(text, validate=True)  # an ExceptionGroup that names every invalid field
    require(bool(metadata.description) and metadata.description_content_type == "text/markdown", "No description.")
    require(metadata.license_expression == "MIT", f"The licence is {metadata.license_expression}.")
    require(sorted(metadata.provides_extra or ()) == list(EXTRAS), f"The extras are {metadata.provides_extra}.")
    init = (ROOT / "src" / "dubito" / "__init__.py").read_text(encoding="utf-8")
    require(f'__version__ = "{metadata.version}"' in init, f"The version is {metadata.version}.")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    latest = re.search(r"^## (\S+) \((\S+)\)$", changes, flags=re.MULTILINE)
    require(latest is not None and latest[1] == str(metadata.version), "CHANGELOG.md does not begin with this version.")
    cited = re.search(r"^version: (\S+)\ndate-released: (\S+)$", citation, flags=re.MULTILINE)
    require(cited is not None and cited.groups() == latest.groups(), "CITATION.cff and CHANGELOG.md disagree.")
    say(f"dubito {metadata.version}: {len(packed)} files, valid metadata, {len(EXTRAS)} extras.")


# ---- what was installed --------------------------------------------------------------------------------------------


class Installed:
    """A new environment, and a folder outside the checkout to try it in."""

    def __init__(self, folder: Path, python: str, constraints: str) -> None:
        self.place = folder / "elsewhere"
        self.place.mkdir()
        self.bin = folder / "venv" / "bin"
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_CONSTRAINT")
        self.variables = {name: value for name, value in os.environ.items() if name not in left_out}
        self.variables |= {"DUBITO_CACHE": str(folder / "cache"), "COLUMNS": "100"}
        if constraints:
            self.variables["PIP_CONSTRAINT"] = str(Path(constraints).resolve())
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True, env=self.variables)
        self.version = self.run("python", "--version").split()[1]

    def install(self, what: str) -> None:
        """Install it by pip, and compare all pins with each other."""
        say(f"Installing {Path(what).name} on Python {self.version} ...")
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what)
        self.run("python", "-m", "pip", "check")

    def run(self, program: str, *arguments: str, code: int = 0) -> str:
        """What the program prints, or its error; it has to end with this exit code."""
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, cwd=self.place, env=self.variables, capture_output=True, text=True)
        require(done.returncode == code, f"{program} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
        return done.stderr if code else done.stdout

    def dubito(self, line: str, code: int = 0) -> str:
        """What `dubito LINE` prints."""
        say(f"  dubito {line}")
        return self.run("dubito", *line.split(), code=code)


def try_without_extras(installed: Installed) -> None:
    """That help and the mathematics work, and that what is missing is named."""
    require(installed.dubito("--version").startswith("dubito "), "There is no version.")
    require("Usage" in installed.dubito("train --help"), "There is no help.")
    layer = "import torch, dubito; print(dubito.BayesLinear(4, 2)(torch.ones(3, 4)).shape)"
    require("[3, 2]" in installed.run("python", "-c", layer), "The layers do not work.")
    installed.dubito("models")
    said = installed.dubito("train --data digits --epochs 1 --out run", code=1)
    require("pip install -e '.[train]'" in said and said.count("\n") == 1, said)


def try_everything(installed: Installed) -> None:
    """That every module can be imported, and that what users do first works."""
    found = installed.run("python", "-c", IMPORTS).strip()
    require(str(installed.bin.parent) in found, f"{found} are not those that were installed.")
    say(f"  {found}")
    installed.dubito("train --data digits --epochs 3 --validation-samples 1 --out run")
    installed.dubito("predict run digits --samples 2 --out predictions.csv")
    rows = list(csv.DictReader((installed.place / "predictions.csv").open(encoding="utf-8")))
    require(len(rows) > 300 and float(rows[0]["epistemic"]) > 0, f"There are {len(rows)} predictions.")
    installed.dubito("evaluate run --samples 2 --out metrics.json")
    metrics = json.loads((installed.place / "metrics.json").read_text(encoding="utf-8"))
    require(metrics["accuracy"] > 0.5, f"The accuracy is {metrics['accuracy']}.")
    installed.dubito("report run --samples 2 --out report.html")
    installed.dubito("export run --out model.onnx")
    installed.dubito("predict model.onnx digits --out again.parquet")
    serve(installed)


def serve(installed: Installed) -> None:
    """That the server answers, with all files of its page."""
    say("  dubito serve run --port 0")
    command = [str(installed.bin / "dubito"), "serve", "run", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=installed.place, env=installed.variables, stdout=pipe, text=True) as server:
        try:
            url = next((found[0] for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line))), "")
            require(bool(url), "The server does not say where it is.")
            page = fetch(url)
            for file in re.findall(r'(?:src|href)="(/?[\w/]+\.\w+)"', page):
                fetch(f"{url}/{file.lstrip('/')}")
            require("BayesLinear" in fetch(f"{url}/model") or "lenet5" in fetch(f"{url}/model"), "/model is empty.")
            fetch(f"{url}/docs")
        finally:
            server.terminate()
            server.stdout.read()
    require(server.returncode == 0, f"The server ended with {server.returncode}.")


def fetch(address: str) -> str:
    """The text at an address of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=60) as answer:
        return answer.read().decode()


def require(holds: bool, otherwise: str) -> None:
    """End with this message unless it holds."""
    if not holds:
        raise SystemExit(otherwise)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
