"""Novelty: scores against closed forms, a trial that decides, and a predictor that carries the result along."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubito
from dubito.data import images_at_once
from dubito.errors import DubitoWarning, OptionError, RunError, ShapeError
from dubito.heads import resolve_head
from dubito.prediction.novelty import Layer, Novelty, Observed, Observer, find_layers
from dubito.prediction.novelty.fitting import _chosen, _Sample
from dubito.prediction.novelty.outliers import OUTLIERS, outliers
from dubito.prediction.novelty.scores import ClassGaussians, Energy, Entropy, Neighbours, NeighboursAndEnergy
from dubito.prediction.novelty.trial import area, found, marks

SOFTMAX = resolve_head(dubito.attach_head(nn.Linear(2, 2), "softmax"))


def seen(features: Tensor) -> Observed:
    return Observed(features, (features,))


def blobs(count: int, generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Images of three classes: each has a bright square of its own, and noise."""
    labels = torch.randint(3, (count,), generator=generator)
    images = 0.3 * scale * torch.randn(count, 1, 8, 8, generator=generator)
    for label, (row, column) in enumerate(((0, 0), (0, 5), (5, 2))):
        images[labels == label, :, row : row + 3, column : column + 3] += 2.0
    return images, labels


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A small Bayesian network that tells the three classes apart."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    model = dubito.attach_head(dubito.to_bayesian(network, initial_std=0.02), "softmax")
    images, labels = blobs(600, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    objective = dubito.ELBO(num_data=600, temperature=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        objective(model, images, labels).loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def fitted(trained: nn.Module) -> dubito.Predictor:
    predictor = dubito.Predictor(trained, samples=4)
    generator = torch.Generator().manual_seed(1)
    predictor.fit_novelty([blobs(600, generator)], [blobs(2000, generator)])
    return predictor


def test_neighbours_have_the_distance_to_the_fifth_nearest_in_standard_deviations() -> None:
    generator = torch.Generator().manual_seed(0)
    train, own, new = (torch.randn(count, 6, generator=generator) for count in (400, 200, 30))
    score = Neighbours.fit(seen(train), seen(own))

    def distance(x: Tensor) -> Tensor:
        wide, reference = F.normalize(x.double(), dim=1), F.normalize(train, dim=1).half().double()
        return torch.cdist(wide, reference).sort(1).values[:, 4]

    usual = distance(own)
    torch.testing.assert_close(
        score(seen(new)).double(), (distance(new) - usual.mean()) / usual.std(), atol=2e-3, rtol=2e-3
    )


def test_of_several_layers_the_most_unusual_distance_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    train, own, new = (
        Observed(torch.zeros(n, 2), tuple(torch.randn(n, d, generator=generator) for d in (4, 7)))
        for n in (300, 100, 20)
    )
    both = Neighbours.fit(train, own)(new)
    each = [Neighbours.fit(train.at([k]), own.at([k]))(new.at([k])) for k in (0, 1)]
    torch.testing.assert_close(both, torch.maximum(*each))


def test_energy_counts_like_one_more_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    head = resolve_head(dubito.attach_head(nn.Linear(3, 3), "softmax"))
    train, own, new = (
        Observed(torch.randn(n, 3, generator=generator), (torch.randn(n, 4, generator=generator),))
        for n in (300, 100, 50)
    )
    usual, energy = (-part.outputs.logsumexp(1) for part in (own, new))
    unusual = (energy - usual.mean()) / usual.std()
    distance = Neighbours.fit(train, own)(new)
    torch.testing.assert_close(
        NeighboursAndEnergy.fit(train, own, head=head)(new), torch.maximum(distance, unusual), rtol=1e-4, atol=1e-4
    )
    assert 5 < int((unusual > distance).sum()) < 45  # each counts for some images


def test_energy_and_entropy_are_those_of_the_classes() -> None:
    outputs = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    head = resolve_head(dubito.attach_head(nn.Linear(3, 6), "softmax"))
    torch.testing.assert_close(Energy(head)(seen(outputs)), -outputs.logsumexp(1))
    expected = torch.distributions.Categorical(logits=outputs).entropy()
    torch.testing.assert_close(Entropy(head)(seen(outputs)), expected)
    variances = resolve_head(dubito.attach_head(nn.Linear(3, 6), "kendall_gal"))  # three logits, three variances
    torch.testing.assert_close(Energy(variances)(seen(outputs)), -outputs[:, :3].logsumexp(1))


def test_gaussian_scores_are_mahalanobis_distances_up_to_the_added_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(900) % 3
    mixing = torch.randn(5, 5, generator=generator)
    features = torch.randn(900, 5, generator=generator) @ mixing + 3 * F.one_hot(labels, 5)
    score = ClassGaussians.fit(seen(features), labels)
    new = torch.randn(40, 5, generator=generator)

    def squared(deviations: Tensor, x: Tensor) -> Tensor:
        covariance = deviations.double().T @ deviations.double() / len(deviations)
        covariance += 0.01 * covariance.diagonal().mean() * torch.eye(5)
        return torch.einsum("nd,de,ne->n", x.double(), covariance.inverse(), x.double())

    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    inside = features - means[labels]
    nearest = torch.stack([squared(inside, new - mean) for mean in means]).amin(0)
    of_all = squared(features - features.mean(0), new - features.mean(0))
    torch.testing.assert_close(score(seen(new)).double(), nearest, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(score.relative()(seen(new)).double(), nearest - of_all, rtol=1e-3, atol=1e-3)


def test_what_a_score_finds_is_its_mean_power_up_to_five_per_cent_false_alarms() -> None:
    own = torch.linspace(0, 1, 100_001)
    assert found(own, own) == pytest.approx(0.026, abs=1e-3)  # the mean of 0.2, 0.4 ... 5 %
    assert found(own, own + 2) == 1
    assert found(own, own - 2) == 0
    assert found(torch.zeros(50), torch.zeros(50)) == 0


def test_outliers_are_other_images_of_the_same_shape_and_the_same_ones_again() -> None:
    images = torch.rand(6, 3, 9, 10, generator=torch.Generator().manual_seed(0))
    made = outliers(images)
    assert list(made) == list(OUTLIERS)
    for name, strange in made.items():
        assert strange.shape == images.shape, name
        assert bool(strange.isfinite().all()), name
        assert bool((strange - images).flatten(1).abs().amax(1).gt(1e-3).all()), name
        assert torch.equal(strange, outliers(images)[name]), name
    torch.testing.assert_close(made["pixels"].flatten(2).sort(2).values, images.flatten(2).sort(2).values)
    torch.testing.assert_close(made["quarters"].flatten(2)[:, :, :].sum(2), images.flatten(2).sum(2))
    assert set(outliers(torch.rand(5, 7))) == {"mixture", "pixels", "noise"}


class Functional(nn.Module):
    """A network that calls no module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def test_layers_are_the_ends_of_stages_and_the_input_of_the_last_linear_layer() -> None:
    images = torch.zeros(2, 1, 32, 32)
    lenet = dubito.to_deterministic(dubito.models.build("lenet5", in_channels=1)).eval()
    assert find_layers(lenet, images) == [
        Layer("pooling2", "output", 4),
        Layer("activation3", "output", 4),
        Layer("pooling4", "output", 4),
        Layer("linear6", "input"),
        Layer("linear7", "input"),
    ]
    assert find_layers(Functional(), torch.zeros(2, 1, 8, 8)) == [Layer("", "output")]
    convolutional = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert find_layers(convolutional, torch.zeros(2, 1, 8, 8))[-1] == Layer("2", "input")


def test_features_are_pooled_as_torch_pools() -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 5 * 7, 2))
    images = torch.randn(4, 1, 7, 9)
    observed = Observer(network, [Layer("0", "output", 4)])(images)
    torch.testing.assert_close(observed.features[0], F.adaptive_avg_pool2d(network[0](images), (4, 4)).flatten(1))
    torch.testing.assert_close(observed.outputs, network(images))


def test_unfamiliar_images_are_found_at_the_stated_rate_of_false_alarms(fitted: dubito.Predictor) -> None:
    novelty = fitted.novelty
    assert novelty is not None
    familiar, _ = blobs(4000, torch.Generator().manual_seed(7))
    strange = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(8)) * 3
    threshold = novelty.threshold(0.05)
    alarms = float((fitted(familiar).novelty > threshold).double().mean())
    # Of 2,000 held-out and 4,000 new images: standard error sqrt(0.05 * 0.95 * (1/2000 + 1/4000)).
    assert abs(alarms - 0.05) < 5 * (0.05 * 0.95 * (1 / 2000 + 1 / 4000)) ** 0.5
    assert float((fitted(strange).novelty > threshold).double().mean()) > 0.9


def test_a_rule_does_not_outlive_the_novelty_that_it_was_fitted_to(trained: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    predictor = dubito.Predictor(trained, samples=2)
    training, held_out = blobs(600, generator), blobs(500, generator)
    predictor.fit_novelty([training], [held_out])
    prediction = predictor(held_out[0])
    predictor.rule = dubito.decisions.fit(prediction, held_out[1], review=0.1)
    predictor.fit_novelty([training], [held_out])
    assert predictor(held_out[0]).decision is not None  # it does not look at novelty
    predictor.rule = dubito.decisions.fit(prediction, held_out[1], review=0.1, false_alarm=0.05)
    assert "unfamiliar" in predictor(held_out[0]).decision
    with pytest.warns(DubitoWarning, match="fitted to another novelty, so there are no decisions any more"):
        predictor.fit_novelty([blobs(300, generator)], [held_out])
    assert predictor(held_out[0]).decision is None


def test_novelty_is_a_pure_function_of_the_image(fitted: dubito.Predictor) -> None:
    images, _ = blobs(20, torch.Generator().manual_seed(3))
    together = fitted(images).novelty
    alone = torch.cat([fitted(image.unsqueeze(0)).novelty for image in images])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert fitted(images)[3:5].novelty.shape == (2,)


@pytest.mark.parametrize("method", ["weights", "local", "moments", "mean"])
def test_every_method_measures_the_same_novelty(trained: nn.Module, fitted: dubito.Predictor, method: str) -> None:
    images, _ = blobs(10, torch.Generator().manual_seed(3))
    other = dubito.Predictor(trained, samples=2, method=method, seed=5)
    generator = torch.Generator().manual_seed(1)
    other.fit_novelty([blobs(600, generator)], [blobs(2000, generator)])
    plain = dubito.Predictor(trained, samples=2, method=method, seed=5)(images)
    found = other(images)
    torch.testing.assert_close(found.novelty, fitted(images).novelty, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.probs, plain.probs)
    assert plain.novelty is None


def test_a_file_brings_novelty_back(fitted: dubito.Predictor, tmp_path: Path) -> None:
    novelty = fitted.novelty
    assert novelty is not None
    (tmp_path / "novelty.safetensors").write_bytes(novelty.to_bytes())
    back = Novelty.load(tmp_path / "novelty.safetensors", fitted.head)
    assert back is not None
    assert (back.name, back.layers, back.trial, back.notes) == (
        novelty.name,
        novelty.layers,
        novelty.trial,
        novelty.notes,
    )
    assert back.describe() == novelty.describe()
    images, _ = blobs(10, torch.Generator().manual_seed(3))
    observed = fitted.reference().observed(images)
    torch.testing.assert_close(back(observed), fitted(images).novelty, atol=1e-5, rtol=1e-5)
    (tmp_path / "novelty.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RunError, match="damaged"):
        Novelty.load(tmp_path / "novelty.safetensors", fitted.head)


def test_tensors_of_other_shapes_are_damage() -> None:
    """A dimension more may fit every formula and give a table where each image has one number."""
    gaussians = ClassGaussians.fit(Observed(torch.randn(60, 3), (torch.randn(60, 4),)), torch.arange(60) % 3)
    score = gaussians.relative()
    observed = Observed(torch.randn(5, 3), (torch.randn(5, 4),))
    assert Novelty(score, (), torch.zeros(9))(observed).shape == (5,)
    score.whitening_of_all = score.whitening_of_all.unsqueeze(-1)
    with pytest.raises(RunError, match=r"5 images have novelties of shape .*fit it again"):
        Novelty(score, (), torch.zeros(9))(observed)


def test_percentiles_and_thresholds_are_those_of_the_held_out_images() -> None:
    novelty = Novelty(Energy(SOFTMAX), (), torch.arange(1.0, 100.0))
    assert novelty.threshold(0.01) == 99  # the 99th of 99: a new image lies above with probability 1 / 100
    assert novelty.threshold(0.1) == 90
    assert Novelty(Energy(SOFTMAX), (), torch.arange(1.0, 10.0)).threshold(0.01) == 9
    torch.testing.assert_close(
        novelty.percentile(torch.tensor([0.0, 50.0, 50.5, 200.0])), torch.tensor([0, 49.5 / 99, 50 / 99, 1])
    )
    with pytest.raises(OptionError, match="false_alarm"):
        novelty.threshold(0)


def test_where_no_score_finds_more_novelty_is_the_entropy_and_says_so() -> None:
    network = Functional()
    nn.init.zeros_(network.weight)  # to which all images look alike
    predictor = dubito.Predictor(dubito.attach_head(network, "softmax"))
    novelty = predictor.fit_novelty([blobs(200, torch.Generator().manual_seed(0))])
    assert novelty.name == "entropy"
    assert "is the entropy" in novelty.describe()
    images, _ = blobs(5, torch.Generator().manual_seed(3))
    prediction = predictor(images)
    torch.testing.assert_close(prediction.novelty, prediction.entropy)


def test_an_ensemble_measures_it_in_its_first_member(trained: nn.Module, fitted: dubito.Predictor) -> None:
    predictor = dubito.Predictor(dubito.ensemble([trained, trained]), samples=2)
    generator = torch.Generator().manual_seed(1)
    predictor.fit_novelty([blobs(600, generator)], [blobs(2000, generator)])
    images, _ = blobs(10, torch.Generator().manual_seed(3))
    torch.testing.assert_close(predictor(images).novelty, fitted(images).novelty, atol=1e-4, rtol=1e-4)


def test_an_ensemble_judges_scores_by_the_head_of_that_member(trained: nn.Module) -> None:
    """The trial compares with the entropy, which the ensemble's own head would take of other probabilities."""
    member = dubito.attach_head(deepcopy(trained), "softplus")
    found = []
    for network in (member, dubito.ensemble([member, trained])):
        generator = torch.Generator().manual_seed(1)
        predictor = dubito.Predictor(network, samples=2)
        found.append(predictor.fit_novelty([blobs(300, generator)], [blobs(300, generator)]).describe())
    assert found[0] == found[1]


def test_what_cannot_be_fitted_gets_a_sentence(trained: nn.Module) -> None:
    predictor = dubito.Predictor(trained)
    with pytest.raises(OptionError, match="at least 20"):
        predictor.fit_novelty([blobs(10, torch.Generator())])
    with pytest.raises(ShapeError, match="empty"):
        predictor.fit_novelty([])
    with pytest.raises(ShapeError, match="a class for each image"):
        predictor.fit_novelty([(torch.zeros(30, 1, 8, 8), torch.zeros(30, 3))])
    regression = dubito.attach_head(nn.Linear(4, 2), "gaussian")
    with pytest.raises(OptionError, match="classifiers"):
        dubito.Predictor(regression).fit_novelty(torch.randn(50, 4))


def test_a_mark_is_the_mean_of_the_area_and_of_what_an_alarm_finds() -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = torch.randn(500, generator=generator), 1 + torch.randn(300, generator=generator).round(decimals=1)
    own[:200] = own[:200].round(decimals=1)  # some are equal
    larger = (other.unsqueeze(1) > own).double() + 0.5 * (other.unsqueeze(1) == own).double()
    assert area(own, other) == pytest.approx(float(larger.mean()))

    class Outputs(Energy):
        def forward(self, seen: Observed) -> Tensor:
            return seen.outputs

    mark = marks(Outputs(None), own, {"far": Observed(other, ()), "same": Observed(own, ())})  # type: ignore[arg-type]
    assert mark["far"] == pytest.approx((area(own, other) + found(own, other)) / 2)
    assert mark["same"] == pytest.approx((0.5 + found(own, own)) / 2)


def test_what_an_earlier_dubito_fitted_does_not_count(fitted: dubito.Predictor, tmp_path: Path) -> None:
    assert fitted.novelty is not None
    content = fitted.novelty.to_bytes().replace(b'\\"format\\": 2', b'\\"format\\": 1')
    (tmp_path / "novelty.safetensors").write_bytes(content)
    assert Novelty.load(tmp_path / "novelty.safetensors", fitted.head) is None


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_features_are_the_mean_of_the_first_pair_of_draws_in_every_way_to_predict(
    trained: nn.Module, fitted: dubito.Predictor, samples: int
) -> None:
    assert fitted.novelty is not None
    images, _ = blobs(30, torch.Generator().manual_seed(3))
    pair = [Observer(network, fitted.novelty.layers)(images) for network in dubito.Predictor(trained, 2).networks()]
    expected = fitted.novelty(Observed.mean(pair))
    assert float((expected - fitted.novelty(pair[0])).abs().max()) > 1e-3
    predictor = dubito.Predictor(trained, samples)
    generator = torch.Generator().manual_seed(1)
    predictor.fit_novelty([blobs(600, generator)], [blobs(2000, generator)])
    for count in (3, 30):  # all draws at once, and one after the other
        torch.testing.assert_close(predictor(images[:count]).novelty, expected[:count], atol=1e-3, rtol=1e-3)
        draws, found = predictor.draws_and_novelty(images[:count])
        torch.testing.assert_close(found, expected[:count], atol=1e-3, rtol=1e-3)
        assert torch.equal(draws, predictor.draws(images[:count]))


def test_a_prediction_by_draws_makes_no_pass_for_novelty(fitted: dubito.Predictor) -> None:
    assert fitted.measures_by_its_draws
    images, _ = blobs(30, torch.Generator().manual_seed(3))
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fitted._draws), "observed", lambda self, batch: calls.append(batch))
        assert fitted(images).novelty is not None
    assert not calls


def test_novelty_of_mc_dropout_is_measured_without_dropout() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3))
    predictor = dubito.Predictor(dubito.mc_dropout(dubito.attach_head(network, "softmax")), samples=4)
    generator = torch.Generator().manual_seed(1)
    novelty = predictor.fit_novelty([blobs(600, generator)], [blobs(200, generator)])
    images, _ = blobs(20, generator)
    prediction = predictor(images)
    assert prediction.epistemic.min() > 0
    expected = novelty(Observer(network.eval(), novelty.layers)(images))
    torch.testing.assert_close(prediction.novelty, expected, atol=1e-4, rtol=1e-4)


