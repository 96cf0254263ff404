"""Moments: exact where the mathematics is, close to draws where it is not, and always the same."""

import gc
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import nn

import dubito
from dubito.errors import NonFiniteError, OptionError, ShapeError
from dubito.heads import KendallGalHead, SoftplusHead
from dubito.heads.points import gaussian_points
from dubito.prediction import moments
from dubito.prediction.moments import MomentDraws, Moments, Propagate, logit_moments
from dubito.prediction.moments.gaussian import clark, root, softplus_moments
from dubito.prediction.moments.prediction import pulled_back

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def rand(*shape, seed=0, dtype=DOUBLE):
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def randn(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def without_budget(monkeypatch):
    monkeypatch.setattr(moments.prediction, "BUDGET", 1e9)


def bayesian(*layers, head="softplus", std=0.15, dtype=DOUBLE) -> nn.Sequential:
    model = dubito.to_bayesian(nn.Sequential(*layers), initial_std=std, head=head)
    return model.to(dtype).eval()


def small_lenet(head="softplus", outputs=4, activation=nn.Softplus, **options) -> nn.Sequential:
    return bayesian(
        nn.Conv2d(1, 4, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 12),
        activation(),
        nn.Linear(12, outputs),
        head=head,
        **options,
    )


class Residual(nn.Module):
    """A residual network with a block of the usual kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.first = nn.Conv2d(6, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.average = nn.AdaptiveAvgPool2d((1, 1))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = self.pool(self.relu(self.norm(self.stem(x))))
        out = self.relu(self.first(x))
        out = self.second(out)
        out += x
        return self.last(torch.flatten(self.average(self.relu(out)), 1))


def draws_of(model, images, samples, seed=0):
    """(T, N, K) logits drawn by ``local``, whose distribution moments stand for."""
    torch.manual_seed(seed)
    with torch.no_grad(), dubito.estimator(model, "local"):
        repeated = images.repeat(samples, *(1,) * (images.dim() - 1))
        return torch.cat([model(part) for part in repeated.split(4096)]).unflatten(0, (samples, len(images)))


def predict_moments(model, images, **options):
    return dubito.Predictor(model, method="moments", **options)(images)


def output_moments(layer, x):
    """The layer's own estimator on moments."""
    with dubito.estimator(layer, Propagate()):
        return layer(x)


def map_by(layer, x, weight, bias):
    """The layer's linear map of `x` by other weights."""
    linear_map, padded = layer.linear_map(x)
    return linear_map(padded, weight, bias)


# The pieces, against mathematics.


def test_linear_and_convolution_have_the_exact_mean_and_variance():
    """Var(sum w x) = sum (E[x]^2 + Var x) Var w + Var x E[w]^2, term by term, for every way that it is computed."""
    for layer, shape in (
        (dubito.BayesLinear(7, 5, dtype=DOUBLE, initial_std=0.3), (20, 7)),
        (dubito.BayesConv2d(3, 4, 3, padding=1, dtype=DOUBLE, initial_std=0.3), (20, 3, 2, 2)),  # as a matrix
        (dubito.BayesConv2d(3, 4, (3, 2), stride=2, padding=(2, 1), dtype=DOUBLE, initial_std=0.3), (20, 3, 3, 2)),
        (dubito.BayesConv2d(4, 4, 3, dilation=2, groups=2, dtype=DOUBLE, initial_std=0.3), (20, 4, 8, 7)),
        (dubito.BayesConv1d(2, 3, 3, padding="same", padding_mode="circular", dtype=DOUBLE), (20, 2, 9)),
        (dubito.BayesConvTranspose2d(2, 3, 3, stride=2, dtype=DOUBLE, initial_std=0.3), (20, 2, 4, 4)),
    ):
        mean, variance = randn(*shape), rand(*shape, seed=1)
        out = output_moments(layer, Moments(mean, variance))
        q = layer.posteriors
        expected = map_by(layer, mean**2 + variance, q["weight"].variance, q["bias"].variance)
        expected = expected + map_by(layer, variance, layer.weight_mean**2, None)
        torch.testing.assert_close(out.expected, map_by(layer, mean, layer.weight_mean, layer.bias_mean))
        torch.testing.assert_close(out.variance, expected)


def test_variance_of_a_linear_layer_is_that_of_its_draws():
    layer = dubito.BayesLinear(3, 2, initial_std=0.5, dtype=DOUBLE)
    mean, variance = randn(1, 3), rand(1, 3, seed=1)
    count = 200_000
    x = mean + variance.sqrt() * randn(count, 3, seed=2)
    weights = layer.weight_mean + layer.weight_std * randn(count, 2, 3, seed=3)
    outputs = torch.einsum("toi,ti->to", weights, x) + layer.bias_mean + layer.bias_std * randn(count, 2, seed=4)
    out = output_moments(layer, Moments(mean, variance))
    error = ((outputs - outputs.mean(0)) ** 2).var(0).sqrt() / math.sqrt(count)
    assert ((outputs.var(0) - out.variance[0]).abs() < 5 * error).all()
    assert ((outputs.mean(0) - out.expected[0]).abs() < 5 * (out.variance[0] / count).sqrt()).all()


def test_covariance_through_dense_layers_is_exact(without_budget):
    """Without nonlinearities: C_out = W C W' + diag(sum (m^2 + diag C) sigma^2), where diag C is as if uncorrelated."""
    model = bayesian(nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 3), std=0.2)
    x = randn(7, 5)
    mean, matrix, variance = x, torch.zeros(7, 5, 5, dtype=DOUBLE), torch.zeros(7, 5, dtype=DOUBLE)
    for layer in model:
        own = F.linear(mean**2 + variance, layer.weight_std**2, layer.bias_std**2)
        variance = own + F.linear(variance, layer.weight_mean**2)
        matrix = layer.weight_mean @ matrix @ layer.weight_mean.T + torch.diag_embed(own)
        mean = F.linear(mean, layer.weight_mean, layer.bias_mean)
    found = logit_moments(model, x)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.covariance, matrix)


