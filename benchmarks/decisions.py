"""Whether rules keep their promise on real predictions: validation and test images are split again a thousand times.

    python -m benchmarks.decisions runs/mnist runs/mnist-frequentist --resplits 1000 --out results/decisions/mnist

The predictions of a run's validation and test images are put together and divided at random, as many into a
calibration set as the run has validation images. Each time a rule is fitted to that set, with the method of
`dubito.decisions.fit`, and the error among the images that it accepts is measured: among all images, which is what the
promise is about, and among those that the rule has not seen, whose own sampling error comes on top. The promise is
kept if the first exceeds the target in at most 5 % of the divisions (at a confidence of 95 %).

Beside it stands how many images the rule accepts; how many a rule with the best single score would have accepted, known
only in hindsight; and the same for the run's frequentist twin, if it is given. A division in which nothing can be
promised accepts nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dubito.decisions.fitting import planning_images
from dubito.decisions.goals import Images, MaxError
from dubito.decisions.scores import scores
from dubito.evaluation.decisions import open_test, predict_test
from dubito.evaluation.validation import validation_of
from dubito.files import write_atomically
from dubito.prediction import Prediction
from dubito.progress import track
from dubito.runs.run import Run

Floats = NDArray[np.float64]


class Predicted(NamedTuple):
    """Scores and mistakes of all images of a run, and how many of them calibrate."""

    scores: Mapping[str, Floats]
    wrong: NDArray[np.bool_]
    calibration: int


class Division(NamedTuple):
    """What became of one division: the score, coverage, and both errors (0 without a promise)."""

    score: str
    promised: bool
    coverage: float
    error: float
    unseen_error: float


def main() -> None:
    options = _options()
    runs = [Run.open(options.run)] + ([Run.open(options.twin)] if options.twin else [])
    own, *twin = [predicted(run) for run in runs]
    results: dict[str, Any] = {
        "run": _name(runs[0]),
        "twin": _name(runs[1]) if twin else None,
        "images": len(own.wrong),
        "calibration": own.calibration,
        "error": float(own.wrong.mean()),
        "twin_error": float(twin[0].wrong.mean()) if twin else None,
        "resplits": options.resplits,
        "confidence": options.confidence,
        "rows": [
            row(own, twin[0] if twin else None, target, options.confidence, options.resplits)
            for target in options.max_error
        ],
    }
    table = markdown(results)
    if options.out:
        write_atomically(options.out.with_suffix(".json"), json.dumps(results, indent=1, allow_nan=False) + "\n")
        write_atomically(options.out.with_suffix(".md"), table + "\n")
    print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("twin", type=Path, nargs="?", help="run folder of its frequentist twin")
    parser.add_argument("--resplits", type=int, default=1000)
    parser.add_argument("--max-error", type=float, nargs="+", default=[0.01, 0.02, 0.05], help="targets")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--out", type=Path, help="also write OUT.json and OUT.md")
    return parser.parse_args()


def _name(run: Run) -> str:
    return f"{run.config.inference} {run.config.model} on {run.data.name}"


def predicted(run: Run) -> Predicted:
    """The run's validation images, and then its test images."""
    validation = validation_of(run, progress=True)
    test = predict_test(run, open_test(run), samples=validation.calibration.samples, progress=True)
    parts = [(validation.prediction, validation.labels), test]
    found = [scores(prediction) for prediction, _ in parts]
    names = [name for name in found[0] if all(name in one for one in found)]
    wrong = np.concatenate([_wrong(*part) for part in parts])
    return Predicted({name: np.concatenate([one[name] for one in found]) for name in names}, wrong, len(validation))


def _wrong(prediction: Prediction, labels: Any) -> NDArray[np.bool_]:
    return (prediction.label != labels).cpu().numpy()


