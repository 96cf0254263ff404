"""The page on estimators and predictions is that of the files in results/choosing."""

from __future__ import annotations

import copy

from benchmarks import choosing


def test_the_page_shows_these_results() -> None:
    assert choosing.PAGE.read_text(encoding="utf-8") == choosing.page(choosing.read())


def test_its_sentences_follow_the_numbers() -> None:
    results = choosing.read()
    changed = copy.deepcopy(results)
    for row in changed["moments_training"]["rows"]:
        row["nll"] = 0.0 if row["objective"] == "moments" else 1.0
    assert "it pays" in choosing.page(changed)
    for row in changed["moments_training"]["rows"]:
        row["nll"] = 1.0 - row["nll"]
    assert "it does not pay" in choosing.page(changed)
    for result in changed["compiled"]:
        result["rows"]["local, compiled"]["milliseconds"] = 2 * result["rows"]["local"]["milliseconds"]
    assert "becomes 2.00 times as slow" in choosing.page(changed)
    for result in changed["moments"]:
        for row in result["rows"]:
            if row["prediction"] == "moments":
                row["probabilities, mean abs. difference"] = 1.0
    assert "than 100 draws do in 0 of" in choosing.page(changed)
