"""Metrics and bootstrap intervals against scikit-learn, torchmetrics, brute force and normal theory."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.evaluation import metrics
from dubito.evaluation.bootstrap import Statistics, interval, replicate, resamples
from dubito.evaluation.calibration import Conformal, fit_temperature, set_metrics
from dubito.evaluation.intervals import measure
from dubito.evaluation.metrics import Ranking
from dubito.evaluation.summary import plain


def some(count: int = 500, classes: int = 7, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and labels drawn from them, sharpened so that they are not calibrated."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (1.5 * logits).softmax(1), labels


def named(statistics: Statistics, values: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip(statistics.names, values, strict=True))


def means(values: torch.Tensor, bootstrap: int) -> torch.Tensor:
    """(K, bootstrap) means of the columns of values (N, K) over resamples of its rows."""
    return replicate(lambda weights: values.T @ weights.T / len(values), len(values), bootstrap)


def draws(
    count: int = 400, classes: int = 7, samples: int = 5, seed: int = 0
) -> tuple[dubito.Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs, labels = some(count, classes, seed)
    noise = torch.randn(samples, count, classes, generator=generator)
    return dubito.decompose((probs.log() + noise).softmax(2)), labels


def scores(count: int = 300, ties: bool = False, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, generator=generator)
    positive = torch.rand(count, generator=generator) < 0.2 + 0.4 * values
    return (values * 10).round() if ties else values, positive


def test_accuracy_nll_brier_and_top_k_agree_with_the_references():
    probs, labels = some()
    wide = probs.double()
    assert metrics.accuracy(probs, labels) == sklearn.accuracy_score(labels, probs.argmax(1))
    assert metrics.nll(probs, labels) == pytest.approx(
        sklearn.log_loss(labels, wide / wide.sum(1, keepdim=True)), abs=1e-6
    )
    one_hot = torch.nn.functional.one_hot(labels, 7)
    assert metrics.brier(probs, labels) == pytest.approx(float((wide - one_hot).square().sum(1).mean()), abs=1e-12)
    for k in (1, 2, 5, 7):
        reference = float(multiclass_accuracy(probs, labels, 7, top_k=k, average="micro"))
        assert metrics.top_k_accuracy(probs, labels, k) == pytest.approx(reference, abs=1e-6)


def test_a_probability_of_0_for_the_truth_gives_a_finite_nll():
    assert math.isfinite(metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_of_equal_width_is_that_of_torchmetrics(bins):
    probs, labels = some(2000)
    reference = float(multiclass_calibration_error(probs, labels, 7, n_bins=bins))
    assert metrics.calibration_error(probs, labels, bins) == pytest.approx(reference, abs=1e-5)  # float32 there


def test_calibration_error_of_equal_mass_by_hand():
    confidence = torch.tensor([0.6, 0.7, 0.8, 0.9])
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.tensor([0, 1, 0, 0])
    # Two bins of two: confidences 0.65 and 0.85, accuracies 0.5 and 1.
    assert metrics.calibration_error(probs, labels, 2, equal_mass=True) == pytest.approx((0.15 + 0.15) / 2)
    table = metrics.reliability(probs, labels, 2, equal_mass=True)
    assert table.count.tolist() == [2, 2]
    assert table.lower.tolist() == pytest.approx([0.6, 0.8])
    assert table.upper.tolist() == pytest.approx([0.7, 0.9])


def test_equal_confidences_share_a_bin_whatever_the_order_of_images():
    confidence = torch.tensor([1.0] * 50 + [0.9] * 50)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = (torch.arange(100) % 3 == 0).long()
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    given = metrics.calibration_error(probs, labels, equal_mass=True)
    assert metrics.calibration_error(probs[order], labels[order], equal_mass=True) == pytest.approx(given, abs=1e-12)
    assert int((metrics.reliability(probs, labels, equal_mass=True).count > 0).sum()) == 2


def test_a_confidence_of_1_is_in_the_last_bin():
    table = metrics.reliability(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
    assert table.count[-1] == 1
    assert table.count.sum() == 2
    assert bool(table.accuracy[0].isnan())


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_that_of_scikit_learn(ties):
    values, positive = scores(ties=ties)
    assert metrics.auroc(values, positive) == pytest.approx(sklearn.roc_auc_score(positive, values), abs=1e-12)


def test_auroc_without_mistakes_or_with_nothing_else_is_nan():
    assert math.isnan(metrics.auroc(torch.rand(5), torch.zeros(5, dtype=torch.bool)))
    assert math.isnan(metrics.auroc(torch.rand(5), torch.ones(5, dtype=torch.bool)))
    assert metrics.auroc(torch.zeros(5), torch.tensor([True, False, False, True, False])) == 0.5


def brute_force_aurc(uncertainty: torch.Tensor, errors: torch.Tensor) -> float:
    """The definition: the mean over images of the risk among those that are at most as uncertain."""
    return float(torch.stack([errors[uncertainty <= u].double().mean() for u in uncertainty]).mean())


@pytest.mark.parametrize("ties", [False, True])
def test_risk_coverage_area_is_its_definition(ties):
    values, errors = scores(ties=ties)
    curve = metrics.risk_coverage(values, errors)
    assert curve.area == pytest.approx(brute_force_aurc(values, errors), abs=1e-12)
    best = brute_force_aurc(errors.double() * 1000 + torch.arange(len(errors)), errors)
    assert curve.excess == pytest.approx(curve.area - best, abs=1e-12)
    assert curve.coverage[-1] == 1
    assert float(curve.risk[-1]) == pytest.approx(float(errors.double().mean()))
    perfect = metrics.risk_coverage(errors.double() * 1000 + torch.arange(len(errors)), errors)
    assert perfect.excess == pytest.approx(0, abs=1e-12)


def test_risk_at_a_coverage_is_the_risk_of_so_many_images():
    values, errors = scores(200)
    curve = metrics.risk_coverage(values, errors)
    ordered = errors[values.argsort()].double()
    coverage = torch.tensor([0.05, 0.5, 1.0])
    expected = [float(ordered[: round(200 * c)].mean()) for c in coverage.tolist()]
    assert metrics.risk_at(curve, coverage).tolist() == pytest.approx(expected)
    # All equally uncertain: any share of them has the risk of all.
    flat = metrics.risk_coverage(torch.zeros(200), errors)
    assert metrics.risk_at(flat, coverage).tolist() == pytest.approx([float(errors.double().mean())] * 3)


@pytest.mark.parametrize("ties", [False, True])
def test_separation_from_another_data_set_is_that_of_scikit_learn(ties):
    values, positive = scores(800, ties)
    found = metrics.separation(values[~positive], values[positive])
    assert found.auroc == pytest.approx(sklearn.roc_auc_score(positive, values), abs=1e-12)
    assert found.aupr == pytest.approx(sklearn.average_precision_score(positive, values), abs=1e-12)
    false_rate, true_rate, _ = sklearn.roc_curve(positive, values, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(false_rate[true_rate >= 0.95].min(), abs=1e-12)


def test_confusion_and_per_class_table_are_those_of_scikit_learn():
    prediction, labels = draws()
    labels[labels == 6] = 5  # a class without any image
    matrix = metrics.confusion_matrix(prediction.label, labels, 7)
    assert matrix.tolist() == sklearn.confusion_matrix(labels, prediction.label, labels=range(7)).tolist()
    table = metrics.per_class(prediction, labels, tuple("abcdefg"))
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(
        labels, prediction.label, labels=range(7), zero_division=0
    )
    for key, values in (("precision", precision), ("recall", recall), ("f1", f1), ("support", support)):
        assert [row[key] for row in table] == pytest.approx(values.tolist(), abs=1e-12)
    assert table[2]["epistemic"] == pytest.approx(float(prediction.epistemic[labels == 2].mean()), rel=1e-5)
    assert math.isnan(table[6]["aleatoric"])
    assert plain(table)[6]["aleatoric"] is None


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.long)),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)),
        (torch.ones(2, 2) / 2, torch.zeros(3, dtype=torch.long)),
        (torch.ones(2, 2) / 2, torch.zeros(2)),
        (torch.ones(2, 2) / 2, torch.tensor([0, 2])),
        (torch.full((2, 2), float("nan")), torch.tensor([0, 1])),
        (torch.tensor([[3.0, -2.0]]), torch.tensor([0])),
    ],
)
def test_what_are_no_probabilities_or_labels_is_refused(probs, labels):
    for function in (metrics.accuracy, metrics.nll, metrics.brier, metrics.reliability):
        with pytest.raises(ShapeError):
            function(probs, labels)


def test_wrong_scores_and_options_are_refused():
    with pytest.raises(ShapeError, match="NaN"):
        metrics.auroc(torch.tensor([float("nan"), 1.0]), torch.tensor([True, False]))
    with pytest.raises(ShapeError):
        metrics.risk_coverage(torch.rand(3), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ShapeError):
        metrics.separation(torch.rand(3), torch.rand(0))
    probs, labels = some(10)
    for call in (
        lambda: metrics.top_k_accuracy(probs, labels, 8),
        lambda: metrics.calibration_error(probs, labels, 0),
        lambda: means(torch.rand(3, 1), 0),
        lambda: interval(torch.rand(3), 1.0),
    ):
        with pytest.raises(OptionError):
            call()


def resampled(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The images of one resample, each as often as it was drawn."""
    return values.repeat_interleave(weights.long())


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_rank_statistics_are_those_of_the_resampled_images(ties):
    values, positive = scores(120, ties)
    weights = next(resamples(120, 5))
    auroc, aurc = Ranking(values, positive).statistics(weights.double())
    for index, row in enumerate(weights):
        drawn, wrong = resampled(values, row), resampled(positive, row)
        assert float(auroc[index]) == pytest.approx(sklearn.roc_auc_score(wrong, drawn), abs=1e-12)
        assert float(aurc[index]) == pytest.approx(brute_force_aurc(drawn, wrong), abs=1e-12)


