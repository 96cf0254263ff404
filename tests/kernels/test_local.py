"""The hand-written local reparameterisation and the kept posteriors, against plain formulas."""

import copy

import pytest
import torch
from layer_zoo import KINDS, make_input, make_layer, randomize
from torch import nn

import dubito
from dubito.estimators import Local
from dubito.kernels.autograd import sum_of_squares, sums_of_squares
from dubito.kernels.linear_maps import Convolution
from dubito.kernels.local import local_reparameterization
from dubito.layers import posteriors_kept
from dubito.softplus import Softplus
from dubito.variational.posterior import KeptPosterior, Parameterization, Posterior, keep

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
    """Outputs and gradients of the hand-written and the plain way, with the same noise."""
    results = []
    for way in (layer, lambda x: Local().plain(layer, x)):
        torch.manual_seed(3)
        layer.zero_grad()
        given = x.clone().requires_grad_()
        output = way(given)
        weights = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)
        (output * weights).sum().backward()
        gradients = {name: p.grad for name, p in layer.named_parameters()}
        results.append((output, given.grad, copy.deepcopy(gradients)))
    return results


def assert_same(layer: nn.Module, x: torch.Tensor) -> None:
    (output, of_x, gradients), (plain, plain_of_x, plain_gradients) = both(layer, x)
    assert "Local" in type(output.grad_fn).__name__ or "View" in type(output.grad_fn).__name__
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
    return local_reparameterization(linear_map, x, parameters[:2], parameters[2:])


