from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dubito.decisions.binomial import binomial_cdf, images_needed, upper_bound, wilson_bound


@pytest.mark.parametrize("total", [1, 2, 10, 500, 40_000])
def test_the_binomial_distribution_function_is_scipys(total: int) -> None:
    counts = np.unique(np.linspace(0, total, 60).astype(int))
    for share in (1e-6, 0.001, 0.01, 0.3, 0.5, 0.99):
        expected = stats.binom.cdf(counts, total, share)
        np.testing.assert_allclose(binomial_cdf(counts, total, share), expected, rtol=1e-9, atol=1e-13)


def test_the_edges_of_the_distribution_function() -> None:
    assert binomial_cdf([-1, 0, 5, 0, 3], [5, 0, 5, 5, 5], [0.5, 0.5, 0.5, 0.0, 1.0]).tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_upper_bound_is_that_of_clopper_and_pearson(confidence: float) -> None:
    counts, totals = np.array([0, 1, 3, 40, 999, 7]), np.array([1, 50, 300, 4000, 1000, 100_000])
    expected = stats.beta.ppf(confidence, counts + 1, totals - counts)
    np.testing.assert_allclose(upper_bound(counts, totals, confidence), expected, rtol=1e-9)
    for count, total, bound in zip(counts, totals, upper_bound(counts, totals, confidence), strict=True):
        exact = stats.binomtest(int(count), int(total)).proportion_ci(2 * confidence - 1, method="exact").high
        assert bound == pytest.approx(exact, rel=1e-6)


def test_the_bound_without_mistakes_with_nothing_else_and_without_images() -> None:
    assert float(upper_bound(0, 100, 0.95)) == pytest.approx(1 - 0.05**0.01, rel=1e-12)
    assert upper_bound([0, 5], [0, 5], 0.95).tolist() == [1, 1]


def test_the_number_of_images_needed_is_the_smallest_that_does() -> None:
    for target, confidence in ((0.01, 0.95), (0.001, 0.99), (0.2, 0.8)):
        needed = images_needed(target, confidence)
        assert upper_bound(0, needed, confidence) <= target < upper_bound(0, needed - 1, confidence)


def test_the_planning_bound_is_near_the_exact_one() -> None:
    counts, totals = np.array([5, 20, 100]), np.array([500, 2000, 5000])
    np.testing.assert_allclose(wilson_bound(counts, totals, 0.95), upper_bound(counts, totals, 0.95), rtol=0.1)
    assert float(wilson_bound(0, 0, 0.95)) == 1
