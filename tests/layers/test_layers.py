"""Layers: the same as their torch.nn twins in everything but the posterior."""

import copy
import inspect
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.estimators import Weight
from dubito.variational.posterior import one_pass
from dubito.variational.prior import GaussianPrior, ScaleMixturePrior
from layer_zoo import (
    FAMILIES,
    INPUTS,
    KINDS,
    SAMPLING,
    make_input,
    make_layer,
    make_twin,
    output_moments,
    randomize,
)

EVERY_ESTIMATOR = (*SAMPLING, "mean", Weight(draws=2), Weight(draws=2, antithetic=True))
every_option = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def per_axis(draw, d, low, high):
    """A number for every axis, as one number or a tuple."""
    values = tuple(draw(st.integers(low, high)) for _ in range(d))
    return values[0] if len(set(values)) == 1 and draw(st.booleans()) else values


def each(value, d):
    return (value,) * d if isinstance(value, int) else value


@st.composite
def convolutions(draw):
    """(name, options, shape of an input) of any convolution that torch can make."""
    d, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    in_channels, out_channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, dilation = per_axis(draw, d, 1, 3), per_axis(draw, d, 1, 2)
    reach = [dil * (k - 1) + 1 for k, dil in zip(each(kernel, d), each(dilation, d), strict=True)]
    size = tuple(r + draw(st.integers(0, 2)) for r in reach)
    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    stride = 1 if padding == "same" else per_axis(draw, d, 1, 3)
    if padding == "numbers":
        padding = per_axis(draw, d, 0, min(2, min(size) - 1))
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    }
    return f"Conv{d}d", options, (*batch_shape(draw), in_channels, *size)


@st.composite
def transposed_convolutions(draw):
    d, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    in_channels, out_channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, dilation, stride = per_axis(draw, d, 1, 3), per_axis(draw, d, 1, 2), per_axis(draw, d, 1, 3)
    reach = [dil * (k - 1) + 1 for k, dil in zip(each(kernel, d), each(dilation, d), strict=True)]
    room = min(max(s, dil) - 1 for s, dil in zip(each(stride, d), each(dilation, d), strict=True))
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": kernel,
        "stride": stride,
        "padding": per_axis(draw, d, 0, (min(reach) - 1) // 2),
        "output_padding": per_axis(draw, d, 0, room),
        "groups": groups,
        "bias": draw(st.booleans()),
        "dilation": dilation,
    }
    size = tuple(draw(st.integers(1, 3)) for _ in range(d))
    return f"ConvTranspose{d}d", options, (*batch_shape(draw), in_channels, *size)


@st.composite
def linear_layers(draw):
    features = draw(st.integers(1, 5))
    options = {"in_features": features, "out_features": draw(st.integers(1, 5)), "bias": draw(st.booleans())}
    axes = draw(st.lists(st.integers(1, 3), max_size=3))
    return "Linear", options, (*axes, features)


def batch_shape(draw):
    return (draw(st.integers(1, 3)),) if draw(st.booleans()) else ()