def row(
    own: Predicted, twin: Predicted | None, target: float, confidence: float, resplits: int, shown: bool = True
) -> dict[str, Any]:
    """Everything about one target."""
    chosen = divide(own, own.scores, target, confidence, resplits, shown)
    single = {
        name: divide(own, {name: values}, target, confidence, resplits, shown) for name, values in own.scores.items()
    }
    best = max(single, key=lambda name: _mean(single[name], "coverage"))
    above = _mean_of([one.error > target for one in chosen])
    return {
        "target": target,
        "promised": _mean(chosen, "promised"),
        "coverage": _mean(chosen, "coverage"),
        "error": _mean([one for one in chosen if one.promised], "error"),
        "above": above,
        "allowed": 1 - confidence + 3 * math.sqrt(confidence * (1 - confidence) / resplits),
        "above_unseen": _mean_of([one.unseen_error > target for one in chosen]),
        "chosen": {name: sum(one.score == name for one in chosen) for name in own.scores},
        "single": {name: _mean(found, "coverage") for name, found in single.items()},
        "best": best,
        "best_coverage": _mean(single[best], "coverage"),
        "twin_coverage": None
        if twin is None
        else _mean(divide(twin, twin.scores, target, confidence, resplits, shown), "coverage"),
    }


def divide(
    images: Predicted, by: Mapping[str, Floats], target: float, confidence: float, resplits: int, shown: bool = True
) -> list[Division]:
    """A rule for each of many divisions, and its errors."""
    goal = MaxError(target, confidence)
    ordered = {name: np.argsort(values, kind="stable") for name, values in by.items()}
    mistakes = {name: np.cumsum(images.wrong[order]) for name, order in ordered.items()}
    ascending = {name: by[name][order] for name, order in ordered.items()}
    planning = planning_images(images.calibration, 0)
    size = images.calibration
    found = []
    for seed in track(range(resplits), f"At most {target:g}", shown=shown):
        own = np.random.default_rng(seed).permutation(len(images.wrong))[:size]
        given = Images(images.wrong[own], planning, np.ones(size, bool), np.zeros(size, np.int64), 1)
        name, (promise,) = goal.choose(given, {key: values[own] for key, values in by.items()})
        if not promise.kept:
            found.append(Division(name, False, 0.0, 0.0, 0.0))
            continue
        accepted = int(np.searchsorted(ascending[name], promise.threshold, side="right"))
        wrong = int(mistakes[name][accepted - 1])
        seen = by[name][own] <= promise.threshold
        unseen, unseen_wrong = accepted - int(seen.sum()), wrong - int((seen & images.wrong[own]).sum())
        coverage = unseen / (len(images.wrong) - size)
        found.append(Division(name, True, coverage, wrong / accepted, unseen_wrong / max(unseen, 1)))
    return found


def _mean(divisions: Sequence[Division], name: str) -> float:
    return _mean_of([getattr(one, name) for one in divisions])


def _mean_of(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def markdown(results: dict[str, Any]) -> str:
    """The results as a table."""
    percent = "{:.1f}".format
    twin = results["twin"] is not None
    lines = [
        f"{results['run']}: {results['images']:,} images, of which {results['calibration']:,} calibrate; "
        f"{100 * results['error']:.2f} % are wrong. {results['resplits']:,} divisions, confidence "
        f"{100 * results['confidence']:g} %. All numbers are percentages of divisions or of images.",
        "",
        "| target | promised | above target | allowed | above, unseen | mean error | coverage | best score | its "
        "coverage |" + (" twin's coverage |" if twin else ""),
        "| --- " * (9 + twin) + "|",
    ]
    for one in results["rows"]:
        cells = [f"{100 * one['target']:g}"]
        cells += [percent(100 * one[name]) for name in ("promised", "above", "allowed", "above_unseen")]
        cells += [f"{100 * one['error']:.2f}", percent(100 * one["coverage"])]
        cells += [one["best"].replace("_", " "), percent(100 * one["best_coverage"])]
        cells += [percent(100 * one["twin_coverage"])] if twin else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
