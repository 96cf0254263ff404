"""The kernel of KL against a Gaussian prior: equal to the plain formula, its gradient included, at every scale."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import dubito
from dubito import kernels
from dubito.kernels.gaussian_kl import compute
from dubito.variational.families import StdPosterior
from dubito.variational.prior import GaussianPrior

EXTREME = [-1e4, -200.0, -90.0, -40.0, -5.0, 0.0, 3.0, 50.0]
MODERATE = [-39.9, -20.0, -8.0, -4.0, -1.0, 0.0, 3.0, 79.9]


def make_posterior(rhos, dtype, prior=1.0) -> StdPosterior:
    torch.manual_seed(0)
    q = StdPosterior(nn.Parameter(torch.randn(len(rhos), dtype=torch.float64).to(dtype)), prior=prior)
    with torch.no_grad():
        q.rho.copy_(torch.tensor(rhos))
    return q


def both(q: StdPosterior):
    """Value and gradients with the kernel and without."""
    found = []
    for off in ((), ("gaussian_kl",)):
        with kernels.without(*off):
            value = q.kl_divergence()
        found.append((value, *torch.autograd.grad(value, (q.mean, q.rho))))
    return found


@pytest.mark.parametrize("prior", [1.0, 0.2, GaussianPrior(0.5, 2.0), GaussianPrior(torch.arange(8.0), 0.7)], ids=repr)
@pytest.mark.parametrize("values", [EXTREME, MODERATE, [-50.0, *MODERATE[1:]], [*MODERATE[:-1], 100.0]], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_value_and_gradients_equal_the_plain_ones(values, dtype, tolerance, prior):
    kernel, plain = both(make_posterior(values, dtype, prior))
    # Where sigma underflows, the plain formula takes over.
    lowest = -300 if dtype is torch.float64 else -43
    assert ("GaussianKL" in type(kernel[0].grad_fn).__name__) == (min(values) > lowest)
    assert "GaussianKL" not in type(plain[0].grad_fn).__name__
    torch.testing.assert_close(kernel, plain, rtol=tolerance, atol=torch.finfo(dtype).tiny)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
def test_value_is_torch_distributions_for_every_size(size):
    q = make_posterior([0.3] * size, torch.float64, 0.5)
    expected = kl_divergence(Normal(q.mean, q.std), Normal(0.0, 0.5)).sum()
    torch.testing.assert_close(q.kl_divergence(), expected, rtol=1e-12, atol=0)
    found = torch.autograd.grad(q.kl_divergence(), (q.mean, q.rho))
    torch.testing.assert_close(found, torch.autograd.grad(expected, (q.mean, q.rho)))


def test_gradient_agrees_with_finite_differences():
    q = make_posterior([-2.0, -0.5, 0.0, 1.0], torch.float64)
    given = [p.detach().clone().requires_grad_() for p in (q.mean, q.std)]
    mean, std = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m, s: compute(m, s, mean, std), given)


def test_log_std_goes_on_where_sigma_underflows():
    q = make_posterior([-1e4, -100.0], torch.float32)
    value = q.kl_divergence()
    assert value.item() == pytest.approx(10100, rel=1e-4)
    (gradient,) = torch.autograd.grad(value, q.rho)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, -1.0]))


def test_the_kernel_is_for_one_scale_and_ordinary_tensors():
    q = make_posterior([0.0, 1.0], torch.float64)
    given = (q.mean, q.std, q.prior.mean, q.prior.std)
    assert kernels.find("gaussian_kl", *given) is compute
    others = (
        (*given[:3], torch.ones(2, dtype=torch.float64)),
        tuple(tensor.half() for tensor in given),
        tuple(tensor.to("meta") for tensor in given),
    )
    assert all(kernels.find("gaussian_kl", *other) is None for other in others)
    with torch.autocast("cpu"):
        assert kernels.find("gaussian_kl", *given) is None


@pytest.mark.parametrize("frozen", ["mean", "rho"])
def test_frozen_parameters_get_no_gradient_and_the_others_the_same(frozen):
    q = make_posterior(MODERATE, torch.float64)
    whole = dict(zip(("mean", "rho"), both(q)[0][1:], strict=True))
    q.get_parameter(frozen).requires_grad_(False)
    q.kl_divergence().backward()
    assert q.get_parameter(frozen).grad is None
    other = "rho" if frozen == "mean" else "mean"
    torch.testing.assert_close(q.get_parameter(other).grad, whole[other])


def test_second_derivatives_are_those_of_the_plain_formula():
    layer = dubito.BayesLinear(3, 2, bias=False, initial_std=0.4, dtype=torch.float64)
    q = layer.posteriors["weight"]
    found = []
    for off in ((), ("gaussian_kl",)):
        with kernels.without(*off):
            first = torch.autograd.grad(q.kl_divergence(), (q.mean, q.rho), create_graph=True)
        found.append(torch.autograd.grad(sum(part.square().sum() for part in first), (q.mean, q.rho)))
    torch.testing.assert_close(*found)