def test_large_images_are_looked_at_a_few_at_a_time() -> None:
    most: list[int] = []
    network = nn.Sequential(nn.AvgPool2d(56), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    network[0].register_forward_hook(lambda module, images, output: most.append(len(images[0])))
    predictor = dubito.Predictor(dubito.attach_head(network, "softmax"))
    predictor.fit_novelty(torch.randn(60, 1, 224, 224), torch.randn(60, 1, 224, 224))
    assert 0 < max(most) <= images_at_once(224) < 60


def test_a_sample_takes_every_image_that_comes_by_equally_often() -> None:
    seeds, images, most = 400, 20, 5
    counts = torch.zeros(images)
    for seed in range(seeds):
        sample = _Sample(most, seed)
        for batch in torch.arange(images).split(3):
            sample.add(batch)
        assert len(sample.images.unique()) == most
        counts[sample.images] += 1
    share = most / images
    standard_error = math.sqrt(seeds * share * (1 - share))
    assert float((counts - seeds * share).abs().max()) < 5 * standard_error


def test_of_scores_that_are_alike_the_first_is_taken_and_none_that_entropy_beats() -> None:
    def tried(*means: float) -> list[Any]:
        return [(number, (), {"one": mean - 0.1, "two": mean + 0.1}) for number, mean in enumerate(means)]

    assert _chosen(tried(0.895, 0.90, 0.7, 0.5))[0] == 0
    assert _chosen(tried(0.88, 0.90, 0.895, 0.5))[0] == 1
    assert _chosen(tried(0.895, 0.90, 0.898))[0] == 1  # entropy, the last, beats the first
    assert _chosen(tried(0.895, 0.90, 0.91))[0] == 2


def test_the_last_layers_alone_can_be_looked_at() -> None:
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    images, held_out = torch.randn(300, 8), torch.randn(100, 8)

    def looked_at(last: int | None) -> set[str]:
        predictor = dubito.Predictor(dubito.attach_head(network, "softmax"))
        fitted = predictor.fit_novelty(images, held_out, last=last)
        return {layer for row in fitted.trial for layer in row["layers"]}

    assert looked_at(None) == looked_at(9) == {"input of 0", "input of 2"}
    assert looked_at(1) == {"input of 2"}
    with pytest.raises(OptionError, match="last is 0, but at least 1 layer"):
        looked_at(0)
