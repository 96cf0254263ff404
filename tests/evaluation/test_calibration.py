"""Temperature scaling and conformal sets: exact small cases, and the requested coverage in simulations."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from dubito.errors import OptionError, ShapeError
from dubito.evaluation import metrics
from dubito.evaluation.calibration import (
    Conformal,
    conformal_quantile,
    fit_temperature,
    set_metrics,
    suitable_coverage,
    temper,
)


def simulated(count: int, classes: int = 6, sharpness: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and labels drawn from them before they were raised to `sharpness`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (sharpness * logits).softmax(1), labels


def test_tempering_is_a_power_renormalised():
    probs, _ = simulated(20)
    power = probs ** (1 / 1.7)
    torch.testing.assert_close(temper(probs, 1.7), power / power.sum(1, keepdim=True))
    torch.testing.assert_close(temper(probs, 1.0), probs)
    assert torch.equal(temper(probs, 3.0).argmax(1), probs.argmax(1))
    assert bool(temper(torch.tensor([[1.0, 0.0]]), 0.5).isfinite().all())


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_the_temperature_is_that_of_lowest_nll(sharpness):
    probs, labels = simulated(400, sharpness=sharpness)
    found = fit_temperature(probs, labels)
    reference = minimize_scalar(
        lambda log: metrics.nll(temper(probs, math.exp(log)), labels), bounds=(-3, 3), options={"xatol": 1e-10}
    )
    assert found == pytest.approx(math.exp(reference.x), rel=1e-5)


def test_the_temperature_undoes_sharpening():
    probs, labels = simulated(20000, sharpness=2.0)
    # The fitted temperature of 20,000 images is within 2 % of the true one, several standard errors.
    assert fit_temperature(probs, labels) == pytest.approx(2.0, rel=0.05)
    after = metrics.calibration_error(temper(probs, fit_temperature(probs, labels)), labels)
    assert after < metrics.calibration_error(probs, labels) / 3


def test_without_mistakes_the_temperature_stays_1_and_with_nothing_but_mistakes_it_is_the_highest():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert fit_temperature(probs, torch.tensor([0, 1])) == 1.0  # nothing is wrong, so nothing is learned
    assert fit_temperature(probs, torch.tensor([1, 0])) == pytest.approx(100.0)


def test_the_quantile_has_the_finite_sample_rank():
    scores = torch.arange(1.0, 20.0)  # 19 scores: rank ceil(20 * 0.9) = 18
    assert conformal_quantile(scores, 0.9) == 18
    assert conformal_quantile(scores, 0.95) == 19
    assert conformal_quantile(scores, 0.96) == math.inf
    assert conformal_quantile(scores[:0], 0.9) == math.inf
    assert conformal_quantile(torch.arange(1.0, 11.0), 0.5) == 6  # ceil(11 * 0.5)


PROBS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.35, 0.4]])
LABELS = torch.tensor([1, 1, 0])


def test_lac_by_hand():
    """Scores 1 - p of the truth: 0.7, 0.2, 0.75; rank ceil(4 * 0.5) = 2 gives 0.7, so classes with p >= 0.3."""
    fitted = Conformal.fit(PROBS.double(), LABELS, 0.5, "lac")
    assert fitted.threshold == pytest.approx(0.7)
    expected = [[True, True, False], [False, True, False], [False, True, True]]
    assert fitted.sets(PROBS.double()).tolist() == expected
    assert not fitted.is_randomized


def test_aps_by_hand():
    """Without randomisation, the probability above the truth: 0.5, 0, 0.75; rank 2 gives 0.5."""
    fitted = Conformal.fit(PROBS.double(), LABELS, 0.5, "aps", randomized=False)
    assert fitted.threshold == pytest.approx(0.5)
    others = torch.tensor([[0.45, 0.35, 0.2], [0.1, 0.85, 0.05]], dtype=torch.float64)
    assert fitted.sets(others).tolist() == [[True, True, False], [False, True, False]]


def test_randomised_aps_takes_a_share_of_the_class_itself():
    fitted = Conformal.fit(PROBS.double(), LABELS, 0.5, "aps", seed=3)
    share = torch.rand(3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).squeeze(1)
    above, own = torch.tensor([0.5, 0.0, 0.75], dtype=torch.float64), torch.tensor([0.3, 0.8, 0.25])
    assert fitted.threshold == pytest.approx(float((above + share * own).sort().values[1]))
    assert fitted.is_randomized


def test_too_few_images_give_sets_of_all_classes():
    sets = Conformal.fit(PROBS, LABELS, 0.9).sets(PROBS)
    assert bool(sets.all())


def test_aps_without_randomisation_is_never_empty():
    probs, labels = simulated(500, sharpness=4)
    sets = Conformal.fit(probs, labels, 0.6, "aps", randomized=False).sets(simulated(500, seed=1)[0])
    assert int(sets.sum(1).min()) >= 1


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_reach_the_requested_coverage_however_overconfident_the_network(method, coverage, sharpness):
    """Exchangeable images, 300 repetitions of 199 for calibration and 100 for testing.

    The coverage given the calibration images is Beta(k, n + 1 - k) with k = (n + 1) * coverage, so that its mean is
    `coverage` exactly; the standard error of the mean over repetitions adds the variance of 100 test images. 5 of them.
    """
    n, tested, repetitions = 199, 100, 300
    probs, labels = simulated(repetitions * (n + tested), sharpness=sharpness, seed=7)
    covered = []
    for part, truth in zip(probs.split(n + tested), labels.split(n + tested), strict=True):
        fitted = Conformal.fit(part[:n], truth[:n], coverage, method, seed=len(covered))
        covered.append(set_metrics(fitted.sets(part[n:]), truth[n:])["coverage"])
    variance = coverage * (1 - coverage) * (1 / (n + 2) + 1 / tested)
    error = math.sqrt(variance / repetitions)
    assert sum(covered) / repetitions == pytest.approx(coverage, abs=5 * error)


def test_aps_without_randomisation_covers_at_least_what_was_asked_for():
    probs, labels = simulated(4000, seed=3)
    fitted = Conformal.fit(probs[:2000], labels[:2000], 0.8, "aps", randomized=False)
    error = math.sqrt(0.8 * 0.2 / 1000)
    assert set_metrics(fitted.sets(probs[2000:]), labels[2000:])["coverage"] > 0.8 - 5 * error


def test_set_metrics_by_hand():
    sets = torch.tensor([[True, True, False], [False, True, False], [False, False, False], [True, True, True]])
    found = set_metrics(sets, torch.tensor([0, 0, 1, 1]))
    assert found["coverage"] == 0.5
    assert found["mean_size"] == 1.5
    assert found["empty"] == 0.25
    assert found["class_coverage"][:2] == [0.5, 0.5]
    assert found["class_size"][:2] == [1.5, 1.5]
    assert math.isnan(found["class_coverage"][2])


def test_wrong_options_are_refused():
    for call in (
        lambda: Conformal.fit(PROBS, LABELS, 1.0),
        lambda: Conformal.fit(PROBS, LABELS, 0.9, "magic"),
        lambda: temper(PROBS, 0.0),
    ):
        with pytest.raises(OptionError):
            call()
    with pytest.raises(ShapeError):
        set_metrics(torch.ones(2, 2), torch.tensor([0, 1]))


def networks_draw(count: int, accuracy: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of ten classes, and labels drawn from them: a network that is right about so often."""
    sharpness = {0.986: 75.0, 0.7: 3.5}[accuracy]
    probs = torch.softmax(sharpness * torch.randn(count, 10, generator=generator, dtype=torch.float64), 1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("accuracy", [0.986, 0.7])
def test_the_suitable_coverage_holds_and_leaves_few_sets_empty(accuracy: float):
    """Over 40 simulations of 1,000 calibration and 2,000 test images, within 5 standard errors of their mean."""
    generator = torch.Generator().manual_seed(0)
    gaps, empty, empty_at_90, right = [], [], [], []
    for _ in range(40):
        probs, labels = networks_draw(3000, accuracy, generator)
        mistakes = int((probs[:1000].argmax(1) != labels[:1000]).sum())
        right.append(1 - mistakes / 1000)
        coverage = suitable_coverage(mistakes, 1000)
        assert coverage > 1 - mistakes / 1000
        found = {}
        for wanted in (coverage, 0.9):
            sets = Conformal.fit(probs[:1000], labels[:1000], wanted, "lac").sets(probs[1000:])
            found[wanted] = set_metrics(sets, labels[1000:])
        gaps.append(found[coverage]["coverage"] - coverage)
        empty.append(found[coverage]["empty"])
        empty_at_90.append(found[0.9]["empty"])
    assert sum(right) / 40 == pytest.approx(accuracy, abs=0.03)
    gap = torch.tensor(gaps)
    assert float(gap.mean()) > -5 * float(gap.std()) / math.sqrt(len(gaps))
    assert float(gap.mean()) < 0.01
    assert sum(empty) / 40 < 0.01
    if accuracy > 0.9:
        assert sum(empty_at_90) / 40 > 0.05  # what a fixed coverage of 0.9 would do
    with pytest.raises(OptionError, match="mistakes on"):
        suitable_coverage(3, 2)