def test_statistics_of_all_images_are_the_metrics():
    prediction, labels = draws()
    statistics = Statistics(prediction, labels)
    found = {name: float(value) for name, value in named(statistics, statistics.estimates()).items()}
    probs, errors = prediction.probs, prediction.label != labels
    assert found["accuracy"] == pytest.approx(metrics.accuracy(probs, labels), abs=1e-12)
    assert found["top5_accuracy"] == pytest.approx(metrics.top_k_accuracy(probs, labels), abs=1e-12)
    assert found["nll"] == pytest.approx(metrics.nll(probs, labels), abs=1e-12)
    assert found["brier"] == pytest.approx(metrics.brier(probs, labels), abs=1e-12)
    assert found["ece"] == pytest.approx(metrics.calibration_error(probs, labels), abs=1e-12)
    equal_mass = metrics.calibration_error(probs, labels, equal_mass=True)
    assert found["ece_equal_mass"] == pytest.approx(equal_mass, abs=1e-12)
    for name, score in metrics.uncertainties(prediction).items():
        assert found[f"errors/{name}/auroc"] == pytest.approx(metrics.auroc(score, errors), abs=1e-12)
        assert found[f"errors/{name}/aurc"] == pytest.approx(brute_force_aurc(score, errors), abs=1e-12)