@pytest.mark.parametrize(("std", "share"), [(1e-3, 1e-4), (0.3, 1e-4), (1.0, 3e-4), (3.0, 5e-3), (10.0, 0.012)])
def test_softplus_moments_are_those_of_quadrature(std, share):
    """The mean to the accuracy of the mixture, 4e-6; the variance to a `share` of that of x."""
    for mean in (-8.0, -2.0, -0.5, 0.0, 1.0, 4.0, 20.0):
        value, slope, residue = softplus_moments(*torch.tensor([mean, std**2], dtype=DOUBLE))

        def expectation(f, mean=mean):
            density = stats.norm(mean, std).pdf
            low, high = mean - 12 * std, mean + 12 * std
            return integrate.quad(lambda x: f(x) * density(x), low, high, points=[mean], limit=500)[0]

        first = expectation(lambda x: np.logaddexp(0, x))
        variance = expectation(lambda x, first=first: (np.logaddexp(0, x) - first) ** 2)
        assert float(value) == pytest.approx(first, abs=5e-6)
        assert float(slope) == pytest.approx(expectation(lambda x: 1 / (1 + np.exp(-x))), abs=2e-5)
        assert float(slope**2 * std**2 + residue) == pytest.approx(variance, abs=share * std**2)


def test_relu_moments_are_those_of_quadrature():
    for mean, std in ((-3.0, 1.0), (0.0, 2.0), (0.7, 0.1), (1.0, 3.0)):
        density = stats.norm(mean, std).pdf
        first = integrate.quad(lambda x, d=density: x * d(x), 0, 40)[0]
        second = integrate.quad(lambda x, d=density: x * x * d(x), 0, 40)[0]
        start = Moments(torch.tensor([[mean]], dtype=DOUBLE), torch.tensor([[std**2]], dtype=DOUBLE))
        found = torch.relu(start).settled()
        assert float(found.expected) == pytest.approx(first, abs=1e-9)
        assert float(found.variance) == pytest.approx(second - first**2, abs=1e-9)


