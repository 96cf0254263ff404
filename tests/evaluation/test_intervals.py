"""Intervals over images and draws: their parts, and how often they cover."""

import math
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import dubito
from dubito.errors import OptionError
from dubito.evaluation import Evaluated
from dubito.evaluation.bootstrap import Sampled, Separations
from dubito.evaluation.intervals import Measurement, covering, measure, student_quantile, units_of
from dubito.evaluation.summary import measured


class Mean(Sampled):
    """The mean over images and draws of numbers (T, N), as every statistic with an interval is made."""

    names: ClassVar = ["mean"]

    def __init__(self, values: Tensor) -> None:
        self.count = values.shape[1]
        self._means = values.double().mean(0)

    def values(self, weights: Tensor) -> Tensor:
        return (self._means.to(weights.dtype) @ weights.T / self.count).unsqueeze(0)


def mean_of(values: Tensor, bootstrap: int = 400) -> Measurement:
    """Of numbers (T, N) whose draws are in pairs."""

    def without(left_out: object) -> Mean:
        kept = [number for number in range(len(values)) if number not in left_out]
        return Mean(values[kept])

    return measure(without, [len(values)], bootstrap)


def numbers(
    images: int, pairs: int, generator: torch.Generator, *, image: float, draw: float, cell: float, twice: bool = False
) -> Tensor:
    """(T, N) with three known variances: of images, of pairs of draws, and of their interaction.

    The two draws of a pair are equal but for their sign around the image's value, as antithetic ones are in part: half
    of the pair's effect cancels. With `twice`, two sets of draws of the same images.
    """
    sets = 2 if twice else 1
    a = image * torch.randn(images, generator=generator, dtype=torch.float64)
    b = draw * torch.randn(sets, pairs, 1, 1, generator=generator, dtype=torch.float64)
    c = cell * torch.randn(sets, pairs, 1, images, generator=generator, dtype=torch.float64)
    odd = torch.randn(sets, pairs, 1, images, generator=generator, dtype=torch.float64)
    values = a + b + c + torch.cat([odd, -odd], 2)  # antithetic: `odd` cancels in every pair
    return values.flatten(1, 2)


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 8, 30, 500, math.inf])
def test_the_quantile_of_student_s_t_is_scipy_s(freedom: float):
    stats = pytest.importorskip("scipy.stats")
    for level in (0.5, 0.95, 0.99):
        expected = stats.norm.ppf((1 + level) / 2) if math.isinf(freedom) else stats.t.ppf((1 + level) / 2, freedom)
        assert student_quantile(level, freedom) == pytest.approx(expected, rel=1e-3)
    with pytest.raises(OptionError, match="level"):
        student_quantile(1.0, freedom)


def test_units_are_antithetic_pairs_within_each_member():
    assert [stratum.units for stratum in units_of([4, 1, 5])] == [((0, 1), (2, 3)), ((5, 6), (7, 8), (9,))]
    assert units_of([1]) == units_of([2]) == units_of([]) == ()


