"""docs/explanation/choosing.md: which estimator to train with and how to predict, from what other scripts measured.

    python benchmarks/gradient_noise.py RUN [RUN ...] --out results/choosing/gradient_noise.json
    python benchmarks/moments.py RUN [RUN ...] --out results/choosing/moments.json
    python benchmarks/moments_training.py --out results/choosing/moments_training.json
    python benchmarks/compiled.py --out results/choosing/compiled.json
    python -m benchmarks.choosing

Every number of the page comes from these files; the sentences around them are chosen by what the numbers say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import compiled, gradient_noise, moments, moments_training

from dubito.files import write_atomically

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "choosing"
PAGE = ROOT / "docs" / "explanation" / "choosing.md"


def main() -> None:
    write_atomically(PAGE, page(read()))


def read() -> dict[str, Any]:
    """The results by the name of their script."""
    names = ("gradient_noise", "moments", "moments_training", "compiled")
    return {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names}


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    return f"""# Which estimator, which prediction?

[The benchmark](../results/benchmark.md) says what a training step or a prediction costs. This page says what you get
for it, with networks trained by `dubito train`. `python -m benchmarks.choosing` makes the page from the files in
`results/choosing`; the first lines of that program say how they were measured.

In short: train with `local`, the default, and predict by draws of the weights, also the default.

## Training: how noisy the gradients are

{tables(gradient_noise, results["gradient_noise"])}

How to read the table:

- *Noise* is how much the gradient of the likelihood varies from draw to draw on the same batch (the trace of its
  covariance), as a multiple of the noise of `local`. It is the median over the batches; the lowest and the highest
  are in brackets.
- *Time* is that of a forward and a backward pass, as a multiple of the time of `local`.
- *Noise x time* compares estimators that are given the same time: it is the noise of the means that is left after
  averaging for that long.

{training(results["gradient_noise"])}

## Prediction: draws or moments

{tables(moments, results["moments"])}

How to read the rows:

- The reference, and the rows *draws*, draw activations (`method="local"`): every output is drawn on its own, as in
  training with `local`.
- The rows *of weights* draw the weights (`method="weights"`, the default). All positions of a convolution then share
  one draw, as the posterior says.
- The row *half of* compares two halves of the reference with each other. It shows how much chance is in the
  reference.

{prediction(results["moments"])}

## Training by moments

{moments_training.markdown(results["moments_training"])}

Instead of drawing, training can pass means and variances through the network. The loss then has no sampling noise,
but a step costs more. {objective(results["moments_training"])}

## torch.compile

{tables(compiled, results["compiled"])}

{compiling(results["compiled"])}
"""


def tables(script: Any, results: list[dict[str, Any]]) -> str:
    return "\n\n".join(map(script.markdown, results))


def training(results: list[dict[str, Any]]) -> str:
    """Which estimator has the least noise, and which the least noise in a given time."""
    deviations = [result["rows"]["weight, 1 draw"]["noise_of_deviations"][0] for result in results]
    best = {}
    for result in results:
        rows = result["rows"]
        best[result["run"]] = min(rows, key=lambda name: rows[name]["noise_of_means"][0] * rows[name]["time"])
    winners = "; ".join(f"{run}: `{name}`" for run, name in best.items())
    return (
        f"One draw of the weights for the whole batch has {numbers(deviations)} times the noise of `local` in the "
        "gradients of the standard deviations, so learn these with `local`, the default. If only the means matter, "
        f"the estimator with the least noise in a given time is ({winners})."
    )


def prediction(results: list[dict[str, Any]]) -> str:
    """How close moments come to draws of either kind."""
    closer, ranks, ratios, weights = [], [], [], []
    for result in results:
        by = {(row["images"], row["prediction"]): row for row in result["rows"]}
        for images, name in by:
            if name != "moments":
                continue
            found, hundred, drawn = (by[images, other] for other in (name, "100 draws", "100 of weights"))
            closer.append(found[moments.COLUMNS[0]] <= hundred[moments.COLUMNS[0]])
            ratios.append(found[moments.COLUMNS[2]])
            ranks.append(found[moments.COLUMNS[3]])
            weights.append(drawn[moments.COLUMNS[2]])
    nearer = "in every case" if all(closer) else f"in {sum(closer)} of {len(closer)} cases"
    return (
        f"Moments come closer to the mean probabilities than 100 draws do {nearer}. They order images by epistemic "
        f"uncertainty as draws do (Spearman correlation at least {min(ranks):.4f}) and find {numbers(ratios)} times as "
        f"much of it. Draws of the weights find {numbers(weights)} times as much as the reference. They are draws of "
        "the posterior itself, while `local` and `moments` treat the positions of a convolution as independent. So "
        "compare images by one method only."
    )


def objective(result: dict[str, Any]) -> str:
    """Whether it paid."""
    rows = {(row["seed"], row["objective"]): row for row in result["rows"]}
    seeds = sorted({seed for seed, _ in rows})
    costs = [rows[seed, "moments"]["milliseconds"] / rows[seed, "local"]["milliseconds"] for seed in seeds]
    won = sum(rows[seed, "moments"]["nll"] < rows[seed, "local"]["nll"] for seed in seeds)
    verdict = "it pays" if won == len(seeds) else "it does not pay" if won == 0 else "it makes no clear difference"
    return (
        f"Here a step costs {numbers(costs)} times as much. In the same time, moments reached the lower validation NLL "
        f"for {won} of {len(seeds)} seeds: {verdict}. `dubito train` does not offer it."
    )


def compiling(results: list[dict[str, Any]]) -> str:
    """Whether it pays, network by network."""
    parts = []
    for result in results:
        rows = result["rows"]
        gain = rows["local"]["milliseconds"] / rows["local, compiled"]["milliseconds"]
        said = f"{gain:.2f} times as fast" if gain >= 1 else f"{1 / gain:.2f} times as slow"
        parts.append(f"{result['network']} becomes {said}")
    return f"Bayesian layers compile without graph breaks. On this machine {', and '.join(parts)}."


def numbers(values: list[float]) -> str:
    """One number, or from the lowest to the highest.

    >>> numbers([1.04, 38.2, 2])
    '1 to 38.2'
    """
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
