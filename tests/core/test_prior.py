"""Priors: their densities, how they bind to a layer, and what they refuse."""

import math
from itertools import pairwise

import pytest
import torch
from layer_zoo import KINDS, PARAMETERIZATIONS, make_layer, randomize
from scipy import integrate, optimize, stats
from torch.distributions import Normal, kl_divergence

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.variational.prior import (
    EmpiricalPrior,
    FanInPrior,
    GaussianPrior,
    LearnedPrior,
    LogUniformPrior,
    ScaleMixturePrior,
    make_prior,
)


def many_weights(prior, mean=0.3, std=0.2, size=200, parameterization="std"):
    """A layer of size^2 equal weights: its KL is the mean of as many independent terms."""
    layer = dubito.BayesLinear(
        size, size, bias=False, prior=prior, parameterization=parameterization, dtype=torch.double
    )
    torch.nn.init.constant_(layer.weight_mean, mean)
    layer.set_std(std)
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_fan_in_prior_has_unit_gain_over_the_inputs_that_torch_counts(kind):
    layer = make_layer(kind, prior=FanInPrior(gain=2.0))
    fan_in = torch.nn.init._calculate_fan_in_and_fan_out(layer.weight_mean)[0]
    assert layer.prior.weight_std.item() == pytest.approx(2 / math.sqrt(fan_in), rel=1e-12)
    assert layer.prior.bias_std.item() == 2.0
    assert layer.prior.weight_mean.item() == layer.prior.bias_mean.item() == 0.0


def test_empirical_prior_is_centred_on_the_weights_with_their_root_mean_square():
    network = torch.nn.Linear(4, 3, dtype=torch.float64)
    prior = dubito.to_bayesian(network, prior="empirical").prior
    torch.testing.assert_close(prior.weight_mean, network.weight.detach(), rtol=0, atol=0)
    torch.testing.assert_close(prior.bias_mean, network.bias.detach(), rtol=0, atol=0)
    assert prior.weight_std.item() == pytest.approx(network.weight.square().mean().sqrt().item(), rel=1e-12)
    assert dubito.to_bayesian(network, prior=EmpiricalPrior(0.3)).prior.bias_std.item() == 0.3


def test_empirical_prior_of_a_zero_bias_is_not_a_point():
    network = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(network.bias)
    layer = dubito.to_bayesian(network, prior="empirical")
    assert layer.prior.bias_std.item() == 1.0
    assert layer.kl_divergence().isfinite()


def test_empirical_prior_stays_where_the_weights_began():
    layer = dubito.to_bayesian(torch.nn.Linear(4, 3), prior="empirical")
    before = layer.prior.weight_mean.clone()
    with torch.no_grad():
        layer.weight_mean.add_(1.0)
    torch.testing.assert_close(layer.prior.weight_mean, before, rtol=0, atol=0)