def test_the_jackknife_of_a_mean_is_its_textbook_variance():
    values = torch.randn(10, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = mean_of(values).influences[0].variances(0)
    pairs = values.view(5, 2, 50).mean((1, 2))
    assert found.jackknife == pytest.approx(float(pairs.var()) / 5)
    assert found.freedom == 4


def test_an_odd_last_draw_counts_by_its_size():
    """The delete-m_j jackknife of a mean: mean_j of (x_j - mean)^2 / (T / m_j - 1), x_j being the mean of unit j."""
    values = torch.randn(5, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units = torch.stack([values[:2].mean(), values[2:4].mean(), values[4].mean()])
    sizes = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    expected = ((units - values.mean()).square() / (5 / sizes - 1)).mean()
    assert mean_of(values).influences[0].variances(0).jackknife == pytest.approx(float(expected))


def test_the_parts_of_the_variance_are_the_known_ones():
    """Means over 400 sets of images and draws, within 6 standard errors of the variances they estimate."""
    generator = torch.Generator().manual_seed(0)
    image, draw, cell, images, pairs = 1.0, 0.05, 1.0, 200, 5
    main, interaction, bootstrapped = [], [], []
    for _ in range(400):
        found = mean_of(numbers(images, pairs, generator, image=image, draw=draw, cell=cell)[0], bootstrap=100)
        parts = found.influences[0].variances(0)
        main.append(parts.main)
        interaction.append(parts.interaction)
        bootstrapped.append(float(found.replicates.double().var()))
    for values, expected in (
        (main, draw**2 / pairs),
        (interaction, cell**2 / (images * pairs)),
        (bootstrapped, (image**2 + cell**2 / pairs) / images),
    ):
        seen = torch.tensor(values)
        assert float(seen.mean()) == pytest.approx(expected, abs=6 * float(seen.std()) / 20 + 0.015 * expected)


@pytest.mark.parametrize(
    ("image", "draw", "cell"),
    [(1.0, 0.2, 0.5), (1.0, 0.0, 1.0)],
    ids=["draws decide", "no effect of draws on all images"],
)
def test_intervals_of_a_difference_cover_0_in_95_of_100_self_comparisons(image: float, draw: float, cell: float):
    """A network with known variances against itself under another seed; 400 pairs, within 4.9 standard errors."""
    generator = torch.Generator().manual_seed(1)
    inside = alone = 0
    for _ in range(400):
        one, two = numbers(300, 5, generator, image=image, draw=draw, cell=cell, twice=True)
        apart = mean_of(one).minus(mean_of(two), same_draws=False)
        low, high = apart.interval("mean")
        inside += low <= 0 <= high
        low, high = covering(apart.replicates[0], float(apart.estimates[0]))
        alone += low <= 0 <= high
    # Chance has a standard error of 1.1 %; where draws matter little, the interval may be too wide by as much.
    assert 0.95 - 4.9 * 0.011 <= inside / 400 <= 1.0
    if draw == 0.2:
        assert inside / 400 <= 0.95 + 4.9 * 0.011 - 0.005
        assert alone / 400 < 0.6  # what images alone would say


def test_intervals_of_a_value_cover_the_truth_in_95_of_100():
    """Fresh images and fresh draws each time, the truth being 0; 400 times, within 4.9 standard errors."""
    generator = torch.Generator().manual_seed(2)
    inside = 0
    for _ in range(400):
        values = numbers(100, 5, generator, image=1.0, draw=0.2, cell=0.5)[0]
        found = mean_of(values)
        low, high = covering(found.replicates[0], found["mean"], [i.variances(0) for i in found.influences])
        inside += low <= 0 <= high
    assert abs(inside / 400 - 0.95) <= 4.9 * 0.011


def evaluated(draws: Tensor, labels: Tensor, **options: object) -> Evaluated:
    images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
    return Evaluated("made/test", images, labels, dubito.decompose(draws), draws, (len(draws),), **options)


def network_with_draws(seed: int, images: int = 400, wobble: float = 0.5, samples: int = 10) -> tuple[Tensor, Tensor]:
    """Probabilities (T, N, 4) whose draws move all images alike, in antithetic pairs, and labels."""
    fixed = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(images, 4, generator=fixed)
    directions = torch.randn(3, images, 4, generator=fixed)
    labels = torch.multinomial(logits.softmax(1), 1, generator=fixed).squeeze(1)
    draw = torch.randn(samples // 2, 3, generator=torch.Generator().manual_seed(seed))
    steps = torch.stack([draw, -draw], 1).flatten(0, 1)
    return (logits + wobble * torch.einsum("td,dnc->tnc", steps, directions)).softmax(2), labels


def test_metrics_of_one_network_under_two_seeds_are_told_apart_by_images_alone_but_not_by_ours():
    """60 pairs of seeds; the tolerance is 4.9 standard errors, 2.8 % each."""
    names = ("nll", "brier", "aleatoric", "epistemic")
    inside = dict.fromkeys(names, 0)
    alone = dict.fromkeys(names, 0)
    for seed in range(60):
        one, two = (measured(evaluated(*network_with_draws(2 * seed + i, images=200)), 100, 0) for i in (1000, 1001))
        apart = one.minus(two, same_draws=False)
        for name in names:
            low, high = apart.interval(name)
            inside[name] += low <= 0 <= high
            low, high = Measurement(apart.names, apart.estimates, apart.replicates, (), True).interval(name)
            alone[name] += low <= 0 <= high
    for name in names:
        assert inside[name] / 60 >= 0.95 - 4.9 * 0.028
    assert alone["epistemic"] / 60 < 0.6


def test_draws_widen_an_interval_and_networks_without_draws_have_that_of_the_images():
    draws, labels = network_with_draws(1)
    whole = evaluated(draws, labels)
    forgotten = Evaluated("made/test", whole.images, labels, whole.prediction)
    found, images = measured(whole, 200, 0), measured(forgotten, 200, 0)
    for name in ("brier", "aleatoric", "epistemic"):
        low, high = found.interval(name)
        inner_low, inner_high = images.interval(name)
        assert 0 <= low <= inner_low <= found[name] <= inner_high <= high
    assert high - low > 1.5 * (inner_high - inner_low)  # of epistemic uncertainty
    plain = measured(evaluated(draws[:1], labels), 200, 0)
    assert plain.influences == ()
    assert found.interval("accuracy")[1] <= 1


def test_the_same_seed_cancels_what_the_draws_have_in_common():
    draws, labels = network_with_draws(1)
    other = (draws.log() + 0.1 * torch.eye(4)[0]).softmax(2)
    one, two = (measured(evaluated(part, labels), 200, 0) for part in (draws, other))
    paired = one.minus(two, same_draws=True).interval("epistemic")
    unpaired = one.minus(two, same_draws=False).interval("epistemic")
    assert paired[1] - paired[0] < (unpaired[1] - unpaired[0]) / 2
    nothing = one.minus(one, same_draws=True)
    assert all(nothing.interval(name) == (0.0, 0.0) for name in nothing.names if nothing[name] == 0)


def test_variances_of_logits_have_intervals_over_images_alone():
    draws, labels = network_with_draws(1)
    found = measured(evaluated(draws, labels, unit="logit"), 200, 0)
    parts = found.influences[0].variances(found.names.index("epistemic"))
    assert parts.jackknife == pytest.approx(0, abs=1e-25)
    assert found.influences[0].variances(found.names.index("nll")).jackknife > 0


def test_the_interval_of_an_area_stays_between_0_and_1_however_much_the_draws_differ() -> None:
    def predicted(epistemic: list[float]) -> dubito.Prediction:
        pairs = torch.tensor([[0.5 + doubt, 0.5 - doubt] for doubt in epistemic])
        return dubito.decompose(torch.stack([pairs, pairs.flip(1)]))

    sure, unsure = predicted([0.0, 0.1, 0.2]), predicted([0.3, 0.4])

    def statistics(left_out: Sequence[int]) -> Separations:
        return Separations(unsure, sure) if 0 in left_out else Separations(sure, unsure)

    measurement = measure(statistics, [6], bootstrap=50)
    assert measurement["epistemic/auroc"] == 1
    low, high = measurement.interval("epistemic/auroc")
    assert 0 <= low < high == 1