def assert_equals_twin(case, estimator, dtype, family, bayesian_bias):
    """At sigma = 1e-9 the noise of an output is below 1e-7, and every estimator is the torch.nn layer."""
    name, options, shape = case
    torch.manual_seed(0)
    bayesian = {"posterior": family, "bayesian_bias": bayesian_bias, "initial_std": 1e-9}
    layer = getattr(dubito, f"Bayes{name}")(**options, **bayesian, estimator=estimator, dtype=dtype)
    twin = getattr(nn, name)(**options, dtype=dtype)
    weights = {"weight": layer.weight_mean, "bias": layer.bias_mean}
    twin.load_state_dict({key: value for key, value in weights.items() if value is not None})
    x = torch.randn(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch on even kernels with padding="same"
        expected = twin(x)
        tolerance = 1e-6 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(layer(x), expected, rtol=tolerance, atol=tolerance)


bayesian_options = {
    "estimator": st.sampled_from(EVERY_ESTIMATOR),
    "dtype": st.sampled_from([torch.float32, torch.float64]),
    "family": st.sampled_from(FAMILIES),
    "bayesian_bias": st.booleans(),
}


@every_option
@given(case=convolutions(), **bayesian_options)
def test_every_convolution_without_noise_is_its_torch_twin(case, estimator, dtype, family, bayesian_bias):
    assert_equals_twin(case, estimator, dtype, family, bayesian_bias)


@every_option
@given(case=transposed_convolutions(), **bayesian_options)
def test_every_transposed_convolution_without_noise_is_its_torch_twin(case, estimator, dtype, family, bayesian_bias):
    assert_equals_twin(case, estimator, dtype, family, bayesian_bias)


@every_option
@given(case=linear_layers(), **bayesian_options)
def test_every_linear_layer_without_noise_is_its_torch_twin(case, estimator, dtype, family, bayesian_bias):
    assert_equals_twin(case, estimator, dtype, family, bayesian_bias)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_local_variance_pads_as_the_mean_does(mode):
    """Var of one output position with all weights of standard deviation s is s^2 times the sum of squared inputs."""
    torch.manual_seed(0)
    layer = dubito.BayesConv1d(1, 1, 3, padding=1, padding_mode=mode, bias=False, initial_std=0.5, dtype=torch.float64)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    padded = nn.functional.pad(x, (1, 1), mode=mode)
    expected = 0.25 * padded.square().unfold(2, 3, 1).sum(-1).flatten()
    draws = layer(x.expand(20_000, 1, 4)).var(0).flatten()
    torch.testing.assert_close(draws, expected, rtol=6 * math.sqrt(2 / 20_000), atol=0)


@pytest.mark.parametrize("estimator", EVERY_ESTIMATOR)
@pytest.mark.parametrize("size", [(6, 7), (2, 2, 6, 7), [7, 6]])
def test_transposed_convolution_takes_an_output_size(size, estimator):
    torch.manual_seed(0)
    options = {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": 2, "dtype": torch.float64}
    layer = dubito.BayesConvTranspose2d(**options, initial_std=1e-9, estimator=estimator)
    twin = nn.ConvTranspose2d(**options)
    twin.load_state_dict({"weight": layer.weight_mean, "bias": layer.bias_mean})
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x, size), twin(x, size), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(5, 6), (8, 6), (6,), ()])
def test_impossible_output_size_is_refused_with_its_bounds(size):
    layer = dubito.BayesConvTranspose2d(2, 2, 2, stride=2)
    with pytest.raises(ShapeError, match=r"output_size is \(.*\), but must lie between \(6, 6\) and \(7, 7\)"):
        layer(torch.randn(1, 2, 3, 3), size)


