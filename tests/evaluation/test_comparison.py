"""Comparing evaluations: paired differences, the best value, and the figure."""

import json
import math
from dataclasses import replace

import pytest
import torch

import dubito
from dubito.errors import OptionError
from dubito.evaluation import Evaluated, Evaluation, compare
from dubito.evaluation.comparison import COMPARED, figure
from dubito.training import Run

LABELS = torch.randint(4, (600,), generator=torch.Generator().manual_seed(0))


def made(
    run: Run, skill: float, seed: int, labels: torch.Tensor = LABELS, name: str = "made/test", keep: bool = False
) -> Evaluation:
    """An evaluation whose probabilities favour the truth by `skill`; the same seed gives the same hard images."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, len(labels), 4, generator=generator) / 3 + torch.randn(len(labels), 4, generator=generator)
    if keep:  # what a draw does to all images alike
        logits += torch.randn(3, 1, 4, generator=generator) / 3
    logits += skill * torch.nn.functional.one_hot(labels, 4)
    images = torch.zeros(len(labels), 1, 32, 32, dtype=torch.uint8)
    draws = logits.softmax(2)
    part = Evaluated(name, images, labels, dubito.decompose(draws), draws if keep else None, (3,))
    return Evaluation((run,), tuple("abcd"), part, part, {}, (), {"settings": {"seed": seed}})


def test_the_best_value_and_the_sign_of_differences(bayesian: Run):
    found = compare([made(bayesian, 1.5, 1), made(bayesian, 2.5, 1)], ["weak", "strong"], bootstrap=200)
    assert found.names == ("weak", "strong")
    assert (found.data, found.images) == ("made/test", 600)
    for metric in ("accuracy", "nll", "brier", "errors/entropy/aurc"):
        row = found[metric]
        assert row.best == 1
        assert row.differences[0] == 0
        assert row.differences[1] == row.values[1] - row.values[0]
        assert row.differs(1)
        assert not row.differs(0)
        low, high = row.difference_intervals[1]
        assert low <= row.differences[1] <= high
    assert found["epistemic"].best is None
    assert "top5_accuracy" not in {row.metric for row in found.rows}
    assert {row.metric for row in found.rows} <= COMPARED.keys()


def test_equal_evaluations_differ_by_exactly_nothing(bayesian: Run):
    found = compare([made(bayesian, 1.5, 1), made(bayesian, 1.5, 1)], ["a", "b"], bootstrap=50)
    for row in found.rows:
        assert row.differences == (0.0, 0.0)
        assert row.difference_intervals[1] == (0.0, 0.0)
        assert not row.differs(1)


def test_paired_intervals_are_those_of_normal_theory_for_the_paired_difference(bayesian: Run):
    first, second = made(bayesian, 1.5, 1), made(bayesian, 1.8, 1)
    row = compare([first, second], ["a", "b"], bootstrap=4000)["accuracy"]
    right = [(e.test.prediction.label == LABELS).double() for e in (first, second)]
    paired = float((right[1] - right[0]).std(unbiased=False)) / math.sqrt(600)
    unpaired = math.sqrt(sum(float(r.var(unbiased=False)) for r in right) / 600)
    low, high = row.difference_intervals[1]
    # 6 standard errors of the quantiles of 4,000 replicates, and the steps of 1/600 in which accuracy moves.
    assert (high - low) / 2 == pytest.approx(1.96 * paired, abs=0.25 * paired + 1 / 600)
    assert paired < unpaired / 2


def test_kept_draws_widen_the_intervals_of_differences(bayesian: Run):
    pair = [made(bayesian, 1.5, seed, keep=True) for seed in (1, 2)]
    forgotten = [replace(each, test=replace(each.test, draws=None)) for each in pair]
    kept, images = (compare(each, ["a", "b"], bootstrap=200) for each in (pair, forgotten))
    for row, alone in zip(kept.rows, images.rows, strict=True):
        assert row.values == alone.values
        (low, high), (inner_low, inner_high) = row.difference_intervals[1], alone.difference_intervals[1]
        assert low <= inner_low <= inner_high <= high
    (low, high), (inner_low, inner_high) = (found["epistemic"].difference_intervals[1] for found in (kept, images))
    assert high - low > inner_high - inner_low


def test_different_images_cannot_be_compared(bayesian: Run):
    one = made(bayesian, 1.5, 1)
    for two in (made(bayesian, 1.5, 1, name="other/test"), made(bayesian, 1.5, 1, labels=LABELS[:100])):
        with pytest.raises(OptionError, match="same images"):
            compare([one, two], ["a", "b"])
    with pytest.raises(OptionError, match="at least 2"):
        compare([one])
    with pytest.raises(OptionError, match="names"):
        compare([one, one], ["a"])


def test_names_are_those_of_the_folders_and_distinct(bayesian: Run, frequentist: Run):
    found = compare([made(bayesian, 1.5, 1), made(frequentist, 1.5, 2)], bootstrap=10)
    assert found.names == ("bayesian", "frequentist")
    twice = compare([made(bayesian, 1.5, 1), made(bayesian, 1.5, 2)], bootstrap=10)
    assert len(set(twice.names)) == 2


def test_it_is_plain_json_and_a_figure(bayesian: Run):
    found = compare([made(bayesian, 1.5, 1), made(bayesian, 2.5, 1)], ["weak", "strong"], bootstrap=20)
    content = found.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["metrics"]["nll"]["best"] == "strong"
    drawn = figure(found)
    assert [axes.get_title() for axes in drawn.axes] == ["accuracy", "NLL", "ECE", "AURC"]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["weak", "strong"]
