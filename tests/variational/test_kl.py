"""KL[q || p] against torch.distributions, and what counts how often."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import dubito
from dubito.errors import NonFiniteError, OptionError
from dubito.variational.prior import EmpiricalPrior, FanInPrior, GaussianPrior
from layer_zoo import DTYPES, INDEPENDENT, KINDS, make_layer, randomize

GAUSSIAN_PRIORS = {
    "number": 0.3,
    "standard": "standard",
    "mean and std": GaussianPrior(mean=-0.4, std=1.7),
    "tensors": GaussianPrior(mean=torch.linspace(-1, 1, 4).view(4, 1), std=torch.linspace(0.1, 2, 3)),
    "fan_in": FanInPrior(1.4),
    "empirical": "empirical",
    "empirical with std": EmpiricalPrior(0.2),
}


def normal(mean: float, std: float) -> Normal:
    return Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))


def prior_of(name: str, layer: nn.Module) -> dict[str, Normal]:
    """The prior as torch.distributions, from its definition; `layer` still has the weights that it was made with."""
    if name in ("number", "standard"):
        return dict.fromkeys(("weight", "bias"), normal(0.0, 0.3 if name == "number" else 1.0))
    if name == "mean and std":
        return {"weight": normal(-0.4, 1.7), "bias": normal(-0.4, 1.7)}
    if name == "tensors":
        return {"weight": Normal(torch.linspace(-1, 1, 4).view(4, 1).double(), torch.linspace(0.1, 2, 3).double())}
    if name == "fan_in":
        return {"weight": normal(0.0, 1.4 / math.sqrt(3)), "bias": normal(0.0, 1.4)}
    means = {"weight": layer.weight_mean.detach().clone(), "bias": layer.bias_mean.detach().clone()}
    if name == "empirical":
        return {key: Normal(mean, mean.square().mean().sqrt()) for key, mean in means.items()}
    return {key: Normal(mean, torch.full_like(mean, 0.2)) for key, mean in means.items()}


def make_with_prior(name: str, family: str) -> nn.Module:
    """Tensors fit the weight alone."""
    return make_layer("Linear", prior=GAUSSIAN_PRIORS[name], posterior=family, bayesian_bias=name != "tensors")


def reference_kl(layer: nn.Module, priors: dict[str, Normal]) -> torch.Tensor:
    posteriors = {"weight": Normal(layer.weight_mean, layer.weight_std)}
    if layer.bias_std is not None:
        posteriors["bias"] = Normal(layer.bias_mean, layer.bias_std)
    return sum(torch.distributions.kl_divergence(q, priors[name]).sum() for name, q in posteriors.items())


@pytest.mark.parametrize("family", INDEPENDENT)
@pytest.mark.parametrize("name", GAUSSIAN_PRIORS)
def test_closed_form_is_torch_distributions_posterior_against_prior(name, family):
    torch.manual_seed(0)
    layer = make_with_prior(name, family)
    priors = prior_of(name, layer)
    randomize(layer)
    expected = reference_kl(layer, priors)
    assert layer.kl_divergence().item() == pytest.approx(expected.item(), rel=1e-6)
    parameters = [p for q in layer.posteriors.values() for p in q.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(layer.kl_divergence(), parameters),
        torch.autograd.grad(expected, parameters),
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_a_true_sum_for_every_layer(kind):
    torch.manual_seed(0)
    layer = randomize(make_layer(kind, prior=0.5))
    expected = reference_kl(layer, {"weight": normal(0.0, 0.5), "bias": normal(0.0, 0.5)})
    assert layer.kl_divergence().item() == pytest.approx(expected.item(), rel=1e-12)


def test_direction_is_posterior_against_prior():
    layer = dubito.BayesLinear(1, 1, bias=False, initial_std=0.1, prior=1.0, dtype=torch.float64)
    nn.init.zeros_(layer.weight_mean)
    forward, reverse = math.log(10) + 0.005 - 0.5, -math.log(10) + 50 - 0.5
    assert layer.kl_divergence().item() == pytest.approx(forward, rel=1e-12)
    assert forward != pytest.approx(reverse, rel=0.5)


def test_posterior_equal_to_its_prior_has_divergence_zero():
    layer = make_layer("Conv2d", prior=GaussianPrior(mean=0.25, std=0.5), initial_std=0.5)
    for mean in (layer.weight_mean, layer.bias_mean):
        nn.init.constant_(mean, 0.25)
    assert layer.kl_divergence().item() == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize(
    ("name", "family"), [*((name, "std") for name in GAUSSIAN_PRIORS), ("standard", "alpha"), ("empirical", "alpha")]
)
def test_monte_carlo_form_of_equation_3_agrees_with_the_closed_form(name, family):
    torch.manual_seed(0)
    layer = randomize(make_with_prior(name, family), low=0.2)
    with torch.no_grad():
        draws = torch.stack([layer.kl_divergence(samples=4) for _ in range(200)])
    standard_error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(layer.kl_divergence().item(), abs=6 * standard_error)
    assert standard_error < 0.08 * layer.kl_divergence().item()


def test_monte_carlo_form_averages_its_samples():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", prior=0.5))
    with torch.no_grad():
        variances = {n: torch.stack([layer.kl_divergence(samples=n) for _ in range(150)]).var() for n in (1, 16)}
    # A variance from 150 draws has a relative standard error of 12 %, their ratio 16 %.
    assert (variances[1] / variances[16]).item() == pytest.approx(16, rel=0.8)


@pytest.mark.parametrize("prior", [0.5, "mixture"])
def test_gradient_of_the_monte_carlo_form_is_unbiased(prior):
    torch.manual_seed(0)
    layer = dubito.BayesLinear(100, 100, bias=False, prior=prior, initial_std=0.3, dtype=torch.float64)
    nn.init.constant_(layer.weight_mean, 0.2)

    def mean_gradient(samples):
        total = sum(torch.autograd.grad(layer.kl_divergence(samples=samples), layer.weight_mean)[0] for _ in range(20))
        return (total / 20).mean().item(), (total / 20).std().item() / 100

    sampled, error = mean_gradient(1)
    if prior == "mixture":
        expected, other = mean_gradient(None)
        assert sampled == pytest.approx(expected, abs=6 * math.hypot(error, other))
    else:
        assert sampled == pytest.approx(0.2 / 0.25, abs=6 * error)


def deep_network(depth: int, prior="standard") -> nn.Sequential:
    return nn.Sequential(*[randomize(make_layer("Linear", prior=prior)) for _ in range(depth)])


@pytest.mark.parametrize("prior", ["standard", "fan_in", "learned", "log_uniform", "empirical"])
def test_network_has_the_sum_over_its_layers_not_their_mean(prior):
    torch.manual_seed(0)
    network = deep_network(5, prior)
    torch.testing.assert_close(
        dubito.kl_divergence(network), sum(layer.kl_divergence() for layer in network), rtol=1e-12, atol=0
    )


def test_network_of_mixed_kinds_has_the_sum_over_its_layers():
    torch.manual_seed(0)
    layers = [
        randomize(make_layer(kind, prior=prior, posterior=family, bayesian_bias=bias))
        for kind, prior, family, bias in zip(
            KINDS,
            [0.1, "fan_in", "learned", "log_uniform", "empirical", GaussianPrior(0.3, 0.2), 2.0],
            ["std", "alpha", "low_rank"] * 2 + ["std"],
            [True, False, True, True, False, True, False],
            strict=True,
        )
    ]
    layers.append(randomize(make_layer("Linear", dtype=torch.float32)))
    total = dubito.kl_divergence(nn.Sequential(nn.Sequential(*layers), nn.ReLU(), nn.Linear(3, 3)))
    assert total.item() == pytest.approx(sum(layer.kl_divergence().item() for layer in layers), rel=1e-6)


@pytest.mark.parametrize("prior", ["standard", "fan_in", GaussianPrior(mean=0.5, std=0.3), "learned"])
def test_small_posteriors_have_the_divergences_and_gradients_that_they_have_alone(prior):
    """Several are joined if their priors are equal; a frozen one among them stays so."""
    network = randomize(nn.Sequential(*(dubito.BayesLinear(size, 3, prior=prior) for size in (1, 3, 5))).double())
    network[1].weight_mean.requires_grad_(False)
    learning = [p for p in network.parameters() if p.requires_grad]
    together = dubito.kl_divergence(network)
    apart = sum(q.kl_divergence() for layer in network for q in layer.posteriors.values())
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=0)
    for joined, alone in zip(*(torch.autograd.grad(kl, learning) for kl in (together, apart)), strict=True):
        torch.testing.assert_close(joined, alone, rtol=1e-12, atol=0)


def test_shared_layer_counts_once():
    layer = randomize(make_layer("Linear"))
    network = nn.ModuleDict({"first": layer, "again": layer, "deeper": nn.Sequential(layer)})
    assert torch.equal(dubito.kl_divergence(network), layer.kl_divergence())


def test_tied_posterior_counts_once():
    torch.manual_seed(0)
    first, second = (randomize(make_layer("Linear", bias=False)) for _ in range(2))
    second.posteriors["weight"] = first.posteriors["weight"]
    assert torch.equal(dubito.kl_divergence(nn.Sequential(first, second)), first.kl_divergence())


def test_tied_weight_leaves_the_biases_to_be_counted_apart():
    torch.manual_seed(0)
    first, second = (randomize(make_layer("Linear")) for _ in range(2))
    second.posteriors["weight"] = first.posteriors["weight"]
    bias = torch.distributions.kl_divergence(Normal(second.bias_mean, second.bias_std), normal(0.0, 1.0)).sum()
    torch.testing.assert_close(dubito.kl_divergence(nn.Sequential(first, second)), first.kl_divergence() + bias)


def test_weights_that_share_only_their_mean_are_two_random_variables():
    torch.manual_seed(0)
    first, second = (randomize(make_layer("Linear", bias=False)) for _ in range(2))
    second.posteriors["weight"].mean = first.weight_mean
    both = first.kl_divergence() + second.kl_divergence()
    torch.testing.assert_close(dubito.kl_divergence(nn.Sequential(first, second)), both)


def test_bias_without_a_posterior_is_no_part_of_it():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", bayesian_bias=False))
    expected = reference_kl(layer, {"weight": normal(0.0, 1.0)})
    nn.init.constant_(layer.bias_mean, 100.0)
    assert layer.kl_divergence().item() == pytest.approx(expected.item(), rel=1e-12)
    assert torch.autograd.grad(layer.kl_divergence(), layer.bias_mean, allow_unused=True) == (None,)


def test_network_without_bayesian_layers_has_divergence_zero():
    assert dubito.kl_divergence(nn.Linear(2, 2)).item() == 0
    assert dubito.kl_divergence(nn.ReLU()).item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", ["standard", "learned", "mixture", "log_uniform"])
def test_half_precision_gives_a_finite_single_precision_result(prior, dtype):
    torch.manual_seed(0)
    layer = dubito.BayesLinear(300, 300, prior=prior, dtype=dtype)
    total = layer.kl_divergence()
    assert total.isfinite()
    assert total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = copy.deepcopy(layer).double().kl_divergence().item()
    assert total.item() == pytest.approx(exact, rel=0.02)


def test_nan_parameter_is_named_in_the_error():
    network = nn.Sequential(dubito.BayesLinear(2, 2), dubito.BayesLinear(2, 2))
    with torch.no_grad():
        network[1].weight_mean[0, 0] = math.nan
    with pytest.raises(
        NonFiniteError, match=r"KL divergence is nan: NaN or infinite values in 1\.posteriors\.weight\.mean;"
    ):
        dubito.kl_divergence(network)


def test_overflow_of_finite_parameters_says_that_they_are_too_large():
    layer = dubito.BayesLinear(2, 2)
    nn.init.constant_(layer.weight_mean, 1e30)
    with pytest.raises(NonFiniteError, match="KL divergence is inf: every parameter is finite, so some are too large"):
        layer.kl_divergence()


@pytest.mark.parametrize("samples", [0, -3])
def test_no_samples_are_refused(samples):
    with pytest.raises(OptionError, match=rf"samples is {samples}, but must be at least 1"):
        dubito.kl_divergence(dubito.BayesLinear(2, 2), samples=samples)


def test_kl_of_millions_of_weights_is_exact_to_the_rounding_of_its_terms():
    """A posterior equal to its prior has KL 0; float32 sums of 11.8 million nats are known to 1 nat each."""
    layer = dubito.BayesConv2d(512, 512, 3, bias=False, prior=math.exp(-5))
    nn.init.zeros_(layer.weight_mean)
    assert abs(layer.kl_divergence().item()) < 8
    with torch.no_grad():
        assert abs(layer.kl_divergence().item()) < 8


@pytest.mark.parametrize("prior", ["standard", "fan_in", "learned", "empirical"])
def test_kl_of_stacked_networks_by_vmap(prior):
    """One call for several networks, as torch.func.stack_module_state makes them."""
    torch.manual_seed(0)
    layers = [dubito.BayesLinear(3, 2, prior=prior, dtype=torch.float64) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    base = copy.deepcopy(layers[0])

    class Divergence(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self) -> torch.Tensor:
            return self.layer.kl_divergence()

    whole = Divergence(base)
    named = [{f"layer.{name}": value for name, value in state.items()} for state in (parameters, buffers)]
    found = torch.func.vmap(lambda p, b: torch.func.functional_call(whole, (p, b), ()))(*named)
    torch.testing.assert_close(found, torch.stack([layer.kl_divergence() for layer in layers]))


def test_several_rows_of_a_jacobian_at_once():
    layer = dubito.BayesLinear(3, 2, dtype=torch.float64)
    factors = torch.tensor([1.0, 3.0], dtype=torch.float64)
    (rows,) = torch.autograd.grad(
        layer.kl_divergence(), layer.weight_mean, factors, is_grads_batched=True, retain_graph=True
    )
    torch.testing.assert_close(rows, factors.view(2, 1, 1) * layer.weight_mean)  # of sum mu^2 / 2
