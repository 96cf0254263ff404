"""The benchmark's results as Markdown: tables, and the page of the documentation."""

from __future__ import annotations

from typing import Any

from benchmarks.pages import with_table
from benchmarks.peers.profile import Group

from dubito.benchmark import Work
from dubito.benchmark.systems import Frequentist
from dubito.benchmark.work import Task

TITLES = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "vgg16": "VGG16",
    "resnet20": "ResNet-20",
    "resnet18": "ResNet-18, 32x32 pixels",
}
NOTHING = "–"  # noqa: RUF001

TABLE_BEGINS = "<!-- cost table: made by make bench -->"
"""The mark before the table of the overview that is made from the results."""

OVERVIEW = "docs/results/index.md"

BYTES = 4 * 4
"""Of a parameter in float32, its gradient and Adam's two moments."""

INTRODUCTION = """# Benchmark

This page shows what Bayesian layers cost: those of dubito, those of other libraries, and plain layers with two
convolutions. All costs are multiples of the frequentist twin, which is the same network with point estimates.
`make bench` makes the page. It installs the other libraries into their own environment. `dubito bench` measures
dubito's own networks on your machine.

How it is measured:

- Every system runs in its own process. All start from the same network with softplus activations, the same means, the
  same random images and the same number of threads. All keep the memory that they free, as the program `dubito` does
  (`dubito.memory.keep_freed_memory`).
- The processes take turns. A ratio compares times of the same round. Each cell is the median over the rounds, with the
  quartiles in brackets.
- A training step is the forward pass, the system's own KL term, the backward pass and fused Adam.
- A prediction by draws is compared with the same number of passes of the twin. Other libraries make one draw after the
  other. A `dubito.Predictor` is made once and keeps its drawn weights; `dubito.predict` draws them anew in each call.
- Memory is the peak while building the network and making three training steps (or three predictions, for a system
  that only predicts), above that of a process in which everything is imported.
"""

GROWTH = """These networks are stacks of 3x3 convolutions: 4 of them, with 32 channels on 16x16 positions and a batch of
{batch}. Each table changes one of these numbers. The table of draws compares a prediction with the same number of
passes of the twin; the others compare training steps.
"""

ONE_IMAGE = """One image by 100 draws is compared with one pass of the twin on 100 images. Every draw has its own
weights, so 100 products of one image replace one product of 100 images. `python -m benchmarks.one_image` measures two
parts of this (`results/one_image.json`): the time to read the drawn weights once, and the time of passes of a single
image that all have the same weights.
"""

PROFILE = """Milliseconds of one execution, by torch's profiler. The time of an operator does not include operators
that it calls.

- *Convolutions and matrix products*: those of the forward and the backward pass, with everything inside them.
- *Noise*: making random numbers.
- *Weights*: other work on tensors as large as a parameter (standard deviations, drawn weights, sums of gradients, KL).
- *Optimiser*: fused Adam.
- *Activations*: work on all other tensors (softplus, pooling, squares, roots, copies).
- *The rest*: views of tensors, memory, autograd's bookkeeping, and Python code between operators.

The groups add up to the time of an execution with the profiler, which itself takes some microseconds for each operator.
The last row is the time without the profiler.
"""


def page(results: dict[str, Any]) -> str:
    """docs/results/benchmark.md."""
    return f"{INTRODUCTION}\n{tables(results)}\n![How cost grows](benchmark.png)\n"


def with_cost_table(overview: str, results: dict[str, Any]) -> str:
    """The page of results with the table of what AlexNet, or the first network, costs between the two comments."""
    stages = results["stages"]
    stage = stages.get("alexnet") or next(iter(stages.values()))
    return with_table(overview, TABLE_BEGINS, cost_table(stage))