def test_clark_gives_the_moments_of_the_maximum():
    for a, va, b, vb in ((0.0, 1.0, 0.0, 1.0), (1.0, 0.5, 0.2, 2.0), (-3.0, 0.1, 4.0, 0.2), (0.0, 1e-30, 1.0, 0.0)):
        mean, variance, share = clark(*torch.tensor([a, va, b, vb], dtype=DOUBLE))
        count = 400_000
        x, y = a + math.sqrt(va) * randn(count), b + math.sqrt(vb) * randn(count, seed=1)
        largest = torch.maximum(x, y)
        error = largest.std() / math.sqrt(count) + 1e-12
        assert abs(mean - largest.mean()) < 5 * error
        spread = ((largest - largest.mean()) ** 2).std() / math.sqrt(count) + 1e-12
        assert abs(variance - largest.var()) < 5 * spread
        assert abs(share - (x > y).double().mean()) < 5 / math.sqrt(count)


def test_max_pooling_has_clarks_moments_in_every_window():
    """Without variance it is torch's own; of two cells, Clark's; overlapping and padded windows alike."""
    x = randn(2, 3, 7, 6)
    for options in ((2, 2, 0, 1), (3, 2, 1, 1), ((2, 3), 1, (1, 0), (2, 1))):
        found = F.max_pool2d(Moments(x, torch.full_like(x, 1e-20)), *options)
        torch.testing.assert_close(found.expected, F.max_pool2d(x, *options))
        assert found.variance.abs().max() < 1e-15
    variance = rand(2, 3, 7, 6, seed=1)
    pair = F.max_pool2d(Moments(x, variance), (1, 2))
    mean, spread, _ = clark(x[..., 0::2], variance[..., 0::2], x[..., 1::2], variance[..., 1::2])
    torch.testing.assert_close(pair.expected, mean)
    torch.testing.assert_close(pair.variance, spread)


@pytest.mark.parametrize("options", [(2, 2), (3, 2, 1), (2, 2, 0, 2), (3, 3, 0, 2), ((2, 3), (2, 3), 0, (1, 2))])
def test_without_variance_the_way_back_through_max_pooling_is_its_gradient(options):
    x = randn(2, 3, 9, 8)
    found = F.max_pool2d(Moments(x, torch.full_like(x, 1e-20)), *options)
    ((_, pull),) = found.links
    rows = randn(2, 1, *found.expected.shape[1:], seed=1)
    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.max_pool2d(given, *options), given, rows[:, 0])
    torch.testing.assert_close(pull(rows)[:, 0], expected)


def test_shares_of_a_window_sum_to_one_and_lead_back_to_their_cells():
    """With rows of ones, the way back through max pooling counts how often each cell is the largest, in sum once."""
    x = Moments(randn(2, 3, 8, 8), rand(2, 3, 8, 8, seed=1))
    for options in ((2, 2), (3, 2, 1), (3, 3)):
        found = F.max_pool2d(x, *options)
        ((_, pull),) = found.links
        back = pull(torch.ones(2, 1, *found.expected.shape[1:], dtype=DOUBLE))
        assert back.shape == (2, 1, 3, 8, 8)
        torch.testing.assert_close(
            back.sum((1, 3, 4)), torch.full((2, 3), float(found.expected[0, 0].numel()), dtype=DOUBLE)
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, (3, None)),
        lambda x: x.mean((2, 3)),
        lambda x: torch.mean(x, 1, keepdim=True),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: 2 - x * 0.5,
        lambda x: (x + 1) / 4 - torch.ones(6, dtype=DOUBLE),
        lambda x: F.batch_norm(x, *(rand(3, seed=i) for i in range(4)), training=False),
        lambda x: F.conv2d(x, randn(4, 3, 3, 3, seed=5), None, 2, 1),
        lambda x: F.conv2d(x, randn(4, 3, 3, 3, seed=5), randn(4), 1, "same"),
        lambda x: F.linear(x.flatten(1), randn(5, 108, seed=5)),
        lambda x: x + x * 2,
    ],
)
def test_linear_functions_carry_covariances_exactly(function, without_budget):
    """The covariance of fixed linear functions of independent units, against the matrix of the function."""
    x, variance = randn(2, 3, 6, 6), rand(2, 3, 6, 6, seed=1)
    basis = torch.eye(108, dtype=DOUBLE).view(108, 3, 6, 6)
    matrix = (function(basis) - function(torch.zeros_like(basis))).flatten(1).T
    found = function(Moments(x, variance)).settled()
    torch.testing.assert_close(found.expected, function(x))
    rows = torch.eye(found.expected[0].numel(), dtype=DOUBLE).view(1, -1, *found.expected.shape[1:])
    torch.testing.assert_close(pulled_back(found, rows), matrix @ torch.diag_embed(variance.flatten(1)) @ matrix.T)


