"""Estimators: the distribution of each one's output, in closed form."""

import math

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError
from dubito.estimators import Flipout, Local, Mean, Weight, make_estimator
from layer_zoo import (
    DTYPES,
    INDEPENDENT,
    KINDS,
    SAMPLING,
    Recorder,
    make_input,
    make_layer,
    make_twin,
    output_moments,
    randomize,
)

DRAWS = 3000


@torch.no_grad()
def draw_outputs(layer: nn.Module, x: torch.Tensor, name: str) -> torch.Tensor:
    """(DRAWS, elements) outputs for the batch `x`, each from noise of its own."""
    if name == "flipout":  # signs and weights are drawn once for a call
        with dubito.estimator(layer, name):
            calls = torch.func.vmap(lambda _: layer(x).flatten(), randomness="different")
            return calls(torch.zeros(DRAWS))
    repeated = x.repeat(DRAWS, *[1] * (x.dim() - 1))
    with dubito.estimator(layer, Weight(draws=DRAWS) if name == "weight" else name):
        return layer(repeated).reshape(DRAWS, -1)


def analytic_covariance(covariance: torch.Tensor, name: str, batch: int) -> torch.Tensor:
    """What an estimator keeps of the covariance that drawn weights give the whole batch's output."""
    if name == "weight":
        return covariance
    if name == "local":
        return torch.diag(covariance.diag())
    example = torch.arange(len(covariance)) // (len(covariance) // batch)
    return covariance * (example[:, None] == example[None, :])