def test_replicates_are_the_statistics_of_the_resampled_images():
    prediction, labels = draws(150)
    statistics = Statistics(prediction, labels)
    replicates = named(statistics, statistics.replicates(3, seed=4))
    for index, weights in enumerate(next(resamples(150, 3, seed=4))):
        chosen = torch.arange(150).repeat_interleave(weights.long())
        found = named(statistics, Statistics(prediction[chosen], labels[chosen]).estimates())
        for name in ("accuracy", "nll", "brier", "epistemic", "ece", "errors/entropy/auroc", "errors/entropy/aurc"):
            assert float(replicates[name][index]) == pytest.approx(float(found[name]), rel=1e-4, abs=1e-6), name


def test_resamples_are_multinomial_and_repeatable():
    weights = torch.cat(list(resamples(40, 2000, seed=3)))
    assert weights.shape == (2000, 40)
    assert bool((weights.sum(1) == 40).all())
    # Each weight is Binomial(40, 1/40): mean 1, variance 1 - 1/40; 5 standard errors.
    variance = 1 - 1 / 40
    assert float((weights.mean(0) - 1).abs().max()) < 5 * math.sqrt(variance / 2000)
    assert float(weights.var(0).mean()) == pytest.approx(variance, abs=5 * math.sqrt(3 / 2000 / 40) * variance)
    assert torch.equal(next(resamples(40, 2000, seed=3)), weights)
    assert not torch.equal(next(resamples(40, 2000, seed=4)), weights)


def test_bootstrap_interval_of_a_mean_is_that_of_normal_theory():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2000, 1, generator=generator)
    low, high = interval(means(values, 4000)[0])
    error = float(values.std(unbiased=False)) / math.sqrt(2000)
    mean = float(values.mean())
    # A 2.5 % quantile of 4,000 replicates has a standard error of 0.042 standard errors of the mean; 6 of them.
    assert low == pytest.approx(mean - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.25 * error)


