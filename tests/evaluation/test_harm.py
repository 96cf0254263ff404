"""Whether a change made a network worse: exact levels, and how often the rule errs."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from dubito.evaluation.harm import LEVEL, harm, largest_harmless


def probabilities(right: torch.Tensor, confidence: float = 0.8) -> torch.Tensor:
    """Of two classes, the first being true, for images that are recognised or not."""
    first = torch.where(right, confidence, 1 - confidence)
    return torch.stack([first, 1 - first], 1)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (3, 0), (8, 1), (12, 12), (5, 20)])
def test_the_level_is_that_of_the_exact_sign_test(lost: int, won: int) -> None:
    before = torch.tensor([True] * lost + [False] * won + [True] * 40)
    after = torch.tensor([False] * lost + [True] * won + [True] * 40)
    found = harm(probabilities(before), probabilities(after), torch.zeros(len(before), dtype=torch.long))
    expected = stats.binomtest(lost, lost + won, alternative="greater").pvalue if lost + won else 1.0
    assert found.fall_level == pytest.approx(expected, rel=1e-12)
    assert found.fall == pytest.approx((lost - won) / len(before))


def test_the_nll_is_judged_by_the_differences_image_by_image() -> None:
    generator = torch.Generator().manual_seed(0)
    before, after = torch.rand((2, 200, 3), generator=generator, dtype=torch.float64).softmax(-1)
    labels = torch.randint(3, (200,), generator=generator)
    found = harm(before, after, labels)
    rows = torch.arange(200)
    differences = before[rows, labels].log() - after[rows, labels].log()
    assert found.rise == pytest.approx(float(differences.mean()))
    # The normal distribution for Student's with 199 degrees of freedom: the same to two digits.
    expected = stats.ttest_1samp(differences.numpy(), 0, alternative="greater").pvalue
    assert found.rise_level == pytest.approx(expected, abs=2e-3)


def test_small_changes_are_no_harm_however_sure_they_are() -> None:
    """80 of 10,000 images are lost, which is sure, but below a percentage point."""
    right = torch.ones(10_000, dtype=torch.bool)
    still = right.clone()
    still[:80] = False
    labels = torch.zeros(10_000, dtype=torch.long)
    found = harm(probabilities(right), probabilities(still, 0.8), labels)
    assert found.fall_level < 1e-20
    assert not found.is_harmful
    still[:200] = False
    assert harm(probabilities(right), probabilities(still), labels).is_harmful


def test_large_changes_of_few_images_may_be_chance() -> None:
    """Three of 20 images lost and none won: 15 points, but one time in eight by chance."""
    right = torch.ones(20, dtype=torch.bool)
    still = right.clone()
    still[:3] = False
    found = harm(probabilities(right, 0.51), probabilities(still, 0.51), torch.zeros(20, dtype=torch.long))
    assert found.fall == pytest.approx(0.15)
    assert found.fall_level == 1 / 8
    assert not found.is_harmful


def test_an_equally_good_network_is_called_harmful_once_in_20_times_at_most() -> None:
    """Both networks are right with probability 0.8, and independently as sure: 2,000 trials of 200 images."""
    generator = torch.Generator().manual_seed(1)
    labels, alarms, trials = torch.zeros(200, dtype=torch.long), 0, 2000
    for _ in range(trials):
        before, after = (probabilities(torch.rand(200, generator=generator) < 0.8, 0.7) for _ in range(2))
        alarms += harm(before, after, labels).is_harmful
    most = 2 * LEVEL
    assert alarms / trials < most + 5 * (most * (1 - most) / trials) ** 0.5


def test_the_largest_harmless_level_is_found_wherever_it_is() -> None:
    levels = [level / 20 for level in range(1, 20)]
    for truth in range(len(levels) + 1):
        asked: list[float] = []

        def is_harmful(level: float, truth: int = truth, asked: list[float] = asked) -> bool:
            asked.append(level)
            return levels.index(level) >= truth

        assert largest_harmless(levels, is_harmful) == (levels[truth - 1] if truth else None)
        assert len(asked) <= 5
