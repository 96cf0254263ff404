"""The benchmark of rules does what `dubito.decisions.fit` does, division by division."""

from __future__ import annotations

import numpy as np
from benchmarks.decisions import Predicted, divide, markdown, row

from dubito import decisions
from dubito.errors import TargetError


def images(count: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    doubt = rng.random(count) / 2
    probs = np.stack([1 - doubt, doubt], 1)
    return probs, (rng.random(count) < doubt**3 * 2).astype(int)


def test_a_division_is_a_fitted_rule() -> None:
    probs, labels = images()
    known = Predicted({"confidence": probs[:, 1]}, labels == 1, 600)
    found = divide(known, known.scores, 0.03, 0.9, 5, shown=False)
    for seed, one in enumerate(found):
        own = np.random.default_rng(seed).permutation(len(labels))[:600]
        try:
            rule = decisions.fit(probs[own], labels[own], max_error=0.03, confidence=0.9, score="confidence")
        except TargetError:
            assert not one.promised
            continue
        accepted = rule(probs) == "accept"
        assert one.promised
        assert one.error == labels[accepted].mean()
        unseen = np.setdiff1d(np.arange(len(labels)), own)
        assert one.coverage == accepted[unseen].mean()
        assert one.unseen_error == labels[unseen][accepted[unseen]].mean()


def test_the_table_has_a_row_for_each_target() -> None:
    probs, labels = images()
    known = Predicted(
        {"confidence": probs[:, 1], "noise": np.random.default_rng(1).random(len(labels))}, labels == 1, 600
    )
    rows = [row(known, known, target, 0.9, 20, shown=False) for target in (0.03, 0.05)]
    assert all(one["best"] == "confidence" for one in rows)
    assert rows[0]["coverage"] < rows[1]["coverage"]
    assert rows[0]["twin_coverage"] == rows[0]["coverage"]
    results = {"run": "a", "twin": "b", "images": 1500, "calibration": 600, "error": 0.1, "resplits": 20}
    lines = markdown({**results, "confidence": 0.9, "rows": rows}).splitlines()
    assert [line.count("|") for line in lines[2:]] == [11] * 4