@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_learned_prior_has_the_smallest_kl_of_all_zero_mean_scales(parameterization):
    torch.manual_seed(0)
    layer = randomize(make_layer("Conv2d", prior="learned", parameterization=parameterization))
    normals = [Normal(q.mean.detach(), q.variance.detach().sqrt()) for q in layer.posteriors().values()]

    def kl_at(log_scale: float) -> float:
        return sum(kl_divergence(q, Normal(0.0, math.exp(log_scale))).sum().item() for q in normals)

    best = optimize.minimize_scalar(kl_at, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert layer.kl_divergence().item() == pytest.approx(best.fun, rel=1e-10)
    second_moments = torch.cat([(q.mean**2 + q.stddev**2).flatten() for q in normals])
    assert math.exp(2 * best.x) == pytest.approx(second_moments.mean().item(), rel=1e-6)


def test_learned_scales_belong_to_one_layer_each():
    torch.manual_seed(0)
    layers = [randomize(make_layer("Linear", prior="learned")) for _ in range(3)]
    with torch.no_grad():
        layers[1].weight_mean.mul_(20)
    together = dubito.kl_divergence(torch.nn.ModuleList(layers))
    torch.testing.assert_close(together, sum(layer.kl_divergence() for layer in layers), rtol=1e-12, atol=0)


@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
@pytest.mark.parametrize("prior", ["standard", "fan_in", "learned", "empirical", "log_uniform"])
def test_gradient_of_kl_agrees_with_finite_differences(prior, parameterization):
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", prior=prior, parameterization=parameterization))
    names = [name for name, _ in layer.named_parameters()]

    class Divergence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self):
            return dubito.kl_divergence(self.layer)

    def kl(*parameters):
        named = {f"layer.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Divergence(), named, ())

    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(kl, parameters)


def test_learned_prior_gradient_equals_that_at_the_fixed_best_scale():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", prior="learned"))
    q = {name: Normal(q.mean, q.variance.sqrt()) for name, q in layer.posteriors().items()}
    scale = torch.cat([(n.mean**2 + n.variance).flatten() for n in q.values()]).mean().sqrt().detach()
    fixed = sum(kl_divergence(n, Normal(0.0, scale)).sum() for n in q.values())
    expected = torch.autograd.grad(fixed, list(layer.parameters()))
    torch.testing.assert_close(torch.autograd.grad(layer.kl_divergence(), list(layer.parameters())), expected)


@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_scale_mixture_kl_is_unbiased(parameterization):
    torch.manual_seed(0)
    pi, std_1, std_2 = 0.3, 1.5, 0.1
    layer = many_weights(ScaleMixturePrior(pi, std_1, std_2), parameterization=parameterization)
    q = stats.norm(0.3, 0.2)

    def log_p(w):
        return math.log(pi * stats.norm.pdf(w, 0, std_1) + (1 - pi) * stats.norm.pdf(w, 0, std_2))

    bounds = (0.3 - 12 * 0.2, 0.3 + 12 * 0.2)
    expectation = integrate.quad(lambda w: q.pdf(w) * log_p(w), *bounds, epsabs=1e-11, limit=200)[0]
    second = integrate.quad(lambda w: q.pdf(w) * log_p(w) ** 2, *bounds, epsabs=1e-11, limit=200)[0]
    count = layer.weight_mean.numel()
    standard_error = math.sqrt((second - expectation**2) / count)
    estimate = layer.kl_divergence().item() / count
    assert abs(estimate - (-q.entropy() - expectation)) < 5 * standard_error
    assert standard_error < 0.01


def test_scale_mixture_log_density_is_the_mixtures():
    prior = ScaleMixturePrior(0.25, 2.0, 0.05)
    w = torch.tensor([-30.0, -1.0, 0.0, 0.01, 4.0], dtype=torch.float64)
    density = 0.25 * stats.norm.pdf(w, 0, 2.0) + 0.75 * stats.norm.pdf(w, 0, 0.05)
    total = ScaleMixturePrior.log_prob([prior], [{"weight": w}])
    assert total.item() == pytest.approx(sum(map(math.log, density)), rel=1e-12)


def exact_log_uniform_kl(log_alpha: float) -> float:
    """KL[N(1, alpha) || c / |w|] by quadrature, with the c for which it vanishes as alpha grows."""
    std = math.exp(log_alpha / 2)

    def integrand(z):
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) * math.log(max(abs(1 + std * z), 1e-300) / std)

    pole = -1 / std
    cuts = sorted({-12.0, 12.0, max(-12.0, min(12.0, pole))})
    expected_log = sum(integrate.quad(integrand, a, b, limit=400, epsabs=1e-10)[0] for a, b in pairwise(cuts))
    return expected_log + (0.5772156649015329 + math.log(2)) / 2


@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_log_uniform_kl_is_within_molchanovs_error_of_the_exact_integral(parameterization):
    # The approximation's largest error over all alpha, found by this quadrature, is 0.0094 nats.
    layer = dubito.BayesLinear(
        1, 1, bias=False, prior="log_uniform", parameterization=parameterization, dtype=torch.double
    )
    torch.nn.init.constant_(layer.weight_mean, 0.05)
    for log_alpha in torch.linspace(-10, 10, 41).tolist():
        layer.set_std(0.05 * math.exp(log_alpha / 2))
        assert layer.kl_divergence().item() == pytest.approx(exact_log_uniform_kl(log_alpha), abs=0.0095)


def test_log_uniform_kl_vanishes_as_alpha_grows():
    layer = many_weights("log_uniform", mean=1e-6, std=1e3, size=3)
    assert 0 <= layer.kl_divergence().item() < 1e-12