def assert_moments(outputs: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> None:
    """Sample moments within 7 standard errors: of thousands of elements, one fails in a million runs."""
    deviations = outputs - mean
    error = covariance.diag().sqrt() / math.sqrt(len(outputs))
    assert ((deviations.mean(0)).abs() <= 7 * error + 1e-12).all()
    products = deviations[:, :, None] * deviations[:, None, :]
    error = products.std(0) / math.sqrt(len(outputs))
    assert ((products.mean(0) - covariance).abs() <= 7 * error + 1e-12).all()


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("kind", KINDS)
def test_estimator_has_the_analytic_mean_variance_and_covariance(kind, name):
    torch.manual_seed(0)
    layer, x = randomize(make_layer(kind), low=0.3), make_input(kind)
    mean, covariance = output_moments(kind, layer, x)
    assert_moments(draw_outputs(layer, x, name), mean, analytic_covariance(covariance, name, len(x)))


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("options", [{"posterior": "alpha"}, {"bias": False}, {"bayesian_bias": False}])
def test_moments_hold_for_every_posterior_and_bias(name, options):
    torch.manual_seed(1)
    layer, x = randomize(make_layer("Conv2d", **options), low=0.3), make_input("Conv2d")
    mean, covariance = output_moments("Conv2d", layer, x)
    assert_moments(draw_outputs(layer, x, name), mean, analytic_covariance(covariance, name, len(x)))


def test_positions_of_a_convolution_are_correlated_in_truth():
    """Without this the test above could not tell `weight` from `local`."""
    torch.manual_seed(0)
    layer, x = randomize(make_layer("Conv2d"), low=0.3), make_input("Conv2d", batch=1)
    covariance = output_moments("Conv2d", layer, x)[1]
    correlation = covariance / (covariance.diag().sqrt()[:, None] * covariance.diag().sqrt()[None, :])
    assert (correlation - torch.eye(len(covariance))).abs().max() > 0.3


def test_flipout_decorrelates_equal_examples_and_weight_does_not():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear"), low=0.3)
    x = make_input("Linear", batch=1).expand(2, -1)
    for name, expected in (("weight", 1.0), ("flipout", 0.0), ("local", 0.0)):
        outputs = draw_outputs(layer, x, name).reshape(DRAWS, 2, -1)
        centred = outputs - outputs.mean(0)
        correlation = (centred[:, 0] * centred[:, 1]).mean(0) / centred.square().mean((0, 1))
        # With 3,000 draws a correlation has a standard error of at most sqrt(3 / 3000) = 0.032.
        assert correlation.tolist() == pytest.approx([expected] * 4, abs=6 * 0.032 if expected == 0 else 1e-9)


def test_flipout_signs_are_constant_over_the_positions_of_an_example():
    """Sequences share a token's weights: with one deviation, outputs at equal tokens are equal."""
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", estimator="flipout"))
    tokens = make_input("Linear", batch=1).expand(5, 7, -1)
    y = layer(tokens)
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    assert (y[0] - y[1:]).abs().amax((1, 2)).min() > 0
    image = torch.ones(1, 2, 6, 6, dtype=torch.float64)
    convolution = randomize(dubito.BayesConv2d(2, 3, 3, estimator="flipout", dtype=torch.float64))
    y = convolution(image)
    torch.testing.assert_close(y, y[..., :1, :1].expand_as(y))


@pytest.mark.parametrize("draws", [2, 3, 5])
def test_weights_are_the_same_within_a_group_and_different_between(draws):
    torch.manual_seed(0)
    layer = randomize(make_layer("Conv2d", estimator=Weight(draws=draws)))
    x = make_input("Conv2d", batch=1).expand(2 * draws, -1, -1, -1)
    groups = layer(x).reshape(draws, 2, -1)
    torch.testing.assert_close(groups[:, 0], groups[:, 1])
    distances = torch.pdist(groups[:, 0])
    assert distances.min() > 1e-3


def test_uneven_and_missing_groups_still_cover_the_batch():
    layer = randomize(make_layer("Linear", estimator=Weight(draws=4)))
    for batch in (0, 1, 3, 7):
        assert layer(make_input("Linear", batch=batch)).shape == (batch, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_antithetic_pairs_average_to_the_mean_output_exactly(kind):
    torch.manual_seed(0)
    layer = randomize(make_layer(kind, estimator=Weight(draws=4, antithetic=True)))
    x = make_input(kind, batch=1)
    groups = layer(x.expand(4, *x.shape[1:])).unflatten(0, (2, 2))
    mean = make_twin(kind, layer)(x)
    for pair in groups:
        torch.testing.assert_close(pair.mean(0, keepdim=True), mean, rtol=1e-12, atol=1e-12)
        assert (pair[0] - pair[1]).abs().max() > 1e-3
    assert (groups[0, 0] - groups[1, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("estimator", [*SAMPLING, Weight(draws=2), Weight(draws=2, antithetic=True), "mean"])
@pytest.mark.parametrize("family", INDEPENDENT)
@pytest.mark.parametrize("kind", KINDS)
def test_noise_vanishes_with_sigma(kind, family, estimator):
    torch.manual_seed(0)
    layer = make_layer(kind, estimator=estimator, posterior=family, initial_std=1e-10)
    x = make_input(kind, batch=4)
    torch.testing.assert_close(layer(x), make_twin(kind, layer)(x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("kind", KINDS)
def test_training_draws_and_evaluation_is_the_mean(kind, name):
    torch.manual_seed(0)
    layer, x = make_layer(kind, estimator=name, initial_std=0.1), make_input(kind)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), make_twin(kind, layer)(x), rtol=0, atol=1e-12)


def test_evaluation_draws_no_random_numbers():
    layer, x = make_layer("Conv2d").eval(), make_input("Conv2d")
    state = torch.get_rng_state()
    layer(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", SAMPLING)
def test_gradients_of_the_output_are_those_of_the_reparameterised_formula(name):
    """gradcheck with the noise held still, for all parameters and the input."""
    torch.manual_seed(0)
    layer, x = randomize(make_layer("Conv2d", estimator=name)), make_input("Conv2d").requires_grad_()
    names = [n for n, _ in layer.named_parameters()]

    def output(x, *parameters):
        torch.manual_seed(3)
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (x, *[p.detach().clone().requires_grad_() for p in layer.parameters()]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_at_an_all_zero_input_is_finite(kind, dtype):
    torch.manual_seed(0)
    layer = make_layer(kind, bias=False, dtype=dtype)
    x = torch.zeros_like(make_input(kind, dtype=dtype)).requires_grad_()
    layer(x).float().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_made_on_the_inputs_device_and_in_its_dtype(kind, name, device, dtype):
    layer = make_layer(kind, estimator=name, device=device, dtype=dtype)
    x = make_input(kind, dtype=dtype).to(device)
    with Recorder() as recorder:
        y = layer(x)
    assert (y.device.type, y.dtype) == (device, dtype)
    # Draws of weights and their noise are made in single precision at least.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert recorder.noise
    assert recorder.noise <= {(torch.device(device), dtype), (torch.device(device), wide)}


def test_context_manager_nests_and_restores():
    network = nn.Sequential(make_layer("Linear"), make_layer("Linear", estimator="flipout"))
    active = [layer.active_estimator for layer in network]
    with dubito.estimator(network, "weight"):
        with dubito.estimator(network[1], "mean"):
            assert [a() for a in active] == [Weight(), Mean()]
        assert [a() for a in active] == [Weight(), Weight()]
        with dubito.estimator(network, None):
            assert [a() for a in active] == [Local(), Flipout()]
        network.eval()
        assert [a() for a in active] == [Weight(), Weight()]
    assert [a() for a in active] == [Mean(), Mean()]
    network.train()
    assert [a() for a in active] == [Local(), Flipout()]


def test_context_manager_restores_after_an_exception():
    layer = make_layer("Linear")

    def fail():
        with dubito.estimator(layer, "mean"):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert layer.active_estimator() == Local()


def test_context_manager_takes_options():
    layer = make_layer("Linear")
    with dubito.estimator(layer, "weight", draws=4, antithetic=True):
        assert layer.active_estimator() == Weight(draws=4, antithetic=True)


@pytest.mark.parametrize("given", ["locale", "", None, ["local"], 3])
def test_unknown_estimator_lists_the_valid_ones(given):
    with pytest.raises(OptionError, match=r"estimator is .*, but must be one of 'local', 'weight', 'flipout', 'mean'"):
        make_layer("Linear", estimator=given)


@pytest.mark.parametrize("make", [lambda: Weight(draws=0), lambda: Weight(draws=3, antithetic=True)])
def test_impossible_numbers_of_draws_are_refused(make):
    with pytest.raises(OptionError, match=r"The weight estimator got draws=\d"):
        make()


def test_option_of_another_estimator_is_refused():
    with pytest.raises(OptionError, match=r"The local estimator has no option \{'draws': 3\}"):
        make_estimator("local", draws=3)
    with pytest.raises(OptionError, match="is already complete, so draws cannot be given with it"):
        make_estimator(Weight(), draws=3)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("family", INDEPENDENT)
@pytest.mark.parametrize("name", ["local", "weight", "flipout"])
def test_gradients_that_can_be_differentiated_are_the_same_gradients(name, family, twice):
    """Also where what a layer is given depends on its own parameters: a standard deviation, or its earlier output."""
    torch.manual_seed(0)
    options = {"estimator": name, "posterior": family, "initial_std": 0.3}
    layer = dubito.BayesLinear(4, 4, **options, dtype=torch.float64)
    x = torch.randn(6, 4, dtype=torch.float64)

    def loss(*parameters):
        torch.manual_seed(1)
        given = dict(zip(names, parameters, strict=True))
        first = torch.func.functional_call(layer, given, x)
        return (torch.func.functional_call(layer, given, first.tanh()) if twice else first).square().sum()

    names, parameters = zip(*layer.named_parameters(), strict=True)
    plain = torch.autograd.grad(loss(*parameters), parameters)
    again = torch.autograd.grad(loss(*parameters), parameters, create_graph=True)
    for a, b in zip(plain, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradgradcheck(loss, parameters)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Linear(8, 16), (4, 7, 8)), (nn.Conv2d(8, 8, 3, padding=1), (64, 8, 2, 2)), (nn.Linear(8, 16), (4, 8))],
    ids=["rows", "tiny maps", "plain"],
)
@pytest.mark.parametrize("name", ["local", "weight", "flipout"])
def test_what_comes_after_a_layer_may_work_in_place(name, layer, shape):
    gradients = []
    for inplace in (True, False):
        network = dubito.to_bayesian(nn.Sequential(layer, nn.ReLU(inplace=inplace)), estimator=name)
        torch.manual_seed(0)
        network(torch.randn(shape)).square().sum().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
