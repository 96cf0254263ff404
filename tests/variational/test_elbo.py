"""The free energy: its formula, its gradient, its schedules, and that it finds a posterior known in closed form."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dubito
from dubito.errors import DubitoWarning, HeadError, NonFiniteError, OptionError, ShapeError
from dubito.estimators import Weight
from dubito.heads import GaussianHead
from dubito.variational.elbo import ELBO, KLSchedule
from dubito.variational.posterior import drawn, one_pass, posteriors
from layer_zoo import make_layer, randomize

SCHEDULES = ("blundell", "uniform", "warmup", "constant")


@pytest.mark.parametrize("kl_weight", [0.0, 0.1, 1.0, 7.5])
def test_loss_is_mean_negative_log_likelihood_plus_weighted_kl_over_the_number_of_data(kl_weight):
    torch.manual_seed(0)
    model = randomize(make_layer("Linear", estimator="mean"))
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(4, (8,))
    terms = ELBO(num_data=500, head="softmax")(model, x, y, kl_weight=kl_weight)
    nll = nn.functional.cross_entropy(x @ model.weight_mean.T + model.bias_mean, y)
    torch.testing.assert_close(terms.nll, nll)
    assert torch.equal(terms.kl, model.kl_divergence())
    torch.testing.assert_close(terms.loss, nll + kl_weight * model.kl_divergence() / 500)


def test_several_draws_average_the_log_likelihood_not_the_probabilities():
    torch.manual_seed(0)
    model = randomize(make_layer("Linear"))
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(4, (8,))
    torch.manual_seed(1)
    terms = ELBO(num_data=8, head="softplus", samples=5)(model, x, y)
    torch.manual_seed(1)
    draws = torch.stack([dubito.log_softplus_normalize(model(x)) for _ in range(5)])
    picked = draws[:, torch.arange(8), y]
    torch.testing.assert_close(terms.nll, -picked.mean())
    torch.testing.assert_close(terms.log_probs, draws.exp().mean(0).log().detach())
    assert not terms.log_probs.requires_grad


def test_dense_outputs_count_every_pixel_of_an_example():
    torch.manual_seed(0)
    model = dubito.BayesConv2d(1, 3, 1, estimator="mean", dtype=torch.float64)
    x, y = torch.randn(2, 1, 4, 4, dtype=torch.float64), torch.randint(3, (2, 4, 4))
    terms = ELBO(num_data=2, head="softmax")(model, x, y)
    torch.testing.assert_close(terms.nll, nn.functional.cross_entropy(model(x), y) * 16)


def test_soft_labels_give_the_expected_negative_log_likelihood():
    torch.manual_seed(0)
    model = make_layer("Linear", estimator="mean")
    x, soft = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64).softmax(1)
    terms = ELBO(num_data=5, head="softmax")(model, x, soft)
    torch.testing.assert_close(terms.nll, nn.functional.cross_entropy(model(x), soft))


def test_gradient_is_the_one_derived_by_hand():
    """One weight, Gaussian noise s, prior N(0, p^2), w = mu + sigma eps; residuals r = y - x w."""
    torch.manual_seed(0)
    noise, prior_std, num_data = 0.4, 0.8, 50
    model = dubito.BayesLinear(
        1, 1, bias=False, estimator="weight", prior=prior_std, initial_std=0.3, dtype=torch.float64
    )
    x = torch.randn(20, 1, dtype=torch.float64)
    y = 1.5 * x + noise * torch.randn_like(x)
    torch.manual_seed(1)
    terms = ELBO(num_data, GaussianHead(noise))(model, x, y)
    terms.loss.backward()
    torch.manual_seed(1)
    eps = torch.randn(1, 1, dtype=torch.float64).item()
    mu, rho = model.weight_mean.item(), model.posteriors["weight"].rho.item()
    sigma = math.log1p(math.exp(rho))
    residuals = y - x * (mu + sigma * eps)
    d_weight = -(residuals * x).mean().item() / noise**2
    d_mu = d_weight + mu / prior_std**2 / num_data
    d_rho = (d_weight * eps + (sigma / prior_std**2 - 1 / sigma) / num_data) / (1 + math.exp(-rho))
    assert model.weight_mean.grad.item() == pytest.approx(d_mu, rel=1e-10)
    assert model.posteriors["weight"].rho.grad.item() == pytest.approx(d_rho, rel=1e-10)


def test_elbo_of_the_exact_posterior_is_the_log_evidence():
    """With one weight the posterior is Gaussian, and the bound is tight: -N loss = log p(y | x) in expectation."""
    torch.manual_seed(0)
    noise, prior_std = 0.5, 1.3
    x = torch.randn(12, 1, dtype=torch.float64)
    y = 0.7 * x + noise * torch.randn_like(x)
    precision = (x.square().sum() / noise**2 + 1 / prior_std**2).item()
    model = dubito.BayesLinear(1, 1, bias=False, prior=prior_std, initial_std=precision**-0.5, dtype=torch.float64)
    nn.init.constant_(model.weight_mean, (x * y).sum().item() / noise**2 / precision)
    covariance = noise**2 * torch.eye(12, dtype=torch.float64) + prior_std**2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(12, dtype=torch.float64), covariance)
    expected = evidence.log_prob(y[:, 0]).item()
    objective = ELBO(12, GaussianHead(noise))
    with torch.no_grad():
        bounds = torch.stack([-12 * objective(model, x, y).loss for _ in range(2500)])
    standard_error = bounds.std().item() / math.sqrt(len(bounds))
    assert bounds.mean().item() == pytest.approx(expected, abs=6 * standard_error)
    assert standard_error < 0.05


@pytest.mark.parametrize(
    ("estimator", "family"),
    [("local", "std"), ("local", "alpha"), (Weight(draws=20, antithetic=True), "std")],
)
def test_training_recovers_the_mean_field_optimum_of_bayesian_linear_regression(estimator, family):
    """Known noise: the best q has the exact posterior mean, and sigma_i = 1 / sqrt(Lambda_ii), not the marginals."""
    torch.manual_seed(0)
    noise, prior_std, num_data, copies = 0.5, 0.8, 80, 20
    steps = 1500 if family == "alpha" else 800
    x = torch.randn(num_data, 3, dtype=torch.float64)
    x[:, 1] += 0.8 * x[:, 0]  # correlated inputs, so that mean field and marginals differ
    weights = torch.tensor([[1.0, -2.0, 1.5]], dtype=torch.float64)
    y = x @ weights.T + noise * torch.randn(num_data, 1, dtype=torch.float64)
    precision = x.T @ x / noise**2 + torch.eye(3, dtype=torch.float64) / prior_std**2
    mean = torch.linalg.solve(precision, x.T @ y / noise**2).T
    model = dubito.BayesLinear(
        3, 1, bias=False, prior=prior_std, estimator=estimator, posterior=family, dtype=torch.float64
    )
    model.weight_mean.data = weights.sign()  # alpha cannot pass through 0
    model.set_std(0.2)
    objective = ELBO(num_data, GaussianHead(noise))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.001 ** (1 / steps))
    for _ in range(steps):
        optimizer.zero_grad()
        objective(model, x.repeat(copies, 1), y.repeat(copies, 1)).loss.backward()  # copies are as many draws
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(model.weight_mean.detach(), mean, rtol=0.02, atol=0)
    torch.testing.assert_close(model.weight_std.detach()[0], precision.diag().rsqrt(), rtol=0.02, atol=0)
    marginals = torch.linalg.inv(precision).diag().sqrt()
    assert (marginals / precision.diag().rsqrt()).max() > 1.15


@pytest.mark.parametrize("num_batches", [1, 2, 3, 10, 63, 64, 1000, 1024, 1025, 50_000, 1_000_000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_betas_of_an_epoch_sum_to_one(name, num_batches):
    betas = KLSchedule(name).betas(num_batches)
    assert betas.shape == (num_batches,)
    assert betas.isfinite().all()
    assert (betas >= 0).all()
    assert betas.sum().item() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("num_batches", [1, 2, 5, 20])
def test_blundell_betas_are_the_papers(num_batches):
    exact = [2 ** (num_batches - i) / (2**num_batches - 1) for i in range(1, num_batches + 1)]
    assert KLSchedule("blundell").betas(num_batches).tolist() == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.0])
@pytest.mark.parametrize("num_batches", [1, 7, 1500, 1_000_000])
@pytest.mark.parametrize("name", ["blundell", "uniform", "constant"])
def test_weight_is_temperature_times_number_of_batches_times_beta(name, num_batches, temperature):
    schedule = KLSchedule(name, temperature=temperature)
    betas = schedule.betas(num_batches)
    for batch in {0, min(3, num_batches - 1), num_batches // 2, num_batches - 1}:
        expected = temperature * num_batches * betas[batch].item()
        assert schedule.weight(batch, num_batches, epoch=3) == pytest.approx(expected, rel=1e-12)


def test_warmup_rises_linearly_to_the_temperature_and_stays():
    schedule = KLSchedule("warmup", temperature=0.5, warmup_epochs=2)
    weights = [schedule.weight(batch, 4, epoch) for epoch in range(4) for batch in range(4)]
    assert weights == pytest.approx([0.5 * min(1, step / 8) for step in range(16)])
    assert KLSchedule("warmup", warmup_epochs=0).weight(0, 10, 0) == 1.0


def test_epoch_of_weighted_losses_contains_the_kl_once():
    """The sum over minibatches of size N / M of their weighted KL terms, in units of the whole data set."""
    num_data, num_batches = 640, 10
    for name in ("blundell", "uniform", "constant"):
        weights = [KLSchedule(name).weight(i, num_batches) for i in range(num_batches)]
        assert sum(w / num_data * (num_data / num_batches) for w in weights) == pytest.approx(1, rel=1e-12)


def test_head_of_the_model_is_used_when_none_is_given():
    torch.manual_seed(0)
    model = dubito.attach_head(make_layer("Linear", estimator="mean"), "softplus")
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(4, (5,))
    own, given = ELBO(5)(model, x, y), ELBO(5, "softplus")(model, x, y)
    assert torch.equal(own.loss, given.loss)
    with pytest.raises(HeadError, match="has no head"):
        ELBO(5)(make_layer("Linear"), x, y)


def test_frequentist_network_has_no_complexity_cost():
    model = nn.Linear(3, 4)
    terms = ELBO(5, "softmax")(model, torch.randn(5, 3), torch.randint(4, (5,)))
    assert terms.kl.item() == 0
    assert torch.equal(terms.loss, terms.nll)


def test_kl_may_be_the_monte_carlo_form():
    torch.manual_seed(0)
    model = randomize(make_layer("Linear", estimator="mean"))
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(4, (5,))
    objective = ELBO(5, "softmax", kl_samples=8)
    draws = torch.stack([objective(model, x, y).kl.detach() for _ in range(150)])
    standard_error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(model.kl_divergence().item(), abs=6 * standard_error)
    assert standard_error > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ELBO(0, "softmax"), "num_data is 0, but must be the number of training examples"),
        (lambda: ELBO(10, "softmax", samples=0), "samples is 0, but a step needs at least 1 draw"),
        (lambda: ELBO(10, "argmax"), "head is 'argmax', but must be one of 'softplus'"),
        (lambda: KLSchedule("cosine"), "KL schedule is 'cosine', but must be one of 'blundell', 'uniform', 'warmup'"),
        (lambda: KLSchedule(temperature=-1.0), "temperature is -1.0, but must be at least 0 and finite"),
        (lambda: KLSchedule(temperature=math.nan), "temperature is nan"),
        (lambda: KLSchedule("warmup", warmup_epochs=-1), "warmup_epochs is -1, but must be at least 0"),
        (lambda: KLSchedule().betas(0), "num_batches is 0, but an epoch has at least 1"),
        (lambda: KLSchedule().weight(5, 5), r"batch is 5, but must lie in 0 \.\.\. 4"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("estimator", ["weight", "mean"])
def test_the_monte_carlo_cost_of_equation_3_is_that_of_the_weights_of_the_forward_pass(estimator, samples):
    """log q(w) - log p(w) at the very weights whose likelihood the same step has, draw by draw."""
    torch.manual_seed(0)
    model = randomize(make_layer("Linear", estimator=estimator, prior=0.7))
    seen = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x):
            seen.append([drawn(q) for q in model.posteriors.values()])
            return model(x)

    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(4, (5,))
    terms = ELBO(5, "softmax", samples=samples, kl_samples=1)(Watching(), x, y)
    assert len(seen) == samples
    prior, costs, likelihoods = torch.distributions.Normal(0.0, 0.7), [], []
    for weight, bias in seen:
        cost = 0.0
        for q, w in zip(model.posteriors.values(), (weight, bias), strict=True):
            cost = cost + (torch.distributions.Normal(q.mean, q.std).log_prob(w) - prior.log_prob(w)).sum()
        costs.append(cost)
        likelihoods.append(-nn.functional.cross_entropy(x @ weight.T + bias, y))
    torch.testing.assert_close(terms.kl, torch.stack(costs).mean())
    if estimator == "weight":
        torch.testing.assert_close(terms.nll, -torch.stack(likelihoods).mean())


def test_the_monte_carlo_cost_has_the_weights_of_every_layer_of_a_converted_network():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    network = dubito.to_bayesian(plain, estimator="weight", initial_std=0.3)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
    with one_pass():  # an objective inside a pass is part of it
        terms = ELBO(6, "softmax", kl_samples=1)(network, x, y)
        weights = {q: drawn(q) for q in posteriors(network).values()}
    expected = sum(q.log_prob(w) - q.prior.log_prob(w) for q, w in weights.items())
    torch.testing.assert_close(terms.kl, expected)
    hidden = torch.tanh(x @ weights[network[0].posteriors["weight"]].T + weights[network[0].posteriors["bias"]])
    logits = hidden @ weights[network[2].posteriors["weight"]].T + weights[network[2].posteriors["bias"]]
    torch.testing.assert_close(terms.nll, nn.functional.cross_entropy(logits, y))


def test_every_draw_of_a_step_has_weights_of_its_own():
    torch.manual_seed(0)
    model = make_layer("Linear", estimator="weight", initial_std=0.5)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(4, (5,))
    losses = {ELBO(5, "softmax")(model, x, y).nll.item() for _ in range(5)}
    assert len(losses) == 5
    torch.manual_seed(1)
    both = ELBO(5, "softmax", samples=2)(model, x, y).nll
    torch.manual_seed(1)
    apart = torch.stack([ELBO(5, "softmax")(model, x, y).nll for _ in range(2)])
    torch.testing.assert_close(both, apart.mean())
    assert apart[0] != apart[1]


def test_nan_parameters_and_wrong_targets_are_refused():
    model = make_layer("Linear")
    x = torch.randn(5, 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"targets have shape \(4,\)"):
        ELBO(5, "softmax")(model, x, torch.zeros(4, dtype=torch.long))
    with torch.no_grad():
        model.posteriors["weight"].rho[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"NaN or infinite values in posteriors\.weight\.rho"):
        ELBO(5, "softmax")(model, x, torch.zeros(5, dtype=torch.long))


def test_checkpointed_layers_have_the_same_loss_and_gradients():
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    torch.manual_seed(0)
    plain = nn.Sequential(dubito.BayesLinear(4, 8), nn.Softplus(), dubito.BayesLinear(8, 3)).double()
    inputs, targets = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    found = []
    for model in (plain, Checkpointed(*plain)):
        model.zero_grad()
        torch.manual_seed(1)
        loss = ELBO(10, head="softmax")(model, inputs, targets).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*found)


def test_a_network_that_returns_a_tuple_is_told_what_to_do():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    with pytest.raises(ShapeError, match=r"returned tuple, but ELBO needs a tensor.*dubito\.Logits"):
        ELBO(10, head="softmax")(Two(2, 2), torch.ones(1, 2), torch.tensor([0]))


def test_gradients_of_every_example_by_vmap():
    model = dubito.attach_head(nn.Linear(4, 3), "softplus").double()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    inputs, targets = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])

    def nll(parameters, x, y):
        outputs = torch.func.functional_call(model, parameters, (x.unsqueeze(0),))
        return -model.probability_head.log_likelihood(outputs, y.unsqueeze(0)).sum()

    rows = torch.func.vmap(torch.func.grad(nll), (None, 0, 0))(parameters, inputs, targets)
    total = -model.probability_head.log_likelihood(model(inputs), targets).sum()
    torch.testing.assert_close(rows["weight"].sum(0), torch.autograd.grad(total, model.weight)[0])


def test_the_free_energy_can_be_transformed_by_torch_func_with_respect_to_anything():
    torch.manual_seed(0)
    network = dubito.attach_head(dubito.BayesLinear(4, 3, dtype=torch.float64), "softmax")
    x, labels = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))

    def loss(x, **means):
        torch.manual_seed(1)
        with torch.nn.utils.stateless._reparametrize_module(network, means):
            return ELBO(10)(network, x, labels).loss

    means = {f"posteriors.{name}.mean": q.mean.detach() for name, q in network.posteriors.items()}
    of_x = torch.func.grad(loss)(x)
    of_means = torch.func.grad(lambda means: loss(x, **means))(means)
    given = x.clone().requires_grad_()
    expected = torch.autograd.grad(loss(given), (given, network.weight_mean, network.bias_mean))
    for found, wanted in zip((of_x, *of_means.values()), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_several_gradients_at_once_are_those_one_by_one():
    torch.manual_seed(0)
    network = dubito.attach_head(dubito.BayesLinear(4, 3), "softmax")
    terms = ELBO(10)(network, torch.randn(5, 4), torch.randint(3, (5,)))
    for term in (terms.nll, terms.kl, terms.loss):
        alone = torch.autograd.grad(term, network.parameters(), retain_graph=True)
        factors = torch.tensor([1.0, -2.0])
        many = torch.autograd.grad(term, network.parameters(), factors, retain_graph=True, is_grads_batched=True)
        for one, both in zip(alone, many, strict=True):
            torch.testing.assert_close(both, torch.stack([one, -2 * one]))


class Partly(nn.Module):
    """Has layers that it calls, reads, or leaves alone."""

    def __init__(self):
        super().__init__()
        self.called, self.read, self.forgotten = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.called(x) + nn.functional.linear(x, self.read.weight, self.read.bias)


@pytest.mark.parametrize("kl_samples", [None, 1])
@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "mean"])
def test_posteriors_that_no_forward_pass_uses_are_named_once(estimator, kl_samples):
    """The suite turns warnings of dubito into errors, so that a second one would fail."""
    objective = ELBO(10, "softmax", kl_samples=kl_samples)
    x, labels = torch.randn(5, 4), torch.randint(3, (5,))
    model = dubito.to_bayesian(Partly(), estimator=estimator)
    names = r"did not use forgotten\.posteriors\.weight, forgotten\.posteriors\.bias, but KL counts them"
    with pytest.warns(DubitoWarning, match=names):
        objective(model, x, labels)
    objective(model, x, labels)
    whole = dubito.to_bayesian(Partly(), estimator=estimator, only=["called", "read"])
    objective(whole, x, labels)


def test_without_kl_the_loss_is_the_likelihood():
    model = dubito.BayesLinear(4, 3, estimator="mean")
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    objective = ELBO(num_data=10, head="softmax")
    terms = objective(model, x, y, with_kl=False)
    assert terms.kl == 0
    assert terms.loss == terms.nll == objective(model, x, y).nll