def test_log_uniform_kl_depends_on_alpha_alone():
    values = [
        many_weights("log_uniform", mean=m, std=0.5 * m, size=2).kl_divergence().item() for m in (0.01, 1.0, 50.0)
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-10)


def test_log_uniform_monte_carlo_form_has_the_same_constant():
    torch.manual_seed(0)
    layer = many_weights("log_uniform", mean=0.4, std=0.4)
    count = layer.weight_mean.numel()
    draws = torch.stack([layer.kl_divergence(samples=1) / count for _ in range(20)])
    standard_error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(exact_log_uniform_kl(0.0), abs=6 * standard_error)
    assert standard_error < 0.003


def test_learned_prior_has_no_monte_carlo_form_and_says_so():
    with pytest.raises(OptionError, match="only available in closed form: leave out samples"):
        dubito.BayesLinear(2, 2, prior=LearnedPrior()).kl_divergence(samples=1)


@pytest.mark.parametrize("prior", [FanInPrior(), EmpiricalPrior()])
def test_prior_without_a_layer_has_no_density_and_says_so(prior):
    with pytest.raises(OptionError, match="must be bound to a layer"):
        type(prior).log_prob([prior], [{"weight": torch.zeros(1)}])


def test_prior_of_one_layer_can_be_given_to_another():
    first = make_layer(
        "Linear", prior=GaussianPrior(mean={"weight": 0.5, "bias": -1.0}, std={"weight": 0.1, "bias": 2.0})
    )
    second = make_layer("Linear", prior=first.prior)
    assert second.prior.weight_mean.item() == 0.5
    assert second.prior.bias_std.item() == 2.0
    assert second.prior is not first.prior


def test_given_prior_object_is_not_changed_or_shared():
    prior = ScaleMixturePrior()
    layer = make_layer("Linear", prior=prior, dtype=torch.float16)
    assert layer.prior is not prior
    assert prior.pi.dtype == torch.float64
    assert layer.prior.pi.dtype == torch.float16


@pytest.mark.parametrize("given", [0.0, -1.0, math.nan, math.inf])
def test_number_that_is_no_standard_deviation_is_refused(given):
    with pytest.raises(OptionError, match=rf"prior is {given!r}, but a standard deviation must be positive and finite"):
        make_prior(given)


@pytest.mark.parametrize("given", ["uniform", "", "Standard"])
def test_unknown_name_lists_the_valid_ones(given):
    with pytest.raises(OptionError, match=rf"prior is {given!r}, but must be one of 'standard', .*'log_uniform'"):
        make_prior(given)


@pytest.mark.parametrize("given", [True, None, [1.0]])
def test_anything_else_is_no_prior(given):
    with pytest.raises(OptionError, match="must be a standard deviation, a name or a Prior"):
        make_prior(given)


def test_prior_tensor_of_the_wrong_shape_is_refused_with_both_shapes():
    with pytest.raises(ShapeError, match=r"mean has shape \(5,\), but .* weight's shape \(4, 3\)"):
        make_layer("Linear", prior=GaussianPrior(mean=torch.zeros(5)))


@pytest.mark.parametrize(
    "prior", [GaussianPrior(mean=math.nan), GaussianPrior(std=0.0), FanInPrior(-1.0), EmpiricalPrior(0.0)]
)
def test_impossible_prior_is_refused_when_it_meets_a_layer(prior):
    with pytest.raises(OptionError, match=r"The prior's (mean|std) for the weight is .*, but must be"):
        make_layer("Linear", prior=prior)


def test_mapping_without_the_bias_is_refused():
    with pytest.raises(OptionError, match="has values for weight, but the layer also needs one for bias"):
        make_layer("Linear", prior=GaussianPrior(std={"weight": 1.0}))


@pytest.mark.parametrize("options", [{"pi": 0.0}, {"pi": 1.0}, {"std_1": 0.0}, {"std_2": -1.0}, {"pi": math.nan}])
def test_impossible_mixture_is_refused(options):
    with pytest.raises(OptionError, match="The scale mixture got"):
        ScaleMixturePrior(**options)


def test_log_uniform_log_density_falls_as_one_over_w():
    w = torch.tensor([0.1, 10.0], dtype=torch.float64)
    low, high = (LogUniformPrior.log_prob([], [{"weight": value}]) for value in w)
    assert (low - high).item() == pytest.approx(math.log(100), rel=1e-12)