def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say():
    """400 data sets of 100 coin flips with p = 0.8: coverage 95 % with a standard error of 1.1 %, plus discreteness."""
    generator = torch.Generator().manual_seed(1)
    flips = (torch.rand(100, 400, generator=generator) < 0.8).float()
    replicates = means(flips, 1000)
    covered = sum(low <= 0.8 <= high for low, high in map(interval, replicates))
    assert 0.88 < covered / 400 < 0.99


def test_the_interval_of_a_calibration_error_holds_its_estimate():
    """Resampling pushes a sum of absolute values up; a plain percentile interval would lie above the estimate."""
    generator = torch.Generator().manual_seed(2)
    confidence = 0.5 + 0.5 * torch.rand(1000, generator=generator)
    labels = (torch.rand(1000, generator=generator) > confidence).long()  # perfectly calibrated
    prediction = dubito.decompose(torch.stack([confidence, 1 - confidence], 1).unsqueeze(0))
    statistics = Statistics(prediction, labels)
    estimate = float(named(statistics, statistics.estimates())["ece"])
    replicates = named(statistics, statistics.replicates(1000, 0))["ece"]
    assert float(replicates.mean()) > estimate
    low, high = interval(replicates, estimate=estimate)
    assert low < estimate < high


def test_intervals_of_differences_in_calibration_cover_what_they_say():
    """A calibrated network beside one that is 4 points too sure: 95 % intervals of the expected difference.

    Of 100 intervals 95 should hold it, with a standard error of 2.2; four of them are allowed.
    """

    def pair(seed):
        generator = torch.Generator().manual_seed(seed)
        sure = torch.rand(500, generator=generator) * 0.35 + 0.55
        labels = (torch.rand(500, generator=generator) > sure).long()
        return [Statistics(dubito.decompose(torch.stack([p, 1 - p], 1)[None]), labels) for p in (sure, sure + 0.04)]

    def difference(networks, bootstrap, seed=0):
        one, two = (measure(lambda left_out, network=network: network, [1], bootstrap, seed) for network in networks)
        return two.minus(one, same_draws=False)

    expected = np.mean([difference(pair(1000 + seed), 1)["ece"] for seed in range(300)])
    covered = 0
    for seed in range(100):
        found = difference(pair(seed), 200, seed)
        low, high = found.interval("ece")
        assert low <= found["ece"] <= high
        covered += low <= expected <= high
    assert covered >= 95 - 4 * 2.2


def test_intervals_ignore_resamples_without_a_value():
    assert interval(torch.tensor([float("nan"), 1.0, 1.0])) == (1.0, 1.0)
    assert all(math.isnan(edge) for edge in interval(torch.full((3,), float("nan"))))


def test_replicate_joins_blocks_in_order():
    blocks = [weights[:, 0] for weights in resamples(20_000, 100)]
    assert [len(block) for block in blocks] == [62, 38]
    assert torch.equal(replicate(lambda weights: weights[:, 0], 20_000, 100), torch.cat(blocks))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_small_label_types_count_as_int64_does(dtype):
    """100 classes: 99 * 100 + 99 overflows a byte, and 99 * 100 an int8 already."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(400, 100, generator=generator).softmax(1)
    labels = torch.randint(100, (400,), generator=generator)
    labels[0] = 99
    prediction, small = dubito.decompose(probs[None]), labels.to(dtype)
    expected = sklearn.confusion_matrix(labels.numpy(), prediction.label.numpy(), labels=range(100))
    assert metrics.confusion_matrix(prediction.label, small, 100).tolist() == expected.tolist()
    assert metrics.confusion_matrix(prediction.label.to(dtype), small, 100).tolist() == expected.tolist()
    names = tuple(map(str, range(100)))
    assert str(metrics.per_class(prediction, small, names)) == str(metrics.per_class(prediction, labels, names))
    for function in (metrics.accuracy, metrics.nll, metrics.brier, metrics.top_k_accuracy, metrics.calibration_error):
        assert function(probs, small) == function(probs, labels)
    assert fit_temperature(probs, small) == fit_temperature(probs, labels)
    assert Conformal.fit(probs, small) == Conformal.fit(probs, labels)
    sets = Conformal.fit(probs, labels).sets(probs)
    assert set_metrics(sets, small)["class_size"] == pytest.approx(set_metrics(sets, labels)["class_size"], nan_ok=True)


def test_a_confusion_matrix_needs_class_numbers_that_exist():
    right = torch.tensor([0, 1])
    for wrong in (torch.tensor([0, 2]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0]), torch.tensor([True, False])):
        for pair in ((wrong, right), (right, wrong)):
            with pytest.raises(ShapeError):
                metrics.confusion_matrix(*pair, 2)
