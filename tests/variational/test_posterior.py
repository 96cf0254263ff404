"""The posterior: what its standard deviation is, and that nothing in it overflows."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn

import dubito
from dubito.errors import OptionError
from dubito.softplus import inverse_softplus, log_softplus, softplus
from dubito.variational.families import FAMILIES as TABLE
from dubito.variational.families import AlphaPosterior, StdPosterior
from dubito.variational.posterior import PAPER_STD, Posterior
from layer_zoo import DTYPES, FAMILIES, INDEPENDENT, covariance_of, randomize

SIGMAS = (1e-8, 1e-4, 1e-2, 1.0, 30.0, 1e3)


def make_posterior(family: str, mean: float = 0.7, std: float = 0.3, size: int = 1) -> Posterior:
    return TABLE[family](nn.Parameter(torch.full((size,), mean, dtype=torch.float64)), std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_is_the_logarithm_of_one_plus_exp_over_the_whole_range(dtype):
    x = torch.linspace(-700, 700, 14_001, dtype=torch.float64).to(dtype)
    wide = x.double()
    truth = torch.where(wide > 0, wide + torch.log1p(torch.exp(-wide.abs())), torch.log1p(torch.exp(wide.clamp_max(0))))
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(softplus(x).double(), truth, rtol=tolerance, atol=torch.finfo(dtype).tiny)


def test_log_softplus_and_its_gradient_match_their_definitions_on_both_sides_of_the_switch():
    x = torch.cat([torch.linspace(-40, 40, 4001), torch.tensor([-12.0])]).double().requires_grad_()
    value = log_softplus(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    plain = x.detach()
    direct = torch.log1p(torch.exp(plain))
    torch.testing.assert_close(value, direct.log(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(gradient, torch.sigmoid(plain) / direct, rtol=1e-11, atol=0)


@pytest.mark.parametrize("y", [1e-30, 1e-8, 0.3, math.log(2), 5.0, 45.0, 1e3])
def test_inverse_softplus_inverts(y):
    given = torch.tensor(y, dtype=torch.float64)
    torch.testing.assert_close(softplus(inverse_softplus(given)), given, rtol=1e-13, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_std_means_what_it_says(dtype, sigma, family):
    torch.manual_seed(0)
    layer = dubito.BayesLinear(5, 4, initial_std=sigma, posterior=family, dtype=dtype)
    stds = torch.cat([q.variance.sqrt().flatten() for q in layer.posteriors.values()]).double()
    # A free parameter of about 50 is stored to a relative eps, and the deviation is exponential in half of it.
    tolerance = 60 * torch.finfo(dtype).eps
    torch.testing.assert_close(stds, torch.full_like(stds, sigma), rtol=tolerance, atol=0)
    smallest = 2 * torch.finfo(dtype).smallest_normal
    torch.testing.assert_close(layer.weight_std.double(), stds[:20].reshape(4, 5), rtol=tolerance, atol=smallest)


@pytest.mark.parametrize("family", FAMILIES)
def test_default_std_is_the_papers_log_variance_of_minus_ten(family):
    layer = dubito.BayesLinear(3, 2, posterior=family, dtype=torch.float64)
    torch.testing.assert_close(2 * layer.weight_std.log(), torch.full((2, 3), -10.0, dtype=torch.float64))
    assert math.exp(-5) == PAPER_STD


@pytest.mark.parametrize("family", INDEPENDENT)
def test_log_density_and_entropy_are_the_normal_distributions(family):
    q = make_posterior(family)
    points = torch.linspace(-2, 3, 11, dtype=torch.float64)
    truth = stats.norm(0.7, 0.3)
    found = [q.log_prob(point.view(1)).item() for point in points]
    assert found == pytest.approx(truth.logpdf(points.numpy()), rel=1e-12)
    assert q.entropy().item() == pytest.approx(float(truth.entropy()), rel=1e-12)
    area, _ = integrate.quad(lambda w: math.exp(q.log_prob(torch.tensor([w]).double()).item()), -3, 4)
    assert area == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("family", INDEPENDENT)
def test_density_and_entropy_of_several_weights_are_sums(family):
    torch.manual_seed(0)
    q = randomize(make_posterior(family, size=5))
    normal = torch.distributions.Normal(q.mean, q.variance.sqrt())
    weights = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(q.log_prob(weights), normal.log_prob(weights).sum())
    torch.testing.assert_close(q.entropy(), normal.entropy().sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draw_is_linear_in_its_noise_and_has_the_covariance_of_the_parameters(family):
    """Exact: the draws of unit noise vectors are the columns of a root of the covariance."""
    torch.manual_seed(0)
    q = randomize(TABLE[family](nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))))
    none = torch.zeros(q.noise_size, dtype=torch.float64)
    torch.testing.assert_close(q.draw(none), q.mean, rtol=0, atol=0)
    root = torch.stack([(q.draw(unit) - q.mean).flatten() for unit in torch.eye(q.noise_size, dtype=torch.float64)])
    torch.testing.assert_close(root.T @ root, covariance_of(q))
    torch.testing.assert_close(q.variance.flatten(), covariance_of(q).diag())
    torch.testing.assert_close(q.std.square(), q.variance)
    torch.testing.assert_close(q.log_std.exp(), q.std)
    noise = q.fresh_noise()
    torch.testing.assert_close((q.draw(noise) - q.mean).flatten(), noise @ root)
    torch.testing.assert_close(q.draw(noise) + q.draw(-noise), 2 * q.mean)
    assert q.independent == (family != "low_rank")


@pytest.mark.parametrize("family", INDEPENDENT)
def test_draws_without_given_noise_have_the_posteriors_mean_and_variance(family):
    torch.manual_seed(0)
    q = make_posterior(family, size=20_000)
    draws = torch.stack([q.draw() for _ in range(2)]).detach()
    assert draws.std().item() == pytest.approx(0.3, rel=6 / math.sqrt(80_000))
    assert draws.mean().item() == pytest.approx(0.7, abs=6 * 0.3 / math.sqrt(40_000))
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_noise_has_the_size_of_a_draw_and_follows_its_generator(family, dtype):
    q = TABLE[family](nn.Parameter(torch.ones(3, 2, dtype=dtype)))
    first, again = (q.fresh_noise(torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.shape == (q.noise_size,)
    assert first.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(first, again)
    drawn = q.draw(first)
    assert (drawn.shape, drawn.dtype) == (q.mean.shape, dtype)
    assert torch.equal(drawn, q.draw(again))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mean_is_the_very_parameter_and_freezes_the_others(family):
    mean = nn.Parameter(torch.ones(3), requires_grad=False)
    q = TABLE[family](mean)
    assert q.mean is mean
    q.frozen_like_mean()
    assert not any(p.requires_grad for p in q.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_draw_density_and_entropy_agree_with_finite_differences(family):
    torch.manual_seed(0)
    q = randomize(TABLE[family](nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))))
    noise, weights = q.fresh_noise(), torch.randn(2, 2, dtype=torch.float64)
    names = [name for name, _ in q.named_parameters()]

    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = q

        def forward(self):
            return q.draw(noise), q.log_prob(weights), q.entropy(), q.variance, q.log_std

    def values(*parameters):
        return torch.func.functional_call(whole, {f"q.{n}": p for n, p in zip(names, parameters, strict=True)}, ())

    whole = All()
    assert torch.autograd.gradcheck(values, [p.detach().clone().requires_grad_() for p in q.parameters()])


def test_the_paper_s_family_is_the_product_of_alpha_and_the_squared_mean():
    q = AlphaPosterior(nn.Parameter(torch.tensor([-2.0, 0.5])))
    log_alpha = torch.tensor([0.3, -4.0])
    with torch.no_grad():
        q.log_alpha.copy_(log_alpha)
    torch.testing.assert_close(q.variance, log_alpha.exp() * q.mean.detach() ** 2)


@pytest.mark.parametrize("prior", ["standard", "learned", "mixture", "log_uniform"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_finite_at_zero_means_and_extreme_stds(dtype, family, prior):
    torch.manual_seed(0)
    options = {"posterior": family, "prior": prior, "dtype": dtype}
    layer = dubito.BayesLinear(3, 2, **options)
    x = torch.randn(4, 3).to(dtype)
    smallest = torch.finfo(dtype).smallest_normal
    # At mu = 1e-3 and sigma = 1e3, alpha's true gradient sigma^2 / mu = 1e9 is more than float16 can hold.
    for mean in (0.0, smallest / 4, -1e-7, 1.0) if dtype == torch.float16 else (0.0, smallest / 4, -1e-7, 1e-3, 1.0):
        for sigma in SIGMAS:
            nn.init.constant_(layer.weight_mean, mean)
            nn.init.constant_(layer.bias_mean, mean)
            layer.set_std(sigma)
            for value in (layer.weight_std.float().mean(), layer.kl_divergence() / 1e3, layer(x).float().mean()):
                layer.zero_grad()
                value.backward()
                assert value.isfinite(), (mean, sigma)
                for name, parameter in layer.named_parameters():
                    gradient = parameter.grad
                    assert gradient is None or gradient.isfinite().all(), (name, mean, sigma)
            assert layer.weight_mean.grad is not None


@pytest.mark.parametrize("family", INDEPENDENT)
def test_half_precision_kl_is_that_of_the_same_posterior_in_double_precision(family):
    torch.manual_seed(0)
    layer = dubito.BayesLinear(8, 8, posterior=family, dtype=torch.float16)
    with torch.no_grad():
        layer.weight_mean[:4] = 0
    layer.set_std(0.1)
    q = [(q.mean.double(), q.std.double()) for q in layer.posteriors.values()]
    normals = [torch.distributions.Normal(mean, std) for mean, std in q]
    truth = sum(torch.distributions.kl_divergence(n, torch.distributions.Normal(0.0, 1.0)).sum() for n in normals)
    assert layer.kl_divergence().item() == pytest.approx(truth.item(), rel=2e-3)


@pytest.mark.parametrize("given", [0.0, -1.0, math.nan, math.inf])
def test_impossible_standard_deviation_is_refused_with_its_value(given):
    with pytest.raises(OptionError, match=rf"standard deviation is {given!r}, but must be a positive"):
        dubito.BayesLinear(2, 2, initial_std=given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_of_zero_does_not_become_huge_at_the_first_step(dtype):
    """alpha: sigma = sqrt(alpha) |mu|, so with log alpha at most 8 a step to mu = 0.001 gives sigma = 0.001 exp(4)."""
    q = AlphaPosterior(nn.Parameter(torch.tensor([0.0, 0.5], dtype=dtype)))
    with torch.no_grad():
        q.mean[0] = 1e-3
    moved = q.std.detach().double()
    expected = torch.tensor([1e-3 * math.exp(4), PAPER_STD], dtype=torch.float64)
    torch.testing.assert_close(moved, expected, rtol=4 * torch.finfo(dtype).eps * 20, atol=0)


def test_a_weight_without_spread_has_a_finite_density_at_its_mean():
    q = StdPosterior(nn.Parameter(torch.zeros(1)))
    q.erase(torch.ones(1, dtype=torch.bool))
    density = q.log_prob(torch.zeros(1))
    torch.testing.assert_close(density, torch.tensor(1000 - math.log(2 * math.pi) / 2))
    (gradient,) = torch.autograd.grad(density, q.mean)
    assert gradient.item() == 0


def test_log_softplus_has_derivatives_forward():
    x = torch.linspace(-20, 20, 41, dtype=torch.float64)
    _, forward = torch.func.jvp(log_softplus, (x,), (torch.ones_like(x),))
    backward = torch.func.vmap(torch.func.grad(log_softplus))(x)
    torch.testing.assert_close(forward, backward, rtol=1e-14, atol=0)


def test_an_unknown_family_lists_the_known_ones():
    with pytest.raises(OptionError, match="posterior is 'full', but must be one of 'std', 'alpha', 'low_rank'"):
        dubito.BayesLinear(2, 2, posterior="full")


def test_a_family_of_ones_own_can_be_given():
    class Wide(StdPosterior):
        name = "wide"

        @property
        def _wide_std(self):
            return 2 * super()._wide_std

    layer = dubito.BayesLinear(2, 2, posterior=Wide, initial_std=0.5)
    torch.testing.assert_close(layer.weight_std, torch.full((2, 2), 1.0))
