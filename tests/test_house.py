"""The house is in order: imports point one way and never in a circle, and `import dubito` is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.house import code_lines
from benchmarks.import_graph import ImportGraph, circles

import dubito

ORDER = (
    ("errors", "softplus", "files", "harmless", "progress", "linear_map", "memory", "limits", "class_names", "foreign"),
    ("engines", "zoo"),
    ("heads", "kernels", "scores"),
    ("variational",),
    ("estimators",),
    ("layers",),
    ("convert",),
    ("models", "data", "threads"),
    ("runs",),
    ("saving",),
    ("decisions",),
    ("prediction",),
    ("training", "evaluation"),
    ("tables", "serving", "exporting", "benchmark", "paper"),
    ("cli",),
    ("__main__",),
)
"""Files and folders of src/dubito, from low to high. Each may import what stands in its own line or above it."""
MATHEMATICS = (
    *("errors", "softplus", "linear_map", "variational", "kernels"),
    *("estimators", "layers", "heads", "convert", "prediction"),
)
"""What needs torch alone, as long as nothing is called that imports more."""
HEAVY = (
    *("lightning", "pytorch_lightning", "sklearn", "matplotlib", "pooch", "rich", "typer", "pandas", "scipy", "PIL"),
    *("torchvision", "fastapi", "onnx", "ray"),
)

GRAPH = ImportGraph(Path(dubito.__file__).parent)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
PARTS = sorted({GRAPH.part_of(name) for name in GRAPH.modules} - {""})


def drawn(found: list[list[str]]) -> str:
    return "\n".join(" -> ".join([*circle, circle[0]]) for circle in found)


def test_the_graph_knows_every_kind_of_import(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "door.py").write_text("import os\ndef open():\n    from house.room import bed\n")
    (package / "room" / "__init__.py").write_text("from .bed import *\n")
    (package / "room" / "bed.py").write_text("from importlib import import_module\nimport_module('house.door')\n")
    graph = ImportGraph(package)
    edges = {(one.importer, one.imported) for one in graph.inside()}
    assert edges == {
        ("house.door", "house.room.bed"),
        ("house.room", "house.room.bed"),
        ("house.room.bed", "house.door"),
    }
    assert circles(edges) == [["house.door", "house.room.bed"]]
    assert {(one.imported, one.at_once) for one in graph.imports} >= {("os", True), ("house.room.bed", False)}
    assert circles({("a", "b"), ("b", "c"), ("a", "c")}) == []


def test_lines_of_code_leave_out_what_is_not_code() -> None:
    text = '"""What it does."""\n\nx = 1  # one\n# two\ny = [\n    2,\n]\n"""What y is."""\n'
    assert code_lines(text) == 4


def test_every_module_has_a_place_in_the_order() -> None:
    unknown = set(PARTS) - LEVEL.keys()
    assert not unknown, f"give {unknown} a place in ORDER"


def test_no_module_imports_in_a_circle() -> None:
    found = circles({(one.importer, one.imported) for one in GRAPH.inside()})
    assert not found, drawn(found)


def test_no_two_packages_import_each_other() -> None:
    edges = {(GRAPH.part_of(one.importer), GRAPH.part_of(one.imported)) for one in GRAPH.inside()}
    found = circles({(start, end) for start, end in edges if start != end and end})
    assert not found, drawn(found)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_lower_imports_anything_higher(part: str) -> None:
    """Nor the package itself, which hands out the names of all."""
    own = [one for one in GRAPH.inside() if GRAPH.part_of(one.importer) == part]
    upwards = [str(one) for one in own if LEVEL.get(GRAPH.part_of(one.imported), 99) > LEVEL.get(part, 99)]
    assert not upwards, "\n".join(upwards)


@pytest.mark.parametrize("part", MATHEMATICS)
def test_mathematics_needs_torch_alone(part: str) -> None:
    roots = {one.imported.split(".")[0] for one in GRAPH.imports if one.at_once and GRAPH.part_of(one.importer) == part}
    assert roots - set(sys.stdlib_module_names) <= {"torch", "typing_extensions", "dubito"}


def test_import_brings_in_nothing_heavier_than_torch() -> None:
    """The public names are asked for too, for they are imported when first used."""
    code = (
        "import sys, torch; before = set(sys.modules); import dubito; "
        "[getattr(dubito, name) for name in dubito.__all__]; "
        f"print(*[name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == ""


def test_every_public_name_exists() -> None:
    assert all(getattr(dubito, name) is not None for name in dubito.__all__)
