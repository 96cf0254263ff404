"""The family `low_rank`: a Gaussian with covariance D + U U', against torch.distributions, and at work in a network."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

import dubito
from dubito.estimators import Local, Weight
from dubito.variational.families import LowRankPosterior
from dubito.variational.posterior import one_pass, posteriors
from dubito.variational.prior import GaussianPrior
from layer_zoo import KINDS, covariance_of, make_input, make_layer, output_moments, randomize


def make_posterior(prior=1.0) -> LowRankPosterior:
    torch.manual_seed(0)
    return randomize(LowRankPosterior(nn.Parameter(torch.zeros(2, 3, dtype=torch.float64)), prior=prior))


def truth(q: LowRankPosterior) -> LowRankMultivariateNormal:
    diagonal = torch.log1p(torch.exp(q.rho)).square().flatten()
    return LowRankMultivariateNormal(q.mean.flatten(), q.factor.flatten(1).T, diagonal)


def test_density_and_entropy_are_torch_distributions():
    q = make_posterior()
    for weights in torch.randn(5, 2, 3, dtype=torch.float64):
        torch.testing.assert_close(q.log_prob(weights), truth(q).log_prob(weights.flatten()))
    torch.testing.assert_close(q.entropy(), truth(q).entropy())
    dense = MultivariateNormal(q.mean.flatten(), covariance_of(q))
    torch.testing.assert_close(q.entropy(), dense.entropy())


@pytest.mark.parametrize("prior", [0.4, GaussianPrior(-0.3, 1.7), GaussianPrior(torch.arange(3.0), 0.5)], ids=repr)
def test_kl_and_its_gradient_are_torch_distributions(prior):
    q = make_posterior(prior)
    means, stds = (value.double().expand(2, 3).flatten() for value in (q.prior.mean, q.prior.std))
    expected = kl_divergence(truth(q), MultivariateNormal(means, torch.diag(stds.square())))
    torch.testing.assert_close(q.kl_divergence(), expected)
    found = torch.autograd.grad(q.kl_divergence(), list(q.parameters()))
    torch.testing.assert_close(found, torch.autograd.grad(expected, list(q.parameters())))


def test_learned_prior_is_the_best_scale():
    q = make_posterior("learned")
    second = (q.mean.square() + q.variance).mean().detach()
    best = MultivariateNormal(torch.zeros(6, dtype=torch.float64), second * torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(q.kl_divergence(), kl_divergence(truth(q), best))


def test_dependence_of_the_weights_costs_what_it_takes_from_the_entropy():
    """log-uniform: each weight's cost alone, plus the entropies of the parts less that of the whole."""
    q = make_posterior("log_uniform")
    alone = dubito.BayesLinear(3, 2, bias=False, prior="log_uniform", dtype=torch.float64)
    with torch.no_grad():
        alone.weight_mean.copy_(q.mean)
        alone.set_std(q.std.detach())
    total_correlation = torch.distributions.Normal(q.mean, q.std).entropy().sum() - truth(q).entropy()
    torch.testing.assert_close(q.kl_divergence(), alone.kl_divergence() + total_correlation)
    assert total_correlation > 0.1


def test_monte_carlo_form_agrees_with_the_closed_form():
    q = make_posterior(0.5)
    with torch.no_grad():
        draws = torch.stack([dubito.kl_divergence(q, samples=4) for _ in range(200)])
    standard_error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(q.kl_divergence().item(), abs=6 * standard_error)
    assert standard_error < 0.08 * q.kl_divergence().item()


def test_it_starts_nearly_diagonal_with_the_standard_deviation_asked_for():
    q = LowRankPosterior(nn.Parameter(torch.randn(30, 20, dtype=torch.float64)), std=0.25)
    torch.testing.assert_close(q.std, torch.full_like(q.mean, 0.25))
    covariance = covariance_of(q)
    assert (covariance - torch.diag(covariance.diag())).abs().max() <= 0.02 * 0.25**2 * (1 + 1e-9)
    assert q.factor.abs().min() > 0  # or the columns would never learn


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_a_layer_have_the_exact_mean_and_covariance(kind):
    """The output is linear in the noise, so that outputs of unit noise vectors give its covariance exactly."""
    torch.manual_seed(0)
    layer, x = randomize(make_layer(kind, posterior="low_rank")), make_input(kind)
    mean, covariance = output_moments(kind, layer, x)
    weight, bias = layer.posteriors["weight"], layer.posteriors["bias"]
    plain, x_in = layer.linear_map(x)

    def output(of_weight, of_bias):
        return plain(x_in, weight.draw(of_weight), bias.draw(of_bias)).flatten()

    none = [torch.zeros(q.noise_size, dtype=torch.float64) for q in (weight, bias)]
    torch.testing.assert_close(output(*none), mean)
    units = [torch.eye(q.noise_size, dtype=torch.float64) for q in (weight, bias)]
    root = [output(unit, none[1]) - mean for unit in units[0]] + [output(none[0], unit) - mean for unit in units[1]]
    torch.testing.assert_close(torch.stack(root).T @ torch.stack(root), covariance)


