"""Epistemic uncertainty without bias: its expectation is the analytic variance, whatever the number of draws."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError
from dubito.heads import GaussianHead
from dubito.heads.split import Decomposition, Sampling
from dubito.prediction import Predictor, pool

REPLICATES = 40_000

# p = f(u) with u uniform, whose antithetic draw is 1 - u: the variance of p and the correlation of the two
CURVES = {
    "odd": (lambda u: u, 1 / 12, -1.0),
    "mixed": (lambda u: u**2, 4 / 45, -7 / 8),
    "even": (lambda u: (2 * u - 1) ** 2, 4 / 45, 1.0),
}


def draws_of(curve, samples: int, antithetic: bool, seed: int = 0) -> torch.Tensor:
    """(T, replicates, 2) probabilities."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(samples, REPLICATES, dtype=torch.float64, generator=generator)
    if antithetic:
        u[1::2] = 1 - u[0::2][: samples // 2]
    p = curve(u)
    return torch.stack([p, 1 - p], 2)


def assert_mean(values: torch.Tensor, expected: float) -> None:
    """Within 5 standard errors."""
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 5 * error + 1e-12


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("samples", [2, 3, 4, 10])
@pytest.mark.parametrize("sampling", ["independent", "antithetic"])
def test_its_expectation_is_the_analytic_variance(name, samples, sampling):
    curve, variance, correlation = CURVES[name]
    split = dubito.decompose(draws_of(curve, samples, sampling == "antithetic"), sampling=sampling)
    if samples == 2 and sampling == "antithetic":
        assert bool(split.epistemic_unbiased.isnan().all())
    else:
        assert_mean(split.epistemic_unbiased, variance)
        assert float(split.epistemic_unbiased.min()) >= 0
    if samples % 2 == 0:  # what the documentation says of the plug-in value
        r = correlation if sampling == "antithetic" else 0.0
        assert_mean(split.epistemic, variance * (1 - (1 + r) / samples))


def test_the_factor_for_independent_draws_is_wrong_for_antithetic_ones():
    curve, variance, _ = CURVES["mixed"]
    wrong = dubito.decompose(draws_of(curve, 4, antithetic=True)).epistemic_unbiased
    assert abs(float(wrong.mean()) - variance) > 20 * float(wrong.std()) / math.sqrt(REPLICATES)


@pytest.mark.parametrize("sampling", [one.value for one in Sampling])
def test_blocks_of_any_size_give_the_same(sampling):
    probs = draws_of(CURVES["mixed"][0], 7, antithetic=True)[:, :5]
    whole = dubito.decompose(probs, sampling=sampling)
    for sizes in ([1] * 7, [2, 5], [3, 3, 1], [5, 2]):
        split = Decomposition(sampling=sampling)
        for block in probs.split(sizes):
            split.update(block)
        torch.testing.assert_close(
            split.compute().epistemic_unbiased_per_class, whole.epistemic_unbiased_per_class, rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("sampling", ["independent", "antithetic", "exact"])
def test_identical_draws_have_exactly_none(sampling):
    split = dubito.decompose(torch.tensor([0.3, 0.7]).expand(6, 1, 2), sampling=sampling)
    assert split.epistemic_unbiased.tolist() == [0.0]


def test_an_unknown_sampling_is_refused():
    with pytest.raises(OptionError, match="sampling is 'paired', but must be one of 'independent', 'antithetic'"):
        dubito.decompose(torch.full((2, 1, 2), 0.5), sampling="paired")


def logistic_variance(mean: float, std: float) -> float:
    """Var sigmoid(z), z ~ N(mean, std^2), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    p = 1 / (1 + np.exp(-(mean + std * nodes)))
    weights = weights / weights.sum()
    return float(weights @ p**2 - (weights @ p) ** 2)


@pytest.mark.parametrize(("method", "samples"), [("weights", 3), ("weights", 4), ("weights", 10), ("local", 2)])
def test_predictions_over_many_seeds_have_the_variance_of_the_posterior(method, samples):
    layer = dubito.attach_head(dubito.BayesLinear(1, 2, bias=False, initial_std=0.8), "softmax")
    nn.init.constant_(layer.weight_mean, 0.0)
    with torch.no_grad():
        layer.weight_mean[0] += 1.5
    image = torch.ones(1, 1)
    found = [dubito.predict(layer, image, samples, method, seed=seed).epistemic_unbiased for seed in range(150)]
    assert_mean(torch.cat(found), logistic_variance(1.5, 0.8 * math.sqrt(2)))


def test_predictors_say_how_their_draws_depend_on_each_other():
    bayesian = dubito.BayesLinear(3, 2)
    dropping = dubito.mc_dropout(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)))
    both = dubito.mc_dropout(nn.Sequential(nn.Dropout(0.5), dubito.BayesLinear(3, 2)))
    x = torch.randn(4, 3)
    for network, method, expected in [
        (bayesian, "weights", "antithetic"),
        (bayesian, "local", "independent"),
        (bayesian, "moments", "exact"),
        (bayesian, "mean", "exact"),
        (dropping, "weights", "independent"),
        (both, "weights", "antithetic"),
        (nn.Linear(3, 2), "weights", "exact"),
    ]:
        predictor = Predictor(network, 6, method, head="softmax")
        assert predictor.sampling == expected
        split = dubito.decompose(predictor.draws(x), sampling=expected)
        torch.testing.assert_close(predictor(x).epistemic_unbiased, split.epistemic_unbiased)
        if expected == "exact":
            assert torch.equal(predictor(x).epistemic_unbiased, predictor(x).epistemic)


def test_one_pair_of_draws_leaves_it_open_and_a_point_estimate_has_none():
    model = dubito.attach_head(dubito.BayesLinear(3, 2), "softmax")
    for samples in (1, 2):
        assert bool(dubito.predict(model, torch.ones(1, 3), samples).epistemic_unbiased.isnan().all())
    assert dubito.predict(model, torch.ones(1, 3), 2, "mean").epistemic_unbiased.item() == 0
    assert dubito.predict(nn.Linear(3, 2), torch.ones(1, 3), 2, head="softmax").epistemic_unbiased.item() == 0


def test_regression_has_it_too():
    """f = w x is odd in the noise: every pair has the same mean, and the plug-in value is right on average."""
    layer = dubito.BayesLinear(1, 1, bias=False, initial_std=0.5)
    x = torch.full((1, 1), 2.0)
    found = [dubito.predict(layer, x, 4, head=GaussianHead(), seed=seed) for seed in range(150)]
    assert_mean(torch.cat([one.epistemic_unbiased for one in found]).flatten(), 1.0)
    assert_mean(torch.cat([one.epistemic for one in found]).flatten(), 1.0)


@pytest.mark.parametrize(("members", "samples"), [(2, 1), (2, 2), (3, 4), (5, 3)])
def test_an_ensemble_has_that_of_its_members_distribution(members, samples):
    """p = (u + v) / 2 with u uniform for each member and v for each draw: variance 1/48 + 1/48."""
    u = torch.rand(members, 1, REPLICATES, dtype=torch.float64)
    v = torch.rand(members, samples, REPLICATES, dtype=torch.float64)
    v[:, 1::2] = 1 - v[:, 0::2][:, : samples // 2]
    p = (u + v) / 2
    probs = torch.stack([p, 1 - p], 3)
    parts = [dubito.decompose(part, sampling="antithetic") for part in probs]
    assert_mean(pool(parts, [1.0] * members).epistemic_unbiased, 1 / 24)
    shares = list(range(1, members + 1))
    assert_mean(pool(parts, shares).epistemic_unbiased, 1 / 24)


def test_an_ensemble_of_point_estimates_has_the_sample_variance_of_its_members():
    members = [nn.Linear(3, 2) for _ in range(4)]
    x = torch.randn(5, 3)
    probs = torch.stack([member(x).softmax(1) for member in members]).detach()
    found = dubito.predict(dubito.ensemble(members, head="softmax"), x).epistemic_unbiased_per_class
    torch.testing.assert_close(found, probs.var(0))