def test_dropout_that_draws_has_the_variance_of_its_mask():
    x, variance = randn(2, 5), rand(2, 5, seed=1)
    found = F.dropout(Moments(x, variance), 0.25, True)
    torch.testing.assert_close(found.expected, x)
    torch.testing.assert_close(found.variance, (x**2 + variance) / 0.75 - x**2)
    idle = Moments(x, variance)
    assert F.dropout(idle, 0.25, False) is idle


def test_root_of_a_singular_covariance():
    for matrix in (
        torch.zeros(1, 3, 3, dtype=DOUBLE),
        torch.ones(1, 3, 3, dtype=DOUBLE),
        randn(4, 3, 5) @ randn(4, 5, 3),
    ):
        covariance = matrix @ matrix.mT
        torch.testing.assert_close(root(covariance) @ root(covariance).mT, covariance)
    regular = randn(4, 3, 5)
    covariance = regular @ regular.mT
    torch.testing.assert_close(root(covariance), torch.linalg.cholesky(covariance))


def test_gaussian_points_are_balanced_and_near_normal():
    points = gaussian_points(64, 5)
    assert points.mean(0).abs().max() < 1e-6
    torch.testing.assert_close(points.square().mean(0), torch.ones(5))
    correlations = torch.corrcoef(points.T) - torch.eye(5)
    assert correlations.abs().max() < 1e-6
    assert max(stats.kstest(column, "norm").statistic for column in points.T) < 0.06
    wide = gaussian_points(64, 200)
    torch.testing.assert_close(wide.square().mean(0), torch.ones(200))


# Whole networks.


def test_without_spread_it_is_the_mean_network():
    for activation, tolerance in ((nn.Softplus, 1e-5), (nn.ReLU, 1e-12)):
        model = small_lenet(activation=activation, std=1e-8)
        images = randn(20, 1, 8, 8)
        with torch.no_grad():
            prediction = predict_moments(model, images)
            expected = SoftplusHead().probs(model(images))
        torch.testing.assert_close(prediction.probs, expected, atol=tolerance, rtol=0)
        assert prediction.epistemic.max() < 1e-12


