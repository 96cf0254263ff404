"""Which module of a source tree imports which, read from the code without running it.

Imports inside functions and for type checkers count too: a module that needs another only later still cannot be read
without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One import in one module."""

    importer: str
    imported: str
    line: int
    at_once: bool
    """Outside functions and `if TYPE_CHECKING`."""

    def __str__(self) -> str:
        return f"{self.importer.replace('.', '/')}, line {self.line}, imports {self.imported}"


class ImportGraph:
    """The modules of the package in `folder`, and everything that they import."""

    def __init__(self, folder: Path) -> None:
        self.package = folder.name
        self.modules = {self._name(folder, path): path for path in sorted(folder.rglob("*.py"))}
        self.imports = [one for name in self.modules for one in self._imports_of(name)]

    @staticmethod
    def _name(folder: Path, path: Path) -> str:
        parts = path.relative_to(folder.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def part_of(self, module: str) -> str:
        """The file or folder directly below the package that a module is in, or is; the package itself is in none."""
        return module.split(".")[1] if "." in module else ""

    def inside(self) -> list[Import]:
        """Imports of the package's own modules. The package itself only hands out their names, so it is left out."""
        own = [one for one in self.imports if one.importer != self.package and one.imported != one.importer]
        return [one for one in own if one.imported in self.modules]

    def _imports_of(self, name: str) -> Iterator[Import]:
        home = name if self.modules[name].name == "__init__.py" else name.rpartition(".")[0]

        def visit(node: ast.AST, at_once: bool) -> Iterator[Import]:
            for target in self._targets(node, home.split(".")):
                yield Import(name, target, node.lineno, at_once)  # type: ignore[attr-defined]
            later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            later = later or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, at_once and not later)

        yield from visit(ast.parse(self.modules[name].read_text(encoding="utf-8")), True)

    def _targets(self, node: ast.AST, home: list[str]) -> list[str]:
        """What a statement or a call imports, by full names."""
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            above = home[: len(home) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from dubito import models` imports a module, `from dubito.models import build` a name of one
            names = [f"{base}.{alias.name}" for alias in node.names if alias.name != "__version__"]
            return sorted({name if name in self.modules else base for name in names})
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            return [str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)]
        return []


def circles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Shortest circles, none of which has a node of another; there are none if and only if nothing runs in circles.

    >>> circles({("a", "b"), ("b", "c"), ("a", "c")})
    []
    >>> circles({("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")})
    [['b', 'c']]
    """
    follow: dict[str, set[str]] = {}
    for start, end in edges:
        follow.setdefault(start, set()).add(end)
    found: list[list[str]] = []
    for start in sorted(follow):
        circle = _shortest_way_back(start, follow)
        if circle and not any(set(circle) & set(other) for other in found):
            found.append(circle)
    return found


def _shortest_way_back(start: str, follow: dict[str, set[str]]) -> list[str] | None:
    ways, seen = [[start]], set[str]()
    for way in ways:
        onwards = follow.get(way[-1], set())
        if start in onwards:
            return way
        ways += [[*way, one] for one in sorted(onwards - seen)]
        seen |= onwards
    return None
