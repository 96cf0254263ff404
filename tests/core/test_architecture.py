"""Dependencies point one way, and `import dubito` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dubito

SOURCE = Path(dubito.__file__).parent
# style.md: mathematics <- models and data <- training <- evaluation, paper, serving <- command line
CORE = (
    *(
        "errors",
        "memory",
        "softplus",
        "autograd",
        "noise",
        "windows",
        "winograd",
        "linear_maps",
        "convolution",
        "local",
        "drawn",
        "posterior",
        "prior",
        "divergence",
        "estimators",
        "layers",
    ),
    *(
        "head",
        "elbo",
        "uncertainty",
        "moments",
        "draws",
        "prediction",
        "convert",
        "ensembles",
        "logits",
        "model_summary",
        "pruning",
    ),
)
LEVELS: dict[str, int] = {
    **dict.fromkeys(CORE, 0),
    **dict.fromkeys(("models", "data"), 1),
    "training": 2,
    **dict.fromkeys(("benchmark", "evaluation", "export", "paper", "serving"), 3),
    **dict.fromkeys(("cli", "__main__"), 4),
}
PUBLIC = (
    *("BayesLinear", "BayesConv1d", "BayesConv2d", "BayesConv3d"),
    *("BayesConvTranspose1d", "BayesConvTranspose2d", "BayesConvTranspose3d"),
    *("to_bayesian", "kl_divergence", "estimator", "softplus_normalize", "log_softplus_normalize"),
    *("ELBO", "KLSchedule", "predict", "decompose"),
)
HEAVY = (
    "lightning",
    "pytorch_lightning",
    "sklearn",
    "matplotlib",
    "pooch",
    "rich",
    "typer",
    "pandas",
    "scipy",
    "PIL",
    "torchvision",
)


def sources() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def concept(path: Path) -> str:
    """The first word of a module's name below dubito: its file or its folder."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path, *, deferred: bool) -> set[str]:
    """Full names of all modules that a file imports; without those in functions and under TYPE_CHECKING, if asked."""
    package = ("dubito", *path.relative_to(SOURCE).parts[:-1])
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            # `from dubito import models` imports a module too
            names.update(
                {module, *(f"{module}.{alias.name}" for alias in node.names)} if module == "dubito" else {module}
            )
        later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        later = later or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        if deferred or not later:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(path.read_text()))
    return names


def needed(name: str) -> set[str]:
    """What a concept of the mathematics, a file or a folder, imports at once."""
    files = sorted((SOURCE / name).glob("*.py")) or [SOURCE / f"{name}.py"]
    return set().union(*(imported(path, deferred=False) for path in files))


def own_concepts(names: set[str]) -> set[str]:
    """The concepts of dubito among imported names; a public name counts as the mathematics that it comes from."""
    found = {name.split(".")[1] for name in names if name.startswith("dubito.")}
    return found & (LEVELS.keys() | {path.stem for path in SOURCE.iterdir()})


def test_every_module_has_a_place_in_the_order():
    unknown = {concept(path) for path in sources()} - LEVELS.keys()
    assert not unknown, f"give {unknown} a level in LEVELS"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_lower_imports_anything_higher(path):
    level = LEVELS[concept(path)]
    higher = {other for other in own_concepts(imported(path, deferred=True)) if LEVELS.get(other, 99) > level}
    assert not higher


@pytest.mark.parametrize("name", CORE)
def test_mathematics_needs_torch_alone(name):
    roots = {module.split(".")[0] for module in needed(name)}
    assert roots - set(sys.stdlib_module_names) <= {"torch", "typing_extensions", "dubito"}


def test_mathematics_is_imported_in_one_direction():
    """Importing never runs in a circle: each file only needs files that need none of those after it."""
    needs = {name: own_concepts(needed(name)) - {name} for name in CORE}
    order: list[str] = []
    while len(order) < len(CORE):
        ready = [name for name in CORE if name not in order and needs[name] <= set(order)]
        assert ready, {name: needs[name] - set(order) for name in CORE if name not in order}
        order += ready


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_brings_in_nothing_heavier_than_torch():
    code = (
        "import sys, torch; before = set(sys.modules); import dubito; "
        f"[getattr(dubito, name) for name in {PUBLIC}]; "
        f"print(*[name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    assert run_python(code) == ""


def test_import_adds_less_than_a_tenth_to_that_of_torch():
    """The public names are asked for too, for a lazy import that is paid at the first use would be no saving."""
    code = (
        "from time import perf_counter as now; start = now(); import torch; middle = now(); import dubito; "
        f"[getattr(dubito, name) for name in {PUBLIC}]; print((now() - middle) / (middle - start))"
    )
    assert min(float(run_python(code)) for _ in range(3)) < 0.1


def test_every_public_name_exists():
    assert set(PUBLIC) <= set(dubito.__all__)
    assert all(getattr(dubito, name) is not None for name in PUBLIC)