def test_a_frequentist_network_has_no_epistemic_uncertainty():
    """Whatever its functions: without uncertainty they are called as they are."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GELU(), nn.Flatten(), nn.Linear(108, 3)).double().eval()
    images = randn(5, 1, 8, 8)
    with torch.no_grad():
        prediction = predict_moments(model, images, head="softmax", covariance=True)
        torch.testing.assert_close(prediction.probs, torch.softmax(model(images), 1))
    assert torch.equal(prediction.epistemic_per_class, torch.zeros(5, 3, dtype=DOUBLE))
    assert prediction.mutual_information.max() < 1e-12


@pytest.mark.parametrize("outputs", [4, 12])
@torch.no_grad()
def test_the_split_adds_up(outputs):
    prediction = predict_moments(small_lenet(outputs=outputs), randn(6, 1, 8, 8), covariance=True)
    p = prediction.probs
    torch.testing.assert_close(prediction.aleatoric_per_class + prediction.epistemic_per_class, p * (1 - p))
    matrix = prediction.aleatoric_covariance + prediction.epistemic_covariance
    torch.testing.assert_close(matrix, torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1))
    torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=DOUBLE))


@pytest.mark.parametrize("activation", [nn.Softplus, nn.ReLU])
@torch.no_grad()
def test_logits_of_a_small_network_are_distributed_like_its_draws(activation, without_budget):
    """Means within 5 standard errors and a bias of 5 % of the spread, standard deviations within 4 %."""
    model, images, count = small_lenet(activation=activation), randn(16, 1, 8, 8), 4000
    drawn = draws_of(model, images, count)
    found = logit_moments(model, images)
    spread = drawn.std(0)
    assert ((found.mean - drawn.mean(0)).abs() < (0.05 + 5 / math.sqrt(count)) * spread).all()
    ratio = found.covariance.diagonal(dim1=1, dim2=2).sqrt() / spread
    assert ((ratio - 1).abs() < 0.04 + 5 / math.sqrt(2 * count)).all()
    centred = drawn - drawn.mean(0)
    covariance = torch.einsum("tnk,tnl->nkl", centred, centred) / count
    scale = spread.unsqueeze(2) * spread.unsqueeze(1)
    assert ((found.covariance - covariance).abs() / scale).max() < 0.08 + 5 * math.sqrt(2 / count)


@torch.no_grad()
def test_probabilities_and_uncertainty_of_a_small_network_are_those_of_draws():
    model, images, count = small_lenet(), randn(16, 1, 8, 8), 4000
    probs = SoftplusHead().probs(draws_of(model, images, count).flatten(0, 1)).unflatten(0, (count, -1))
    reference, found = dubito.decompose(probs), predict_moments(model, images)
    error = (reference.epistemic_per_class / count).sqrt()
    assert ((found.probs - reference.probs).abs() < 5 * error + 0.005).all()
    assert ((found.epistemic / reference.epistemic - 1).abs() < 0.1 + 5 * math.sqrt(3 / count)).all()
    assert ((found.aleatoric / reference.aleatoric - 1).abs() < 0.01).all()


@torch.no_grad()
def test_a_residual_network_is_distributed_like_its_draws(without_budget):
    """The branches' correlation is not lost: taken as independent, the spread would be a tenth smaller."""
    model = dubito.to_bayesian(Residual(), initial_std=0.1, head="softmax").double().eval()
    model.norm.running_mean.copy_(randn(6) / 5)
    model.norm.running_var.copy_(rand(6) + 0.2)
    images, count = randn(4, 1, 8, 8), 4000
    drawn = draws_of(model, images, count)
    found = logit_moments(model, images)
    spread = drawn.std(0)
    assert ((found.mean - drawn.mean(0)).abs() < (0.1 + 5 / math.sqrt(count)) * spread).all()
    ratio = found.covariance.diagonal(dim1=1, dim2=2).sqrt() / spread
    assert ((ratio - 1).abs() < 0.06 + 5 / math.sqrt(2 * count)).all()


@torch.no_grad()
def test_a_network_with_dropout_is_distributed_like_its_draws(without_budget):
    """Masks are far from Gaussian, so only roughly: standard deviations within a tenth."""
    model = nn.Sequential(nn.Linear(10, 40), nn.Softplus(), nn.Dropout(0.2), nn.Linear(40, 3)).double()
    x, count = randn(5, 10), 20_000
    model.train()
    drawn = model(x.repeat(count, 1)).view(count, 5, 3)
    found = logit_moments(model, x)
    ratio = found.covariance.diagonal(dim1=1, dim2=2).sqrt() / drawn.std(0)
    assert ((ratio - 1).abs() < 5 / math.sqrt(count)).all()
    assert ((found.mean - drawn.mean(0)).abs() < 5 / math.sqrt(count) * drawn.std(0)).all()


