"""The hand-written local reparameterisation against its plain formula, and a whole step without any kernel."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import dubito
from dubito import kernels
from dubito.kernels.local import compute
from dubito.linear_map import Convolution, MatrixProduct
from dubito.variational.posterior import posteriors
from layer_zoo import INDEPENDENT, KINDS, make_input, make_layer, randomize

OPTIONS = [
    {},
    {"bias": False},
    {"bayesian_bias": False},
    {"posterior": "alpha"},
]
CONVOLUTIONS = [
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2},
    {"padding": "same"},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": (0, 1), "padding_mode": "circular"},
]


def both(layer: nn.Module, x: torch.Tensor):
    """Outputs and gradients of the kernel and of the plain formula, with the same noise."""
    results = []
    for off in ((), ("local",)):
        torch.manual_seed(3)
        layer.zero_grad()
        given = x.clone().requires_grad_()
        with kernels.without(*off):
            output = layer(given)
            weights = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)
            (output * weights).sum().backward()
        gradients = {name: p.grad for name, p in layer.named_parameters()}
        results.append((output, given.grad, copy.deepcopy(gradients)))
    return results


def assert_same(layer: nn.Module, x: torch.Tensor) -> None:
    (output, of_x, gradients), (plain, plain_of_x, plain_gradients) = both(layer, x)
    assert "Local" in type(output.grad_fn).__name__
    assert "Local" not in type(plain.grad_fn).__name__
    torch.testing.assert_close(output, plain)
    torch.testing.assert_close(of_x, plain_of_x)
    assert gradients.keys() == plain_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_local_equals_the_plain_formula_for_every_layer(kind, options):
    torch.manual_seed(0)
    assert_same(randomize(make_layer(kind, **options)), make_input(kind))


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_local_equals_the_plain_formula_for_every_kind_of_convolution(options, dtype):
    torch.manual_seed(0)
    layer = randomize(dubito.BayesConv2d(4, 6, (3, 2), dtype=dtype, **options))
    assert_same(layer, torch.randn(5, 4, 7, 6, dtype=dtype))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize(
    "options", [{"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": 2}], ids=str
)
def test_gradients_on_tiny_maps_equal_the_plain_ones(size, options):
    torch.manual_seed(0)
    layer = randomize(dubito.BayesConv2d(3, 5, 3, dtype=torch.float64, **options))
    x = torch.randn(70, 3, *size, dtype=torch.float64)
    assert_same(layer, x)


def local(linear_map, x, *parameters):
    torch.manual_seed(0)
    return compute(x, *parameters, linear_map=linear_map, noise=torch.randn_like)


@pytest.mark.parametrize("batch", [2, 66], ids=["library", "tiny"])
def test_gradients_agree_with_finite_differences_and_so_do_their_own(batch):
    torch.manual_seed(0)
    linear_map = Convolution((1, 1), (1, 1), (1, 1))
    shapes = [(batch, 1, 1, 2), (2, 1, 3, 3), (2,)]
    x, weight, bias = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    std, bias_std = (torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_() for shape in shapes[1:])
    given = (x, weight, bias, std, bias_std)
    assert torch.autograd.gradcheck(lambda *tensors: local(linear_map, *tensors), given)
    if batch == 2:
        assert torch.autograd.gradgradcheck(lambda *tensors: local(linear_map, *tensors), given)


def test_frozen_parameters_get_no_gradient_and_the_others_the_same():
    torch.manual_seed(0)
    layer, x = randomize(make_layer("Conv2d")), make_input("Conv2d")
    whole = both(layer, x)[0][2]
    layer.posteriors["weight"].rho.requires_grad_(False)
    layer.posteriors["bias"].rho.requires_grad_(False)
    torch.manual_seed(3)
    layer.zero_grad()
    output = layer(x)
    (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    assert layer.posteriors["weight"].rho.grad is None
    torch.testing.assert_close(layer.weight_mean.grad, whole["posteriors.weight.mean"])


def test_backward_twice_gives_the_same_gradient():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear"))
    loss = layer(make_input("Linear")).square().sum()
    first = torch.autograd.grad(loss, layer.posteriors["weight"].rho, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, layer.posteriors["weight"].rho)[0])


def test_no_gradient_no_graph():
    layer = make_layer("Linear")
    with torch.no_grad():
        assert not layer(make_input("Linear")).requires_grad


def test_sparse_and_concentrated_inputs_keep_their_relative_accuracy():
    """Variances of single precision against double: no cancellation, whatever the input."""
    torch.manual_seed(0)
    layer = randomize(dubito.BayesConv2d(3, 8, 3, padding=1, bias=False))
    wide = copy.deepcopy(layer).double()
    for scale in (1.0, 1e3):
        x = torch.zeros(4, 3, 12, 12)
        x[:, :, 3, 4], x[0] = scale, 1e-3 * torch.randn(3, 12, 12)
        weight, noise = layer.weight_std.detach(), torch.ones_like(layer.mean_output(x))
        linear_map, _ = layer.linear_map(x)
        none = torch.zeros_like(weight)
        found = compute(x, none, None, weight, None, linear_map=linear_map, noise=lambda like, noise=noise: noise)
        exact = linear_map(x.double().square(), wide.weight_std.detach().square()).sqrt()
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-18)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_is_for_batches_of_ordinary_tensors(kind):
    layer, x = make_layer(kind), make_input(kind)
    linear_map, x = layer.linear_map(x)
    moments = layer.weight_mean, layer.bias_mean, layer.weight_std, layer.bias_std

    def find(given):
        return kernels.find("local", given, *moments, linear_map=linear_map)

    assert find(x) is compute
    assert find(x[0]) is None
    assert find(x.float()) is None
    assert find(x.to("meta")) is None
    with kernels.without("local"):
        assert find(x) is None
    with torch.autocast("cpu"):
        assert find(x) is None


def test_kernels_come_back_after_an_exception():
    with pytest.raises(ZeroDivisionError), kernels.without("local", "gaussian_kl"):
        raise ZeroDivisionError
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    assert kernels.find("local", x, weight, None, weight, None, linear_map=MatrixProduct()) is compute


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3), (2, 3, 2, 3)])
def test_a_linear_layer_over_any_number_of_axes_equals_the_plain_formula(shape):
    torch.manual_seed(0)
    assert_same(randomize(make_layer("Linear")), torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize("family", INDEPENDENT)
@pytest.mark.parametrize("prior", ["standard", "learned"])
def test_a_training_step_has_the_loss_and_gradients_of_the_plain_formulas(family, prior):
    """A network of convolutions and linear layers against torch.distributions, with the same noise."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)).double()
    network = randomize(dubito.to_bayesian(plain, posterior=family, prior=prior, head="softplus"))
    images, labels = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.arange(4)
    torch.manual_seed(1)
    terms = dubito.ELBO(100)(network, images, labels)
    ours = torch.autograd.grad(terms.loss, list(network.parameters()))
    torch.manual_seed(1)
    with kernels.without("local", "gaussian_kl"):
        log_probs = dubito.log_softplus_normalize(network(images))
    kl = 0.0
    for q in posteriors(network).values():
        scale = (q.mean**2 + q.std**2).mean().sqrt() if prior == "learned" else torch.ones((), dtype=torch.float64)
        kl = kl + kl_divergence(Normal(q.mean, q.std), Normal(torch.zeros_like(scale), scale)).sum()
    loss = -log_probs[torch.arange(4), labels].mean() + kl / 100
    assert terms.loss.item() == pytest.approx(loss.item(), rel=1e-12)
    for found, expected in zip(ours, torch.autograd.grad(loss, list(network.parameters())), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
