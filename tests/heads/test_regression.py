"""The Gaussian head: predictions of a linear model against the analytic predictive distribution."""

import math

import pytest
import torch
from torch import nn

import dubito
from dubito.heads import GaussianHead
from dubito.prediction import Regression

DOUBLE = torch.float64


def linear(std=0.3, noise=0.5) -> dubito.BayesLinear:
    torch.manual_seed(0)
    layer = dubito.BayesLinear(4, 2, initial_std=std, dtype=DOUBLE)
    layer.set_std(0.1)
    with torch.no_grad():
        layer.posteriors["weight"].set_std(0.1 + torch.rand(2, 4, dtype=DOUBLE))
    return dubito.attach_head(layer, GaussianHead(noise))


def analytic(layer, x):
    """The mean x'mu and the variance x' Sigma x of a linear layer with independent weights."""
    mean = x @ layer.weight_mean.T + layer.bias_mean
    variance = x.square() @ layer.weight_std.square().T + layer.bias_std.square()
    return mean.detach(), variance.detach()


@pytest.mark.parametrize("count", [5, 40], ids=["few images", "many images"])
def test_prediction_of_a_linear_model_is_the_analytic_one(count):
    """Antithetic pairs have the mean exactly; a variance from n pairs has the standard error sqrt(2 / n) of itself."""
    layer, x, samples = linear(), torch.randn(count, 4, dtype=DOUBLE), 4000
    found = dubito.Predictor(layer, samples)(x)
    mean, variance = analytic(layer, x)
    assert isinstance(found, Regression)
    assert (len(found), found.samples) == (count, samples)
    torch.testing.assert_close(found.mean, mean)
    assert ((found.epistemic - variance).abs() < 5 * math.sqrt(2 / (samples / 2)) * variance).all()
    assert torch.equal(found.aleatoric, torch.full_like(mean, 0.25))


def test_moments_of_a_linear_model_are_the_analytic_ones_exactly():
    layer, x = linear(), torch.randn(5, 4, dtype=DOUBLE)
    found = dubito.Predictor(layer, method="moments")(x)
    mean, variance = analytic(layer, x)
    torch.testing.assert_close(found.mean, mean, rtol=1e-5, atol=1e-6)  # its points have single precision
    torch.testing.assert_close(found.epistemic, variance, rtol=1e-5, atol=1e-6)


def test_local_draws_of_a_linear_model_have_the_analytic_moments():
    layer, x, samples = linear(), torch.randn(5, 4, dtype=DOUBLE), 1500
    found = dubito.Predictor(layer, samples, "local")(x)
    mean, variance = analytic(layer, x)
    assert ((found.mean - mean).abs() < 5 * (variance / samples).sqrt()).all()
    assert ((found.epistemic - variance).abs() < 5 * math.sqrt(2 / samples) * variance).all()


def test_the_mean_has_no_epistemic_uncertainty():
    layer, x = linear(), torch.randn(5, 4, dtype=DOUBLE)
    found = dubito.Predictor(layer, method="mean")(x)
    torch.testing.assert_close(found.mean, analytic(layer, x)[0])
    assert found.epistemic.abs().max() == 0


def test_draws_are_outputs_and_make_the_prediction():
    layer, x = linear(), torch.randn(30, 4, dtype=DOUBLE)
    predictor = dubito.Predictor(layer, 7, covariance=True)
    draws, found = predictor.draws(x), predictor(x)
    assert draws.shape == (7, 30, 2)
    torch.testing.assert_close(found.mean, draws.mean(0))
    torch.testing.assert_close(found.epistemic, draws.var(0, correction=0))
    centred = draws - draws.mean(0)
    torch.testing.assert_close(found.epistemic_covariance, torch.einsum("tnc,tnd->ncd", centred, centred) / 7)
    torch.testing.assert_close(found.epistemic_covariance.diagonal(dim1=1, dim2=2), found.epistemic)


def test_batches_are_joined_and_parts_taken():
    layer, x = linear(), torch.randn(11, 4, dtype=DOUBLE)
    whole = dubito.predict(layer, x)
    parts = dubito.predict(layer, x.split([4, 1, 6]))
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.epistemic, whole.epistemic)
    assert torch.equal(whole[3].epistemic, whole.epistemic[3:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_are_averaged_in_single_precision(dtype):
    outputs = (300 + torch.randn(500, 3, 2)).to(dtype)
    split = GaussianHead().split()
    split.update(outputs)
    found = split.compute()
    assert found.mean.dtype == found.epistemic.dtype == torch.float32
    torch.testing.assert_close(found.mean.double(), outputs.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.epistemic.double(), outputs.double().var(0, correction=0), rtol=1e-3, atol=0)


def test_a_plain_network_is_one_draw():
    network = dubito.attach_head(nn.Linear(4, 2), GaussianHead(2.0))
    found = dubito.predict(network, torch.ones(3, 4))
    assert found.samples == 1
    assert found.epistemic.abs().max() == 0
    assert (found.aleatoric == 4).all()