@pytest.mark.parametrize("batch", [2, 66], ids=["library", "tiny"])
def test_gradients_agree_with_finite_differences_and_so_do_their_own(batch):
    torch.manual_seed(0)
    linear_map = Convolution((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
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
    layer.weight_rho.requires_grad_(False)
    layer.bias_rho.requires_grad_(False)
    torch.manual_seed(3)
    layer.zero_grad()
    output = layer(x)
    (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    assert layer.weight_rho.grad is None
    torch.testing.assert_close(layer.weight_mean.grad, whole["weight_mean"])


def test_backward_twice_gives_the_same_gradient():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear"))
    loss = layer(make_input("Linear")).square().sum()
    first = torch.autograd.grad(loss, layer.weight_rho, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, layer.weight_rho)[0])


def test_no_gradient_no_graph():
    layer = make_layer("Linear")
    with torch.no_grad():
        assert not layer(make_input("Linear")).requires_grad


EXTREME = [-1e4, -200.0, -90.0, -40.0, -5.0, 0.0, 3.0, 50.0]
MODERATE = [-39.9, -20.0, -8.0, -4.0, -1.0, 0.0, 3.0, 79.9]


def rhos(given: list[float], dtype: torch.dtype) -> list[torch.Tensor]:
    values = torch.tensor(given, dtype=dtype)
    return [values.view(2, 4).clone().requires_grad_(), (values[4:] / 7).clone().requires_grad_()]


def posteriors(free: list[torch.Tensor]) -> list[Posterior]:
    return [Posterior(torch.ones_like(rho), rho, Parameterization.STD) for rho in free]


@pytest.mark.parametrize("values", [EXTREME, MODERATE, [-50.0, *MODERATE[1:]], [*MODERATE[:-1], 100.0]], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_kept_moments_and_their_gradients_equal_the_plain_ones(values, dtype, tolerance):
    """Well between underflow and overflow, where formulas are plain, and beyond."""
    free, plain_free = rhos(values, dtype), rhos(values, dtype)
    results = []
    for way, tensors in ((keep, free), (list, plain_free)):
        qs = way(posteriors(tensors))
        total = sum(
            (q.std * (number + 2)).sum() + 3 * q.sum_variance - 5 * q.sum_log_std for number, q in enumerate(qs)
        )
        total.backward()
        results.append([(q.std, q.variance, q.sum_variance, q.sum_log_std) for q in qs])
        assert isinstance(qs[0], KeptPosterior) == (way is keep)
    tiny = torch.finfo(dtype).tiny
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tiny)
    for rho, plain in zip(free, plain_free, strict=True):
        torch.testing.assert_close(rho.grad, plain.grad, rtol=tolerance, atol=tiny)


@pytest.mark.parametrize("used", ["std", "sum_variance", "sum_log_std"])
def test_kept_moments_have_right_first_and_second_derivatives_each_alone(used):
    torch.manual_seed(0)
    free = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in ((2, 2), (3,))]

    def value(*tensors):
        return sum((getattr(q, used) ** 2).sum() * (n + 1) for n, q in enumerate(keep(posteriors(list(tensors)))))

    assert torch.autograd.gradcheck(value, free)
    assert torch.autograd.gradgradcheck(value, free)


def test_single_precision_keeps_log_std_where_sigma_underflows():
    rho = torch.tensor([-1e4, -100.0]).requires_grad_()
    (q,) = keep(posteriors([rho]))
    assert q.sum_log_std.item() == pytest.approx(-10100)
    q.sum_log_std.backward()
    assert rho.grad.tolist() == [1.0, 1.0]


def test_posteriors_are_kept_inside_only_and_updates_are_seen():
    network = nn.Sequential(make_layer("Linear"), make_layer("Linear", posterior="alpha"))
    with posteriors_kept(network):
        inner = network[0].posteriors()["weight"]
        assert network[0].posteriors()["weight"] is inner
        with posteriors_kept(network):
            assert network[0].posteriors()["weight"] is inner
        assert network[0].posteriors()["weight"] is inner
    before = network[0].weight_std
    with torch.no_grad():
        network[0].weight_rho.add_(1)
    assert (network[0].weight_std > before).all()


def test_posteriors_are_not_kept_after_an_exception():
    network = make_layer("Linear")
    with pytest.raises(ZeroDivisionError), posteriors_kept(network):
        raise ZeroDivisionError
    assert not isinstance(network.posteriors()["weight"], KeptPosterior)


def test_sum_of_squares_and_both_its_derivatives():
    x = torch.randn(3, 4, dtype=torch.float64).requires_grad_()
    assert sum_of_squares(x).item() == pytest.approx(x.square().sum().item(), rel=1e-14)
    assert torch.autograd.gradcheck(sum_of_squares, x)
    assert torch.autograd.gradgradcheck(sum_of_squares, x)
    several = (x, torch.randn(5, dtype=torch.float64).requires_grad_())
    assert torch.autograd.gradcheck(lambda *given: tuple(sums_of_squares(given)), several)
    assert torch.autograd.gradgradcheck(lambda *given: tuple(sums_of_squares(given)), several)


@pytest.mark.parametrize("family", ["std", "alpha"])
def test_a_training_step_has_the_gradients_of_the_plain_formulas(family):
    torch.manual_seed(0)
    network = dubito.models.build("lenet5", 10, 1, posterior=family, prior="learned").double()
    images, labels = torch.randn(4, 1, 32, 32, dtype=torch.float64), torch.arange(4)
    torch.manual_seed(1)
    terms = dubito.ELBO(100)(network, images, labels)
    terms.loss.backward()
    ours = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    layers = [layer for layer in network.modules() if isinstance(layer, dubito.layers.BayesLayer)]
    torch.manual_seed(1)
    for layer in layers:
        layer.forward = lambda x, layer=layer: Local().plain(layer, x)
    log_probs = dubito.log_softplus_normalize(network(images))
    kl = 0.0
    for layer in layers:
        means = torch.cat([q.mean.reshape(-1) for q in layer.posteriors.values()])
        stds = torch.cat([q.std.reshape(-1) for q in layer.posteriors.values()])
        scale = (means**2 + stds**2).mean().sqrt()
        prior = torch.distributions.Normal(torch.zeros_like(means), scale)
        kl = kl + torch.distributions.kl_divergence(torch.distributions.Normal(means, stds), prior).sum()
    loss = -log_probs[torch.arange(4), labels].mean() + kl / 100
    loss.backward()
    assert terms.loss.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, p in network.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lean_softplus_equals_torchs_and_keeps_its_output_only(dtype):
    x = torch.linspace(-90, 90, 1001, dtype=dtype).requires_grad_()
    plain = x.detach().clone().requires_grad_()
    y, expected = Softplus()(x), nn.functional.softplus(plain, threshold=40)
    torch.testing.assert_close(y, expected)
    assert y.grad_fn.saved_tensors[0].data_ptr() == y.data_ptr()
    (y * x.detach()).sum().backward()
    (expected * plain.detach()).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad)


def test_lean_softplus_has_right_first_and_second_derivatives():
    x = torch.randn(7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(Softplus(), x)
    assert torch.autograd.gradgradcheck(Softplus(), x)