@pytest.mark.parametrize("kind", KINDS)
def test_positional_arguments_are_those_of_torch_in_the_same_order(kind):
    ours = inspect.signature(getattr(dubito, f"Bayes{kind}")).parameters
    theirs = inspect.signature(getattr(nn, kind)).parameters
    positional = [(p.name, p.default) for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [(p.name, p.default) for p in theirs.values()]
    assert [p.kind for p in ours.values() if p.kind is not p.POSITIONAL_OR_KEYWORD] == [inspect.Parameter.VAR_KEYWORD]


@pytest.mark.parametrize("kind", KINDS)
def test_means_start_as_torch_starts_its_weights(kind):
    torch.manual_seed(0)
    layer = make_layer(kind)
    torch.manual_seed(0)
    twin = make_twin(kind, layer)
    torch.manual_seed(0)
    twin.reset_parameters()
    torch.testing.assert_close(layer.weight_mean, twin.weight, rtol=0, atol=0)
    torch.testing.assert_close(layer.bias_mean, twin.bias, rtol=0, atol=0)


PRIORS = {
    "gaussian": (GaussianPrior(0.5, 0.25), GaussianPrior(0.0, 3.0)),
    "mixture": (ScaleMixturePrior(0.25, 2.0, 0.5), ScaleMixturePrior()),
    "empirical": ("empirical", "empirical"),
    "fan_in": ("fan_in", 2.0),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_carries_posterior_and_prior_into_a_layer_made_with_others(kind, name, family):
    torch.manual_seed(0)
    given, other = PRIORS[name]
    layer = randomize(make_layer(kind, prior=given, posterior=family))
    loaded = randomize(make_layer(kind, prior=other, posterior=family))
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    torch.manual_seed(1)
    expected = layer.kl_divergence(), layer(make_input(kind))
    torch.manual_seed(1)
    torch.testing.assert_close((loaded.kl_divergence(), loaded(make_input(kind))), expected, rtol=0, atol=0)


@pytest.mark.parametrize("prior", [0.5, "fan_in", "learned", "mixture", "log_uniform", "empirical"])
@pytest.mark.parametrize("kind", KINDS)
def test_changing_the_dtype_moves_everything_and_leaves_no_stale_copy(kind, prior):
    torch.manual_seed(0)
    layer = make_layer(kind, prior=prior, dtype=torch.float32).double()
    tensors = [*layer.parameters(), *layer.buffers()]
    assert {t.dtype for t in tensors} == {torch.float64}
    x = make_input(kind)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    layer.set_std(1e-9)
    assert layer(x).abs().max() < 1e-6
    assert layer.kl_divergence().dtype == torch.float64
    assert layer.weight_std.dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_and_pickles_are_equal_and_independent(clone, kind):
    torch.manual_seed(0)
    layer = randomize(make_layer(kind, prior=GaussianPrior(0.1, 0.7), estimator=Weight(draws=2)))
    copied = clone(layer)
    x = make_input(kind, batch=4)
    torch.manual_seed(1)
    expected = layer(x)
    torch.manual_seed(1)
    assert torch.equal(copied(x), expected)
    before = layer.kl_divergence().item()
    assert copied.kl_divergence().item() == before
    with torch.no_grad():
        for tensor in (*copied.parameters(), *copied.buffers()):
            tensor.add_(1.0)
    assert layer.kl_divergence().item() == before


@pytest.mark.parametrize("kind", KINDS)
def test_functional_call_uses_the_given_parameters(kind):
    torch.manual_seed(0)
    layer, other = randomize(make_layer(kind)), randomize(make_layer(kind))
    x = make_input(kind)
    torch.manual_seed(1)
    expected = other(x)
    torch.manual_seed(1)
    assert torch.equal(torch.func.functional_call(layer, dict(other.named_parameters()), (x,)), expected)


def test_functional_gradient_of_kl_is_autograds():
    torch.manual_seed(0)
    layer = randomize(make_layer("Conv2d"))

    class Divergence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self):
            return dubito.kl_divergence(self.layer)

    module = Divergence()
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    gradients = torch.func.grad(lambda p: torch.func.functional_call(module, p, ()))(parameters)
    expected = torch.autograd.grad(layer.kl_divergence(), list(layer.parameters()))
    torch.testing.assert_close(tuple(gradients[f"layer.{n}"] for n, _ in layer.named_parameters()), expected)


def small_network(**options) -> nn.Sequential:
    return nn.Sequential(
        dubito.BayesConv2d(1, 3, 3, padding=1, **options),
        nn.Softplus(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        dubito.BayesLinear(12, 4, **options),
    )


@pytest.mark.parametrize("estimator", SAMPLING)
def test_compiled_network_has_the_same_outputs_and_gradients_without_graph_breaks(estimator):
    torch.manual_seed(0)
    network = small_network(estimator=estimator, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 1, 4, 4, dtype=torch.float64)
    results = []
    for module in (network, compiled):
        network.zero_grad()
        torch.manual_seed(1)
        output = module(x)
        (output.square().mean() + dubito.kl_divergence(network) / 100).backward()
        results.append([output.detach(), *[p.grad.clone() for p in network.parameters()]])
    torch.testing.assert_close(results[1], results[0])


def test_compiled_network_follows_training_and_evaluation_mode():
    torch.manual_seed(0)
    network = small_network(initial_std=0.5)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager")
    x = torch.randn(4, 1, 4, 4)
    assert not torch.equal(compiled(x), compiled(x))
    network.eval()
    assert torch.equal(compiled(x), compiled(x))
    torch.testing.assert_close(compiled(x), network(x))


@pytest.mark.parametrize("estimator", [*SAMPLING, "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_low_precision_outputs_and_finite_gradients(dtype, estimator):
    torch.manual_seed(0)
    network = small_network(estimator=estimator, initial_std=1e-3)
    x = torch.randn(4, 1, 4, 4)
    with torch.autocast("cpu", dtype=dtype):
        output = network(x)
        terms = dubito.ELBO(num_data=10, head="softplus")(network, x, torch.arange(4))
    assert output.dtype == dtype
    with dubito.estimator(network, "mean"):
        torch.testing.assert_close(output.float(), network(x), rtol=0.1, atol=0.05)
    terms.loss.backward()
    assert terms.kl.dtype == torch.float32
    for parameter in network.parameters():
        assert parameter.grad is None or (parameter.dtype == torch.float32 and parameter.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_local_noise_has_the_right_size_in_half_precision(scale, dtype):
    """float16 holds neither the square of 0.001 * exp(-5) nor that of 300."""
    torch.manual_seed(0)
    layer = dubito.BayesLinear(9, 1, bias=False, dtype=dtype)
    nn.init.zeros_(layer.weight_mean)
    x = torch.full((10_000, 9), scale, dtype=dtype)
    expected = 3 * scale * math.exp(-5)
    # 6 standard errors are 4 %; bfloat16 stores the free parameter to 2 %
    assert layer(x).float().std().item() == pytest.approx(expected, rel=0.08)


def test_layer_learns_inside_any_module():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"a": dubito.BayesLinear(2, 8), "b": dubito.BayesLinear(8, 1)})

        def forward(self, x):
            return self.layers["b"](torch.tanh(self.layers["a"](x)))

    torch.manual_seed(0)
    network = Network()
    x = torch.randn(64, 2)
    y = x.prod(1, keepdim=True)
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_output_moments_reference_is_itself_right_for_a_linear_layer():
    """The reference of the estimators' tests, checked by hand: Var = sum x^2 sigma_w^2 + sigma_b^2."""
    torch.manual_seed(0)
    layer, x = randomize(make_layer("Linear")), make_input("Linear", batch=1)
    mean, covariance = output_moments("Linear", layer, x)
    torch.testing.assert_close(mean, (x @ layer.weight_mean.T + layer.bias_mean).flatten().detach())
    variance = x.square() @ layer.weight_std.square().T + layer.bias_std.square()
    torch.testing.assert_close(covariance, torch.diag(variance.flatten().detach()))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_input_shape_is_refused_with_what_was_given_and_expected(kind):
    layer, shape = make_layer(kind), INPUTS[kind]
    wrong = (2, shape[0] + 1, *shape[1:])
    with pytest.raises(
        ShapeError, match=rf"Bayes{kind} got an input of shape \({', '.join(map(str, wrong))},?\), but expects"
    ):
        layer(torch.zeros(wrong, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"got an input of shape \(\), but expects"):
        layer(torch.tensor(1.0, dtype=torch.float64))


def test_input_smaller_than_the_kernel_is_refused_with_the_size_that_it_needs():
    layer = dubito.BayesConv2d(1, 1, (5, 3), padding=(1, 0), dilation=(1, 2))
    with pytest.raises(
        ShapeError, match=r"spatial size \(2, 9\), but its kernel of size \(5, 3\) needs at least \(3, 5\)"
    ):
        layer(torch.zeros(1, 1, 2, 9))
    assert layer(torch.zeros(1, 1, 3, 5)).shape == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "in_channels is 0, but must be a whole number of at least 1"),
        ({"out_channels": 2.5}, "out_channels is 2.5, but must be a whole number"),
        ({"groups": 3}, "groups is 3, but must divide both in_channels=4 and out_channels=4"),
        ({"groups": 0}, "groups is 0, but must be a whole number of at least 1"),
        ({"kernel_size": (3, 3, 3)}, r"kernel_size is \(3, 3, 3\), but must be a number or 2 numbers"),
        ({"stride": 0}, "stride is 0, but must be a number or 2 numbers, each at least 1"),
        ({"padding": -1}, "padding is -1, but must be a number or 2 numbers, each at least 0"),
        ({"padding": "some"}, "padding is 'some', but must be one of 'same', 'valid'"),
        ({"padding": "same", "stride": 2}, r"padding='same' needs stride 1, but stride is \(2, 2\)"),
        ({"padding_mode": "mirror"}, "padding_mode is 'mirror', but must be one of 'zeros', 'reflect'"),
        ({"posterior": "variance"}, "posterior is 'variance', but must be one of 'std', 'alpha', 'low_rank'"),
        ({"prior": "flat"}, "prior is 'flat', but must be one of 'standard'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        dubito.BayesConv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options})


def test_transposed_convolution_refuses_what_torch_has_no_transposed_form_of():
    with pytest.raises(OptionError, match="padding_mode is 'reflect', but must be one of 'zeros'"):
        dubito.BayesConvTranspose1d(1, 1, 3, padding_mode="reflect")
    with pytest.raises(OptionError, match="padding is 'same', not a number"):
        dubito.BayesConvTranspose1d(1, 1, 3, padding="same")


@pytest.mark.parametrize("kind", KINDS)
def test_representation_names_what_differs_from_the_defaults(kind):
    text = repr(make_layer(kind, estimator="flipout", posterior="alpha", initial_std=0.25))
    for part in (f"Bayes{kind}(", "estimator=flipout", "AlphaPosterior", "initial_std=0.25", "GaussianPrior"):
        assert part in text


def test_numbers_of_numpy_are_whole_numbers():
    assert tuple(dubito.BayesLinear(np.prod((2, 3)), np.int32(4)).weight_mean.shape) == (4, 6)
    layer = dubito.BayesConv2d(np.int64(3), 4, np.int64(3), padding=(np.int64(1), 1))
    assert layer.kernel_size == (3, 3)
    assert layer(torch.ones(1, 3, 5, 5)).shape == (1, 4, 5, 5)
    with pytest.raises(OptionError, match=r"in_features is 2\.5"):
        dubito.BayesLinear(2.5, 3)
    with pytest.raises(OptionError, match=r"kernel_size is 2\.5"):
        dubito.BayesConv2d(3, 4, 2.5)


@pytest.mark.parametrize("prior", [0.5, "fan_in", "learned", "empirical", "mixture"])
def test_a_layer_made_without_memory_gets_its_prior_with_its_weights(prior):
    with torch.device("meta"):
        layer = dubito.BayesLinear(4, 3, prior=prior)
    layer.to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.manual_seed(0)
    expected = dubito.BayesLinear(4, 3, prior=prior)
    assert layer.state_dict().keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], tensor, msg=name)


def test_what_is_in_force_for_now_is_not_copied():
    layer = dubito.BayesLinear(3, 2)
    with dubito.estimator(layer, "mean"):
        copied = copy.deepcopy(layer)
    assert copied.forced_estimator is None


def test_the_bias_can_be_asked_for_like_the_weight():
    layer = dubito.BayesLinear(3, 2, initial_std=0.3)
    for name in ("weight", "bias"):
        assert not torch.equal(getattr(layer, name), getattr(layer, name))
        with one_pass():
            assert getattr(layer, name) is getattr(layer, name)
    layer.eval()
    assert layer.weight is layer.weight_mean
    assert layer.bias is layer.bias_mean
    assert dubito.BayesLinear(3, 2, bias=False).bias is None
    point = dubito.BayesLinear(3, 2, bayesian_bias=False)
    assert point.bias is point.bias_mean is point.point_bias


def test_what_is_read_in_a_pass_is_what_the_layer_computes_with():
    layer, x = dubito.BayesConv2d(2, 3, 3, estimator="weight", initial_std=0.3), torch.randn(2, 2, 5, 5)
    with one_pass():
        torch.testing.assert_close(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias))


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_weight_with_a_bias_that_learns(kind):
    """Only the bias has gradients, and they are those of automatic differentiation."""
    torch.manual_seed(0)
    layer = make_layer(kind, dtype=torch.float64)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(".bias." in name)
    x = make_input(kind, batch=3).double()
    torch.manual_seed(1)
    layer(x).square().sum().backward()
    assert layer.weight_mean.grad is None
    found = layer.bias_mean.grad.clone(), layer.posteriors["bias"].rho.grad.clone()
    layer.zero_grad()
    layer.requires_grad_(True)
    torch.manual_seed(1)
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, (layer.bias_mean.grad, layer.posteriors["bias"].rho.grad))


@pytest.mark.parametrize("kind", ["large layer", "large convolution", "network", "converted"])
def test_traced_networks_give_the_mean_in_evaluation_and_fresh_draws_in_training(kind):
    model, x = {
        "large layer": lambda: (dubito.BayesLinear(1024, 512), torch.randn(4, 1024)),
        "large convolution": lambda: (dubito.BayesConv2d(64, 64, 3), torch.randn(2, 64, 12, 12)),
        "network": lambda: (dubito.models.build("lenet5", in_channels=1), torch.randn(2, 1, 32, 32)),
        "converted": lambda: (dubito.to_bayesian(nn.Sequential(nn.Linear(9, 20), nn.ReLU())), torch.randn(2, 9)),
    }[kind]()
    traced = torch.jit.trace(model.eval(), x)
    torch.testing.assert_close(traced(x), model(x))
    traced = torch.jit.trace(model.train(), x, check_trace=False)
    assert not torch.equal(traced(x), traced(x))
