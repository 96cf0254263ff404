from __future__ import annotations

import math

import numpy as np
from scipy import stats

from dubito.decisions.thresholds import Part, candidates, keep_error, rank_for_coverage


def test_counts_include_every_tie() -> None:
    part = Part.of(np.array([2.0, 1.0, 1.0, 3.0]), np.array([True, False, True, False]))
    accepted, wrong = part.count(np.array([-math.inf, 0.5, 1.0, 2.0, 2.5, math.inf]))
    assert accepted.tolist() == [0, 0, 2, 3, 3, 4]
    assert wrong.tolist() == [0, 0, 1, 2, 2, 2]


def test_candidates_are_scores_that_occur_each_once_and_end_with_all() -> None:
    scores = np.sort(np.repeat(np.arange(10.0), 100))
    found = candidates(scores)
    assert set(found[:-1]) <= set(scores)
    assert (np.diff(found) > 0).all()
    assert found[-1] == math.inf
    assert candidates(np.zeros(0)).tolist() == [math.inf]


def test_a_flawless_score_is_accepted_up_to_its_first_mistakes() -> None:
    rng = np.random.default_rng(0)
    plan, proof = rng.random(5000), rng.random(10_000)
    promise = keep_error(Part.of(plan, plan > 0.8), Part.of(proof, proof > 0.8), 0.01, 0.95)
    assert promise.kept
    assert promise.bound == 0.01
    assert 0.79 < promise.threshold < 0.8 / 0.99  # an error of 1 % is at 0.808, and the steps are 0.02 wide


def test_what_no_threshold_keeps_has_the_exact_bound_of_the_best_one() -> None:
    rng = np.random.default_rng(0)
    plan, proof = Part.of(rng.random(500), rng.random(500) < 0.3), Part.of(rng.random(900), rng.random(900) < 0.3)
    promise = keep_error(plan, proof, 0.01, 0.95)
    accepted, wrong = proof.count(np.array([promise.threshold]))
    assert not promise.kept
    assert promise.bound is not None
    np.testing.assert_allclose(promise.bound, stats.beta.ppf(0.95, wrong + 1, accepted - wrong), rtol=1e-9)


def test_the_rank_for_a_coverage_is_the_smallest_that_does() -> None:
    for images, coverage in ((100, 0.5), (1000, 0.9), (400, 0.99)):
        rank = rank_for_coverage(images, coverage, 0.95)
        assert rank is not None
        # The share below the j-th of n scores has the distribution Beta(j, n + 1 - j).
        below = [stats.beta.cdf(coverage, j, images + 1 - j) for j in (rank, rank - 1)]
        assert below[0] <= 0.05 < below[1]