def cost_table(stage: dict[str, Any]) -> str:
    """A row for each system that worked: medians as multiples of the twin's."""
    measures = {"step": 2, "predict": 2, "single": 1}
    heads = ["system", "step", f"{stage['samples']} draws", "1 image, 100 draws", "memory"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for system, by in stage["ratios"].items():
        if system == Frequentist.name or not by.keys() & measures.keys():
            continue
        cells = [f"{by[name]['median']:.{digits}f}" if name in by else NOTHING for name, digits in measures.items()]
        memory = stage["memory"].get(system) if "step" in by else None
        cells.append(NOTHING if memory is None else f"{memory / stage['memory'][Frequentist.name]:.2f}")
        lines.append(f"| `{system}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """results/benchmark.md: everything that was measured."""
    parts = [machine(results["environment"], results.get("quick", False))]
    stages = results["stages"]
    parts += [network(name, stage) for name, stage in stages.items() if name != "growth"]
    parts += [profile(name, stage) for name, stage in stages.items() if "profile" in stage]
    parts.append(growth(stages["growth"], results["growth_batch"]))
    return "\n\n".join(parts) + "\n"


def machine(found: dict[str, Any], quick: bool) -> str:
    commit = (found["commit"] or "an installed package").removesuffix("+changes")[:12]
    changed = " with changes" if (found["commit"] or "").endswith("+changes") else ""
    text = (
        f"dubito {found['dubito']} ({commit}{changed}), torch {found['torch']}, Python {found['python']}; "
        f"{found['processor']}, {found['cores']} cores, {found['threads']} threads, load {found['load_before']} before "
        f"the start; {found['minutes']} minutes."
    )
    return f"**A quick run: these figures mean nothing.** {text}" if quick else text


def network(name: str, stage: dict[str, Any]) -> str:
    """The table of one network."""
    batch, samples = stage["batch"], stage.get("samples")
    columns = {
        "step": f"training step, batch {batch}",
        "predict": f"{batch} images, {samples} draws",
        "single": "1 image, 100 draws",
    }
    measured = {measure for by in stage["ratios"].values() for measure in by}
    columns = {key: title for key, title in columns.items() if key in measured}
    heads = ["system", "version", *columns.values(), "peak memory"]
    lines = [f"## {TITLES.get(name, name)}", "", f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    twin = stage["memory"][Frequentist.name]
    for system, by in stage["ratios"].items():
        if not by.keys() & columns.keys() and system not in stage["failures"]:
            continue
        cells = [cell(by.get(measure), system == Frequentist.name) for measure in columns]
        cells.append(memory_cell(stage["memory"].get(system), twin if "step" in by else None))
        if system in stage["failures"]:
            cells[next((i for i, text in enumerate(cells) if text == NOTHING), 0)] = (
                f"failed: {stage['failures'][system]}".replace("|", "/")
            )
        lines.append(f"| {system} | {stage['versions'][system] or NOTHING} | {' | '.join(cells)} |")
    moments = [by["once"] for system, by in stage["ratios"].items() if system != Frequentist.name and "once" in by]
    for once in moments:
        lines += ["", f"A prediction by moments costs {spread(once)} passes of the twin, whatever the number of draws."]
    if "parameters" in stage:
        state = BYTES * stage["parameters"] / 1e6
        lines += [
            "",
            f"Parameters, gradients and Adam's two moments take {state:.0f} MB of the twin's memory. A network with a "
            f"mean and a standard deviation for each weight needs {2 * state:.0f} MB for them. So even if its "
            f"activations take no more than the twin's, it needs at least {(twin + state) / twin:.2f} times the "
            "twin's memory.",
        ]
    if "single" in columns:
        lines += ["", ONE_IMAGE.rstrip()]
    return "\n".join(lines)


def column(system: str, work: Work) -> str:
    """The name of a profile."""
    if work.task is Task.STEP:
        return f"{system}, step"
    if work.samples == 1:
        return f"{system}, one pass"
    return f"{system}, {work.samples} draws" if work.batch > 1 else f"{system}, 1 image by {work.samples} draws"


def profile(name: str, stage: dict[str, Any]) -> str:
    """Where the time of one network goes."""
    found = stage["profile"].values()
    heads = [f"{TITLES.get(name, name)}, batch {stage['batch']}", *stage["profile"]]
    lines = ["## Where the time goes", "", f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    rows = {group.value: [by["groups"][group.value] if "groups" in by else None for by in found] for group in Group}
    rows["together, with the profiler"] = [sum(by["groups"].values()) if "groups" in by else None for by in found]
    rows["without the profiler"] = [by.get("wall") for by in found]
    for row, times in rows.items():
        lines.append(f"| {row} | {' | '.join(NOTHING if time is None else f'{time:.1f}' for time in times)} |")
    lines += ["", PROFILE.rstrip()]
    for title, by in stage["profile"].items():
        lines += ["", f"{title} failed: {by['failure']}"] if "failure" in by else []
    return "\n".join(lines)


def growth(stage: dict[str, Any], batch: int) -> str:
    """A table for each of draws, batch, width and depth."""
    lines = ["## How cost grows", "", GROWTH.format(batch=batch)]
    for axis, values in axes(stage).items():
        systems = measured_systems(stage, f"{axis}={values[0]}")
        lines += [f"| {axis} | twin | {' | '.join(systems)} |", "| --- " * (2 + len(systems)) + "|"]
        for value in values:
            found = [stage["ratios"][system].get(f"{axis}={value}") for system in (Frequentist.name, *systems)]
            time = milliseconds(found[0]["seconds"])
            lines.append(f"| {value} | {time} | {' | '.join(cell(ratio) for ratio in found[1:])} |")
        lines.append("")
    for system, why in stage["failures"].items():
        lines += [f"{system} failed: {why}", ""]
    return "\n".join(lines).rstrip()


def measured_systems(stage: dict[str, Any], measure: str) -> list[str]:
    """The systems beside the twin that a measure was made of."""
    return [system for system, by in stage["ratios"].items() if system != Frequentist.name and measure in by]


def axes(stage: dict[str, Any]) -> dict[str, list[int]]:
    """The values that were measured of each axis."""
    found: dict[str, list[int]] = {}
    for name in stage["ratios"][Frequentist.name]:
        axis, _, value = name.partition("=")
        found.setdefault(axis, []).append(int(value))
    return found


def cell(ratio: dict[str, float] | None, with_time: bool = False) -> str:
    if ratio is None:
        return NOTHING
    return f"1 ({milliseconds(ratio['seconds'])})" if with_time else spread(ratio)


def memory_cell(megabytes: float | None, twin: float | None) -> str:
    if megabytes is None:
        return NOTHING
    return f"{megabytes:.0f} MB" if twin is None else f"{megabytes / twin:.2f} ({megabytes:.0f} MB)"


def spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