@torch.no_grad()
def test_kendall_gal_splits_the_logits():
    model, images, count = small_lenet(head="kendall_gal", outputs=8), randn(6, 1, 8, 8), 4000
    head = KendallGalHead()
    drawn = draws_of(model, images, count)
    means, variances = (t.unflatten(0, (count, -1)) for t in head.logit_moments(drawn.flatten(0, 1)))
    found = predict_moments(model, images)
    assert found.probs.shape == (6, 4)
    assert ((found.epistemic_per_class / means.var(0) - 1).abs() < 0.08 + 5 * math.sqrt(2 / count)).all()
    error = variances.std(0) / math.sqrt(count)  # one standard error of the mean over the draws
    assert ((found.aleatoric_per_class - variances.mean(0)).abs() < 0.01 * variances.mean(0) + 5 * error).all()
    torch.testing.assert_close(found.probs.sum(1), torch.ones(6, dtype=DOUBLE))


@torch.no_grad()
def test_of_many_classes_the_likely_ones_are_followed(without_budget):
    """Of 12 classes 5 are followed; against all, the uncertainty of probabilities hardly differs."""
    model, images = small_lenet(outputs=12, std=0.1), randn(10, 1, 8, 8)
    some, every = logit_moments(model, images), logit_moments(model, images, logits=12)
    largest = some.mean.topk(5).indices
    pick = torch.arange(10).unsqueeze(1)
    full = every.covariance[pick.unsqueeze(2), largest.unsqueeze(2), largest.unsqueeze(1)]
    torch.testing.assert_close(some.covariance[pick.unsqueeze(2), largest.unsqueeze(2), largest.unsqueeze(1)], full)
    assert some.rest is not None
    assert ((some.rest > 0).sum(1) == 7).all()


# What a caller can rely on.


class Unknown(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)


def test_an_unknown_module_is_named():
    model = nn.Sequential(dubito.BayesLinear(4, 4), nn.Sequential(Unknown()), dubito.BayesLinear(4, 2)).eval()
    with pytest.raises(OptionError, match=r"'1\.0' \(Unknown\), which calls cumsum"):
        logit_moments(model, torch.ones(2, 4))
    model = nn.Sequential(dubito.BayesConv2d(1, 3, 3), nn.BatchNorm2d(3)).train()
    with pytest.raises(OptionError, match=r"'1' \(BatchNorm2d\), which calls batch_norm with the statistics"):
        logit_moments(model, torch.ones(2, 1, 8, 8))


def test_unsuitable_outputs_are_refused():
    with pytest.raises(ShapeError, match=r"\(2, 3, 6, 6\).*method='weights'"):
        logit_moments(dubito.BayesConv2d(1, 3, 3), torch.ones(2, 1, 8, 8))
    with pytest.raises(OptionError, match="points is 1"):
        MomentDraws(dubito.BayesLinear(2, 2), points=1)
    broken = dubito.BayesLinear(2, 2)
    nn.init.constant_(broken.weight_mean, math.nan)
    with pytest.raises(NonFiniteError, match=r"posteriors\.weight\.mean"):
        predict_moments(broken, torch.ones(1, 2), head="softplus")


@torch.no_grad()
def test_the_answer_is_always_the_same_and_nothing_is_touched():
    model, images = small_lenet(dtype=torch.float32), randn(40, 1, 8, 8, dtype=torch.float32)
    state, buffers = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    estimators = [m.forced_estimator for m in model.modules() if isinstance(m, dubito.BayesLayer)]
    first, second = (predict_moments(model, images) for _ in range(2))
    assert torch.equal(first.probs, second.probs)
    assert torch.equal(first.epistemic_per_class, second.epistemic_per_class)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, buffers[k]) for k, v in model.state_dict().items())
    assert [m.forced_estimator for m in model.modules() if isinstance(m, dubito.BayesLayer)] == estimators
    assert not model.training


