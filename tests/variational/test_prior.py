"""Priors: their densities, how they bind to a layer, and what they refuse."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate, optimize, stats
from torch.distributions import Normal, kl_divergence

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.variational.prior import (
    PRIORS,
    EmpiricalPrior,
    FanInPrior,
    GaussianPrior,
    LearnedPrior,
    LogUniformPrior,
    ScaleMixturePrior,
    make_prior,
)
from layer_zoo import FAMILIES, INDEPENDENT, KINDS, make_layer, randomize


def many_weights(prior, mean=0.3, std=0.2, size=200, posterior="std"):
    """A layer of size^2 equal weights: its KL is the mean of as many independent terms."""
    layer = dubito.BayesLinear(size, size, bias=False, prior=prior, posterior=posterior, dtype=torch.double)
    torch.nn.init.constant_(layer.weight_mean, mean)
    layer.set_std(std)
    return layer


def prior_of(layer, name="weight"):
    return layer.posteriors[name].prior


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Transpose" not in kind])
def test_fan_in_prior_has_the_gain_over_the_inputs_that_torch_counts(kind):
    layer = make_layer(kind, prior=FanInPrior(gain=2.0))
    fan_in = torch.nn.init._calculate_fan_in_and_fan_out(layer.weight_mean)[0]
    assert layer.posteriors["weight"].fan_in == fan_in
    assert prior_of(layer).std.item() == pytest.approx(2 / math.sqrt(fan_in), rel=1e-12)
    assert prior_of(layer, "bias").std.item() == 2.0
    assert prior_of(layer).mean.item() == prior_of(layer, "bias").mean.item() == 0.0


GAINS = {
    "Linear": (torch.nn.Linear, (64, 8), {}),
    "Conv2d": (torch.nn.Conv2d, (8, 8, 3), {"groups": 2}),
    "ConvTranspose1d": (torch.nn.ConvTranspose1d, (16, 4, 4), {"stride": 2}),
    "ConvTranspose2d": (torch.nn.ConvTranspose2d, (8, 2, 4), {"stride": 2, "padding": 1}),
    "ConvTranspose2d, kernel and stride differ": (torch.nn.ConvTranspose2d, (8, 2, 3), {"stride": 2, "groups": 2}),
    "ConvTranspose3d": (torch.nn.ConvTranspose3d, (8, 2, 2), {"stride": 2}),
    "ConvTranspose3d, dilated": (torch.nn.ConvTranspose3d, (8, 2, 2), {"dilation": 2}),
}


@pytest.mark.parametrize("name", GAINS)
def test_a_layer_drawn_from_its_fan_in_prior_keeps_the_scale_of_its_inputs(name):
    """The variance of outputs away from the borders, for inputs of variance 1, is gain^2."""
    torch.manual_seed(0)
    make, arguments, options = GAINS[name]
    plain = make(*arguments, **options, bias=False, dtype=torch.float64)
    prior = prior_of(dubito.to_bayesian(plain, prior=FanInPrior(gain=1.5)))
    shape = (4, arguments[0], *(12,) * (plain.weight.dim() - 2))
    means = []
    for _ in range(100):
        torch.nn.init.normal_(plain.weight, std=prior.std.item())
        output = plain(torch.randn(shape, dtype=torch.float64)).detach()
        inner = output[(..., *(slice(4, 4 + (size - 8) // 2 * 2) for size in output.shape[2:]))]  # whole strides
        means.append(inner.square().mean())
    means = torch.stack(means)
    error = means.std().item() / math.sqrt(len(means))
    assert error < 0.05 * 1.5**2
    assert means.mean().item() == pytest.approx(1.5**2, abs=5 * error)


def test_empirical_prior_is_centred_on_the_weights_with_their_root_mean_square():
    network = torch.nn.Linear(4, 3, dtype=torch.float64)
    layer = dubito.to_bayesian(network, prior="empirical")
    for name, weights in (("weight", network.weight), ("bias", network.bias)):
        torch.testing.assert_close(prior_of(layer, name).mean, weights.detach(), rtol=0, atol=0)
        assert prior_of(layer, name).std.item() == pytest.approx(weights.square().mean().sqrt().item(), rel=1e-12)
    assert prior_of(dubito.to_bayesian(network, prior=EmpiricalPrior(0.3)), "bias").std.item() == 0.3


def test_empirical_prior_of_a_zero_bias_is_not_a_point():
    network = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(network.bias)
    layer = dubito.to_bayesian(network, prior="empirical")
    assert prior_of(layer, "bias").std.item() == 1.0
    assert layer.kl_divergence().isfinite()


def test_empirical_prior_stays_where_the_weights_began():
    layer = dubito.to_bayesian(torch.nn.Linear(4, 3), prior="empirical")
    before = prior_of(layer).mean.clone()
    with torch.no_grad():
        layer.weight_mean.add_(1.0)
    torch.testing.assert_close(prior_of(layer).mean, before, rtol=0, atol=0)


@pytest.mark.parametrize("family", INDEPENDENT)
def test_learned_prior_has_the_smallest_kl_of_all_zero_mean_scales(family):
    torch.manual_seed(0)
    q = randomize(make_layer("Conv2d", prior="learned", posterior=family)).posteriors["weight"]
    normal = Normal(q.mean.detach(), q.variance.detach().sqrt())

    def kl_at(log_scale: float) -> float:
        return kl_divergence(normal, Normal(0.0, math.exp(log_scale))).sum().item()

    best = optimize.minimize_scalar(kl_at, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert q.kl_divergence().item() == pytest.approx(best.fun, rel=1e-10)
    assert math.exp(2 * best.x) == pytest.approx((normal.mean**2 + normal.variance).mean().item(), rel=1e-6)


def test_learned_scales_belong_to_one_parameter_each():
    torch.manual_seed(0)
    layers = [randomize(make_layer("Linear", prior="learned")) for _ in range(3)]
    with torch.no_grad():
        layers[1].weight_mean.mul_(20)
    together = dubito.kl_divergence(torch.nn.ModuleList(layers))
    apart = sum(q.kl_divergence() for layer in layers for q in layer.posteriors.values())
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prior", ["standard", "fan_in", "learned", "empirical", "log_uniform"])
def test_gradient_of_kl_agrees_with_finite_differences(prior, family):
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", prior=prior, posterior=family))
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
    normals = [Normal(q.mean, q.variance.sqrt()) for q in layer.posteriors.values()]
    scales = [(n.mean**2 + n.variance).mean().sqrt().detach() for n in normals]
    fixed = sum(kl_divergence(n, Normal(0.0, scale)).sum() for n, scale in zip(normals, scales, strict=True))
    expected = torch.autograd.grad(fixed, list(layer.parameters()))
    torch.testing.assert_close(torch.autograd.grad(layer.kl_divergence(), list(layer.parameters())), expected)


@pytest.mark.parametrize("family", INDEPENDENT)
def test_scale_mixture_kl_is_unbiased(family):
    torch.manual_seed(0)
    pi, std_1, std_2 = 0.3, 1.5, 0.1
    layer = many_weights(ScaleMixturePrior(pi, std_1, std_2), posterior=family)
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
    total = prior.log_prob(w)
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


@pytest.mark.parametrize("family", INDEPENDENT)
def test_log_uniform_kl_is_within_molchanovs_error_of_the_exact_integral(family):
    # The approximation's largest error over all alpha, found by this quadrature, is 0.0094 nats.
    layer = dubito.BayesLinear(1, 1, bias=False, prior="log_uniform", posterior=family, dtype=torch.double)
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
    with pytest.raises(OptionError, match="must be bound to weights"):
        prior.log_prob(torch.zeros(1))


def test_prior_of_one_layer_can_be_given_to_another():
    first = make_layer("Linear", prior=GaussianPrior(mean=0.5, std=0.1))
    second = make_layer("Linear", prior=prior_of(first))
    assert (prior_of(second).mean.item(), prior_of(second).std.item()) == (0.5, 0.1)
    assert len({id(prior_of(layer, name)) for layer in (first, second) for name in ("weight", "bias")}) == 4


def test_given_prior_object_is_not_changed_or_shared():
    prior = ScaleMixturePrior()
    layer = make_layer("Linear", prior=prior, dtype=torch.float16)
    assert prior_of(layer) is not prior
    assert prior.pi.dtype == torch.float64
    assert prior_of(layer).pi.dtype == torch.float16


@pytest.mark.parametrize("given", [0.0, -1.0, math.nan, math.inf])
def test_number_that_is_no_standard_deviation_is_refused(given):
    with pytest.raises(OptionError, match=rf"prior is {given!r}, but a standard deviation must be positive and finite"):
        make_prior(given)


def test_a_new_prior_is_one_line_in_the_table(monkeypatch):
    monkeypatch.setitem(PRIORS, "narrow", lambda: GaussianPrior(std=0.01))
    layer = dubito.BayesLinear(3, 2, prior="narrow")
    assert float(prior_of(layer).std) == pytest.approx(0.01)


@pytest.mark.parametrize("given", ["uniform", "", "Standard"])
def test_unknown_name_lists_the_valid_ones(given):
    with pytest.raises(OptionError, match=rf"prior is {given!r}, but must be one of 'standard', .*'log_uniform'"):
        make_prior(given)


@pytest.mark.parametrize("given", [True, None, [1.0]])
def test_anything_else_is_no_prior(given):
    with pytest.raises(OptionError, match="must be a standard deviation, a name or a Prior"):
        make_prior(given)


def test_prior_tensor_of_the_wrong_shape_is_refused_with_both_shapes():
    with pytest.raises(ShapeError, match=r"mean has shape \(5,\), but .* weights' shape \(4, 3\)"):
        make_layer("Linear", prior=GaussianPrior(mean=torch.zeros(5)))


@pytest.mark.parametrize(
    "prior", [GaussianPrior(mean=math.nan), GaussianPrior(std=0.0), FanInPrior(-1.0), EmpiricalPrior(0.0)]
)
def test_impossible_prior_is_refused_when_it_meets_a_layer(prior):
    with pytest.raises(OptionError, match=r"The prior's (mean|std) is .*, but must be"):
        make_layer("Linear", prior=prior)


@pytest.mark.parametrize("options", [{"pi": 0.0}, {"pi": 1.0}, {"std_1": 0.0}, {"std_2": -1.0}, {"pi": math.nan}])
def test_impossible_mixture_is_refused(options):
    with pytest.raises(OptionError, match="The scale mixture got"):
        ScaleMixturePrior(**options)


def test_log_uniform_log_density_falls_as_one_over_w():
    w = torch.tensor([0.1, 10.0], dtype=torch.float64)
    low, high = (LogUniformPrior().log_prob(value) for value in w)
    assert (low - high).item() == pytest.approx(math.log(100), rel=1e-12)
