"""What review buys, counted by hand and against the beta distribution of SciPy."""

import pytest
import torch
from scipy.stats import beta

from dubito.evaluation.decisions import Reviewed, review
from dubito.evaluation.metrics import risk_at, risk_coverage


def test_rows_are_the_risk_coverage_curve_at_their_shares():
    generator = torch.Generator().manual_seed(0)
    doubt = torch.rand(1000, generator=generator)
    wrong = torch.rand(1000, generator=generator) < doubt / 4
    rows = review(doubt, wrong)
    assert rows[0] == Reviewed(0.0, 1000, int(wrong.sum()))
    shares = torch.tensor([1 - row.share for row in rows], dtype=torch.float64)
    expected = risk_at(risk_coverage(doubt, wrong), shares)
    assert [row.error for row in rows] == pytest.approx(expected.tolist())
    assert rows[-1].left == 500


def test_at_least_one_image_is_left():
    (row,) = review(torch.tensor([0.2, 0.1]), torch.tensor([True, False]), (1.0,))
    assert (row.left, row.mistakes) == (1, 0)


@pytest.mark.parametrize(("mistakes", "left"), [(0, 90), (1, 90), (42, 359), (90, 90)])
def test_intervals_are_those_of_clopper_and_pearson(mistakes, left):
    low, high = Reviewed(0.1, left, mistakes).interval()
    assert low == pytest.approx(beta.ppf(0.025, mistakes, left - mistakes + 1) if mistakes else 0, abs=1e-9)
    assert high == pytest.approx(beta.ppf(0.975, mistakes + 1, left - mistakes) if mistakes < left else 1, abs=1e-9)
