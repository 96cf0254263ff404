"""The kernel of sigma = softplus(rho): equal to the plain formula with its derivatives, and once in a pass."""

import pytest
import torch
from torch import nn

import dubito
from dubito import kernels
from dubito.kernels.std import applies, compute
from dubito.variational.draws import one_pass
from dubito.variational.families import StdPosterior

EXTREME = [-1e4, -200.0, -90.0, -40.0, -5.0, 0.0, 3.0, 50.0]
MODERATE = [-39.9, -20.0, -8.0, -4.0, -1.0, 0.0, 3.0, 79.9]


def make_posterior(rhos, dtype=torch.float64) -> StdPosterior:
    q = StdPosterior(nn.Parameter(torch.zeros(len(rhos), dtype=dtype)))
    with torch.no_grad():
        q.rho.copy_(torch.tensor(rhos))
    return q


@pytest.mark.parametrize("values", [EXTREME, MODERATE, [-50.0, *MODERATE[1:]], [*MODERATE[:-1], 100.0]], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_sigma_and_its_gradient_equal_the_plain_ones(values, dtype, tolerance):
    """Well between underflow and overflow, where the formula is short, and beyond."""
    q, found = make_posterior(values, dtype), []
    for off in ((), ("std",)):
        with kernels.without(*off):
            std = q.std
        weights = torch.linspace(1, 2, len(values), dtype=dtype)
        found.append((std, *torch.autograd.grad((std * weights).sum(), q.rho)))
    assert "_Std" in type(found[0][0].grad_fn).__name__
    assert "_Std" not in type(found[1][0].grad_fn).__name__
    torch.testing.assert_close(*found, rtol=tolerance, atol=torch.finfo(dtype).tiny)


def test_first_and_second_derivatives_agree_with_finite_differences():
    rho = torch.tensor([-3.0, -0.5, 0.0, 2.0], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(compute, rho)
    assert torch.autograd.gradgradcheck(compute, rho)


def test_a_pass_computes_sigma_once_and_sees_what_has_changed():
    q = make_posterior([-1.0, 0.0, 1.0])
    layer = dubito.BayesLinear(2, 2)
    other = {name: torch.full_like(p, 0.5) for name, p in layer.named_parameters()}
    with one_pass():
        first = q.std
        assert first.data_ptr() == q.std.data_ptr()
        with torch.no_grad():
            q.rho.add_(1.0)
        torch.testing.assert_close(q.std, torch.nn.functional.softplus(q.rho))
        before = layer.weight_std
        with torch.nn.utils.stateless._reparametrize_module(layer, other):
            torch.testing.assert_close(layer.weight_std, torch.nn.functional.softplus(torch.full((2, 2), 0.5)))
        torch.testing.assert_close(layer.weight_std, before)
    apart = q.std, q.std
    assert apart[0].data_ptr() != apart[1].data_ptr()


def test_the_kernel_is_for_ordinary_tensors():
    rho = torch.zeros(3)
    assert applies(rho)
    assert not applies(rho.half())
    assert not applies(rho.to("meta"))