@torch.no_grad()
def test_neither_batch_size_nor_precision_matters():
    """Not even where the matrix of a convolution decides how far covariances are followed."""
    convolutions = [part for _ in range(3) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.Softplus())]
    layers = [nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), *convolutions]
    model, images = bayesian(*layers, nn.Flatten(), nn.Linear(16, 7)), randn(40, 1, 8, 8)
    predictor = dubito.Predictor(model, method="moments")
    whole, parts = predictor(images), [predictor(part) for part in images.split(7)]
    single = predict_moments(model.float(), images.float())
    assert single.probs.dtype is torch.float32
    for name in ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information"):
        torch.testing.assert_close(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
        torch.testing.assert_close(getattr(single, name).double(), getattr(whole, name), atol=2e-5, rtol=1e-3)


def test_gradients_of_the_pieces():
    a, b = (randn(6, seed=s).requires_grad_() for s in (0, 1))
    va, vb = (rand(6, seed=s).add(0.1).requires_grad_() for s in (2, 3))
    assert torch.autograd.gradcheck(clark, (a, va, b, vb))
    assert torch.autograd.gradcheck(softplus_moments, (a, va))
    matrix = (randn(2, 3, 5) @ randn(2, 3, 5).mT).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: root(m + m.mT), (matrix,))


