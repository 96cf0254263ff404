"""The house is in order: imports point one way and never in a circle, and `import dubito` is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import dubito

ORDER = (
    ("errors", "softplus", "files", "progress"),
    ("variational", "kernels"),
    ("estimators",),
    ("layers",),
    ("heads",),
    ("convert",),
    ("models", "data"),
    ("runs",),
    ("prediction",),
    ("decisions",),
    ("training", "evaluation"),
    ("engines", "serving", "export", "benchmark", "paper"),
    ("cli",),
    ("__main__",),
)
"""Files and folders of src/dubito, from low to high. Each may import what stands in its own line or above it."""
MATHEMATICS = (
    *("errors", "softplus", "variational", "kernels", "estimators", "layers", "heads", "convert", "prediction"),
)
"""What needs torch alone, as long as nothing is called that imports more."""
HEAVY = (
    *("lightning", "pytorch_lightning", "sklearn", "matplotlib", "pooch", "rich", "typer", "pandas", "scipy", "PIL"),
    *("torchvision", "fastapi", "onnx", "ray"),
)

SOURCE = Path(dubito.__file__).parent
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


@dataclass(frozen=True)
class Import:
    """One import statement of one of our modules."""

    importer: str
    imported: str
    line: int
    at_once: bool
    """Outside functions and `if TYPE_CHECKING`."""

    def __str__(self) -> str:
        return f"{self.importer.replace('.', '/')}, line {self.line}, imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def part_of(module: str) -> str:
    """The file or folder directly below dubito that a module is in, or is."""
    return module.split(".")[1] if "." in module else ""


def imports_of(name: str) -> Iterator[Import]:
    """Every import of a module, also in functions and for type checkers alone; those of dubito by their full names."""
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(name, alias.name, node.lineno, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from dubito import models` imports a module, `from dubito.models import build` a name of one
            full = [f"{base}.{alias.name}" for alias in node.names if (base, alias.name) != ("dubito", "__version__")]
            for target in sorted({one if one in modules() else base for one in full}):
                yield Import(name, target, node.lineno, at_once)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = node.args[0]
            if isinstance(named, ast.Constant):
                yield Import(name, str(named.value), node.lineno, at_once)
        later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        later = later or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_once and not later)

    yield from visit(ast.parse(modules()[name].read_text(encoding="utf-8")), True)


@cache
def own_imports() -> tuple[Import, ...]:
    """Imports of dubito by dubito. The package itself only hands out names of the others, so it is left out."""
    found = (one for name in modules() if name != "dubito" for one in imports_of(name))
    return tuple(one for one in found if one.imported in modules() and one.imported != one.importer)


def circles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Shortest circles, none of which has a node of another; there are none if and only if nothing runs in circles."""
    follow: dict[str, set[str]] = {}
    for start, end in edges:
        follow.setdefault(start, set()).add(end)
    found: list[list[str]] = []
    for start in sorted(follow):
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            if start in follow.get(way[-1], ()):
                if not any(set(way) & set(other) for other in found):
                    found.append(way)
                break
            onwards = sorted(follow.get(way[-1], set()) - seen)
            seen.update(onwards)
            ways += [[*way, one] for one in onwards]
    return found


def test_circles_are_found_and_only_circles() -> None:
    assert circles({("a", "b"), ("b", "c"), ("a", "c")}) == []
    assert circles({("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")}) == [["b", "c"]]


def test_every_module_has_a_place_in_the_order() -> None:
    unknown = {part_of(name) for name in modules() if name != "dubito"} - LEVEL.keys()
    assert not unknown, f"give {unknown} a place in ORDER"


def test_no_module_imports_in_a_circle() -> None:
    """Functions' own imports count too: a module that needs another only later still cannot be read without it."""
    found = circles({(one.importer, one.imported) for one in own_imports()})
    assert not found, "\n".join(" -> ".join([*circle, circle[0]]) for circle in found)


def test_no_two_packages_import_each_other() -> None:
    edges = {(part_of(one.importer), part_of(one.imported)) for one in own_imports()}
    found = circles({(start, end) for start, end in edges if start != end and end})
    assert not found, "\n".join(" -> ".join([*circle, circle[0]]) for circle in found)


@pytest.mark.parametrize("part", sorted({part_of(name) for name in modules()} & LEVEL.keys()))
def test_nothing_lower_imports_anything_higher(part: str) -> None:
    own = [one for one in own_imports() if part_of(one.importer) == part]
    upwards = [str(one) for one in own if LEVEL.get(part_of(one.imported), 99) > LEVEL[part]]
    assert not upwards, "\n".join(upwards)


@pytest.mark.parametrize("part", MATHEMATICS)
def test_mathematics_needs_torch_alone(part: str) -> None:
    at_once = [one for name in modules() if part_of(name) == part for one in imports_of(name) if one.at_once]
    roots = {one.imported.split(".")[0] for one in at_once}
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