@pytest.mark.parametrize("estimator", ["local", "flipout", "weight"])
def test_a_layer_draws_its_weights_whichever_estimator_is_asked_for(estimator):
    """`local` and `flipout` are right for independent weights alone."""
    layer, x = make_layer("Linear", posterior="low_rank", estimator=estimator, initial_std=0.3), make_input("Linear", 5)
    with one_pass():
        drawn = layer(x)
        torch.testing.assert_close(drawn, x @ layer.weight.T + layer.bias)
    assert not torch.equal(layer(x), drawn)
    torch.testing.assert_close(layer.eval()(x), layer.mean_output(x))
    with dubito.estimator(layer, Weight(draws=2)):
        halves = layer(x[:1].expand(4, -1))
    assert torch.equal(halves[0], halves[1])
    assert not torch.equal(halves[0], halves[2])
    assert layer.train()._effective_estimator() == (Weight() if estimator != "weight" else layer.estimator)


def correlated_regression():
    """Correlated inputs, known noise: the exact posterior and the data that it is of."""
    torch.manual_seed(0)
    noise, prior_std, num_data = 0.5, 0.8, 60
    x = torch.randn(num_data, 2, dtype=torch.float64)
    x[:, 1] = 0.9 * x[:, 0] + 0.3 * x[:, 1]
    y = x @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64) + noise * torch.randn(num_data, 1, dtype=torch.float64)
    precision = x.T @ x / noise**2 + torch.eye(2, dtype=torch.float64) / prior_std**2
    mean = torch.linalg.solve(precision, x.T @ y / noise**2).T
    return x, y, noise, prior_std, mean, torch.linalg.inv(precision)


def test_training_finds_the_exact_posterior_where_it_is_in_the_family():
    """Two weights and two columns: any covariance. Mean field would be off by the correlation."""
    x, y, noise, prior_std, mean, covariance = correlated_regression()
    options = {"bias": False, "prior": prior_std, "initial_std": 0.1, "dtype": torch.float64}
    layer = dubito.BayesLinear(2, 1, **options, posterior="low_rank")
    (q,) = posteriors(layer).values()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.01 ** (1 / 800))
    design = x.T @ x / noise**2
    for _ in range(800):  # the expected log-likelihood is quadratic in the weights, so it needs no draws
        optimizer.zero_grad()
        spread = torch.diag(torch.nn.functional.softplus(q.rho).square().flatten())
        spread = spread + q.factor.flatten(1).T @ q.factor.flatten(1)
        misfit = ((y - x @ q.mean.T) ** 2).sum() / noise**2 / 2 + (design * spread).sum() / 2
        (misfit + layer.kl_divergence()).backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(q.mean.detach(), mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(covariance_of(q), covariance, rtol=0.01, atol=1e-4)
    assert covariance[0, 1].abs() > 0.5 * covariance.diag().prod().sqrt()


def test_the_free_energy_has_gradients_for_every_parameter():
    network = dubito.to_bayesian(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), posterior="low_rank")
    terms = dubito.ELBO(100, head="softmax")(network, torch.randn(16, 4), torch.randint(3, (16,)))
    terms.loss.backward()
    assert len(list(network.parameters())) == 12
    for name, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_state_dict_copies_conversion_and_prediction():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    network = randomize(dubito.to_bayesian(plain, posterior="low_rank", head="softmax"), high=0.3)
    loaded = dubito.to_bayesian(plain, posterior="low_rank", head="softmax", prior=3.0)
    loaded.load_state_dict(network.state_dict())
    images = torch.randn(6, 1, 4, 4)
    expected = dubito.predict(network, images, samples=6)
    assert (expected.epistemic > 0).all()
    assert torch.equal(dubito.kl_divergence(loaded), dubito.kl_divergence(network))
    for other in (loaded, copy.deepcopy(network)):
        torch.testing.assert_close(dubito.predict(other, images, samples=6).probs, expected.probs, rtol=0, atol=0)
    back = dubito.to_deterministic(network)
    assert [type(part) for part in back] == [type(part) for part in plain]
    torch.testing.assert_close(back(images), network.eval()(images))
    assert {p.dtype for p in network.double().parameters()} == {torch.float64}


def test_a_predictors_draws_have_the_posteriors_covariance():
    """One weight row: the logits of many draws, in antithetic pairs, against x' Sigma x."""
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", posterior="low_rank", bias=False))
    x = make_input("Linear", batch=1)
    mean, covariance = output_moments("Linear", layer, x)
    networks = dubito.Predictor(layer, samples=2000, head="softmax").networks()
    with torch.no_grad():
        outputs = torch.cat([network(x) for network in networks])
    torch.testing.assert_close(outputs.mean(0), mean)  # pairs of opposite noise
    deviations = outputs[::2] - mean
    products = deviations[:, :, None] * deviations[:, None, :]
    error = products.std(0) / math.sqrt(len(deviations))
    assert ((products.mean(0) - covariance).abs() < 6 * error).all()


def test_erased_weights_are_zero_in_every_draw_and_the_rest_stays():
    q = make_posterior()
    before = copy.deepcopy(q)
    gone = torch.tensor([[True, False, False], [False, True, False]])
    q.erase(gone)
    for _ in range(3):
        assert (q.draw()[gone] == 0).all()
    kept = ~gone.flatten()
    torch.testing.assert_close(covariance_of(q)[kept][:, kept], covariance_of(before)[kept][:, kept])
    assert q.kl_divergence().isfinite()
    assert dubito.kl_divergence(q, samples=2).isfinite()
    assert q.log_prob(q.draw()).isfinite()


def test_only_dependent_weights_change_the_estimator():
    assert make_layer("Linear")._effective_estimator() == Local()