def test_gradients_reach_every_parameter():
    model = small_lenet()
    found = logit_moments(model, randn(20, 1, 8, 8))
    SoftplusHead().log_probs(found.points(16).flatten(0, 1)).mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_it_becomes_a_graph_of_plain_operations():
    model, images = small_lenet(outputs=7), randn(20, 1, 8, 8)

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            split = SoftplusHead().split()
            split.update(logit_moments(self.model, x).points(64))
            prediction = split.compute()
            return prediction.probs, prediction.aleatoric, prediction.epistemic

    graph = torch.export.export(Split(), (images,), strict=False).module()
    other = randn(20, 1, 8, 8, seed=9)
    for a, b in zip(graph(other), Split()(other), strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
def test_nothing_is_left_in_memory_after_a_prediction():
    """Prepared weights are several times as large as the network: they must not wait for the garbage collector."""
    model, images = small_lenet(), randn(20, 1, 8, 8)
    predict_moments(model, images)

    def left() -> int:
        return sum(issubclass(type(thing), Moments) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = left()
        predict_moments(model, images)
        assert left() == before
    finally:
        gc.enable()


class Then(nn.Module):
    """A layer, and then a function of its output."""

    def __init__(self, layer, function):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x):
        return self.function(self.layer(x))


def test_joined_channels_carry_their_covariance():
    """[h, 2h, c] times weights of the outputs: by hand, one linear map of h."""
    torch.manual_seed(0)
    layer = dubito.BayesLinear(4, 3, initial_std=0.3).double()
    weight = randn(2, 7, seed=1)

    def joined(h):
        return F.linear(torch.cat([h, h * 2, torch.ones(len(h), 1, dtype=DOUBLE)], dim=1), weight)

    x = randn(5, 4)
    found = logit_moments(Then(layer, joined), x)
    combined = weight[:, :3] + 2 * weight[:, 3:6]
    h = logit_moments(layer, x)
    torch.testing.assert_close(found.mean, h.mean @ combined.T + weight[:, 6])
    torch.testing.assert_close(found.covariance, combined @ h.covariance @ combined.T)


REFUSED = {
    "the property data": lambda h: h.data,
    "the property mT": lambda h: h.mT.mT,
    "the operator getitem": lambda h: h[:, :2],
    "the operator pow": lambda h: h**2,
    "the operator rtruediv": lambda h: 1 / h,
    "the operator gt": lambda h: h > 0,
    "the operator abs": abs,
    "stack": lambda h: torch.stack([h, h], 1),
    "cat along the batch axis": lambda h: torch.cat([h, h]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_lose_the_variance_is_refused(what):
    network = Then(dubito.BayesLinear(4, 3), REFUSED[what])
    with pytest.raises(OptionError, match=f"which calls {what}: use method='weights'"):
        dubito.predict(network, torch.ones(2, 4), head="softmax", method="moments")


def test_operations_in_place_reach_all_names_of_a_value():
    layer = dubito.BayesLinear(4, 3, initial_std=0.3).double()

    def in_place(h):
        alias = h
        h += 1
        h *= 2
        F.dropout(h, training=False, inplace=True)
        return -alias

    x = randn(5, 4)
    found, before = logit_moments(Then(layer, in_place), x), logit_moments(layer, x)
    torch.testing.assert_close(found.mean, -2 * (before.mean + 1))
    torch.testing.assert_close(found.covariance, 4 * before.covariance)


def test_dropout_that_does_nothing_leaves_a_relu_in_place():
    def in_place(h):
        F.relu(h, inplace=True)
        F.dropout(h, training=False, inplace=True)
        return h

    network, x = Then(dubito.BayesLinear(4, 3, initial_std=1e-6).double(), in_place).eval(), randn(5, 4)
    torch.testing.assert_close(logit_moments(network, x).mean, network(x), atol=1e-5, rtol=0)


def test_padded_maxima_in_half_precision():
    network = nn.Sequential(dubito.BayesConv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten()).eval()
    x = randn(2, 1, 6, 6, dtype=torch.float32)
    expected = logit_moments(network, x).mean
    torch.testing.assert_close(logit_moments(network.half(), x.half()).mean.float(), expected, atol=5e-3, rtol=5e-3)


SELF_SUMS = {
    "h + h": (lambda h: h + h, 2.0),
    "h - h": (lambda h: h - h, 0.0),
    "2 h + h": (lambda h: h * 2 + h, 3.0),
    "h - h / 2": (lambda h: h - h / 2, 0.5),
    "1 - h + h + h": (lambda h: 1 - h + h + h, 1.0),
    "(h + h) + (h - 3 h)": (lambda h: (h + h) + (h - 3 * h), 0.0),
    "h += h": (lambda h: h.__iadd__(h), 2.0),
    "torch.add": (lambda h: torch.add(h, h), 2.0),
}


@pytest.mark.parametrize("name", SELF_SUMS)
def test_a_value_added_to_itself_varies_as_its_multiple(name):
    """Var(k h) = k^2 Var(h), in the units' own variances and in the covariance of the logits."""
    function, factor = SELF_SUMS[name]
    expected, variance = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)
    h = Moments(expected, variance)
    found = function(h).current()
    torch.testing.assert_close(found.variance, factor**2 * variance)

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = dubito.BayesLinear(3, 4, initial_std=0.3), dubito.BayesLinear(4, 2)

        def forward(self, x):
            return self.last(torch.relu(function(self.layer(x))))

    class Multiplied(Sums):
        def forward(self, x):
            h = self.layer(x)
            return self.last(torch.relu(h * factor + (1.0 if name.startswith("1") else 0.0)))

    torch.manual_seed(0)
    sums, multiplied = Sums().double(), Multiplied().double()
    multiplied.load_state_dict(sums.state_dict())
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(logit_moments(sums, x).covariance, logit_moments(multiplied, x).covariance)


def test_a_residual_branch_counts_as_independent_in_the_units_and_varies_together_in_the_logits():
    """h + f(h), f linear and certain: the logits' covariance is exact, (1 + a)^2 Var(h)."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.branch = dubito.BayesLinear(1, 2, bias=False, initial_std=0.5), nn.Linear(2, 2, bias=False)
            nn.init.constant_(self.branch.weight, 0.0)
            self.branch.weight.data += 3 * torch.eye(2)

        def forward(self, x):
            h = self.layer(x)
            return h + self.branch(h)

    covariance = logit_moments(Residual(), torch.tensor([[2.0]])).covariance
    torch.testing.assert_close(covariance[0], 16 * torch.eye(2))
