"""Passes: one draw of every posterior wherever it is read, and fresh ones outside."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dubito
from dubito.estimators import Weight
from dubito.variational.families import FAMILIES as TABLE
from dubito.variational.posterior import drawn, drawn_groups, one_pass
from layer_zoo import FAMILIES, make_input, make_layer


def make_posterior(family: str = "std"):
    return TABLE[family](nn.Parameter(torch.ones(3, 2, dtype=torch.float64)), 0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_inside_a_pass_every_reading_is_the_same_draw_and_outside_a_fresh_one(family):
    q = make_posterior(family)
    with one_pass():
        first = drawn(q)
        assert drawn(q) is first
    with one_pass():
        second = drawn(q)
    outside = drawn(q), drawn(q)
    several = torch.stack([first, second, *outside]).flatten(1).detach()
    assert torch.pdist(several).min() > 0


def test_a_pass_inside_a_pass_is_the_same_pass():
    q = make_posterior()
    with one_pass() as outer:
        first = drawn(q)
        with one_pass() as inner:
            assert drawn(q) is first
        assert inner is outer
        assert drawn(q) is first
    assert drawn(q) is not first


def test_an_exception_closes_the_pass():
    q, inside = make_posterior(), []

    def fail():
        with one_pass():
            inside.append(drawn(q))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not torch.equal(drawn(q), inside[0])
    assert not torch.equal(drawn(q), drawn(q))


def test_another_thread_has_its_own_pass():
    q, found = make_posterior(), {}

    def elsewhere():
        found["outside"] = drawn(q), drawn(q)
        with one_pass():
            found["inside"] = drawn(q), drawn(q)

    with one_pass():
        here = drawn(q)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert drawn(q) is here
    assert not torch.equal(*found["outside"])
    assert found["inside"][0] is found["inside"][1]
    assert not torch.equal(found["inside"][0], here)


def test_a_generator_decides_the_draws_of_a_pass_and_leaves_the_global_one_alone():
    q, draws = make_posterior(), []
    state = torch.get_rng_state()
    for seed in (3, 3, 4):
        with one_pass(torch.Generator().manual_seed(seed)):
            draws.append(drawn(q))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_of_a_pass_are_the_same_at_every_reading_and_pairs_have_opposite_noise(family):
    q = make_posterior(family)
    with one_pass():
        first, again = drawn_groups(q, 4, True), drawn_groups(q, 4, True)
    assert all(a is b for a, b in zip(first, again, strict=True))
    for pair in (first[:2], first[2:]):
        torch.testing.assert_close(pair[0] + pair[1], 2 * q.mean)
    assert not torch.equal(first[0], first[2])
    apart = drawn_groups(q, 3, False)
    assert torch.pdist(torch.stack(apart).flatten(1).detach()).min() > 0


def test_a_layer_called_twice_in_a_pass_has_the_same_weights():
    layer, x = make_layer("Conv2d", estimator="weight", initial_std=0.3), make_input("Conv2d")
    with one_pass():
        torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)
    assert not torch.equal(layer(x), layer(x))


def test_gradients_of_both_readings_reach_the_posterior():
    q = make_posterior()
    with one_pass(torch.Generator().manual_seed(0)):
        (drawn(q) + 2 * drawn(q)).sum().backward()
    torch.testing.assert_close(q.mean.grad, torch.full_like(q.mean, 3.0))


class Reading(nn.Module):
    """Reads the weight of a layer twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen = []

    def forward(self, x, fail=False):
        self.seen = [self.layer.weight, self.layer.weight]
        if fail:
            raise ValueError("on purpose")
        return x @ self.seen[0].T + self.layer(x)


def test_a_call_of_a_converted_network_is_a_pass_and_so_is_a_step():
    network, x = dubito.to_bayesian(Reading(), estimator="weight", initial_std=0.3), torch.randn(2, 3)
    outputs = [network(x) for _ in range(2)]
    assert not torch.equal(*outputs)
    assert network.seen[0] is network.seen[1]
    inner = network.seen[0]
    torch.testing.assert_close(outputs[1], 2 * x @ inner.T + outputs[1] - 2 * x @ inner.T)
    with one_pass():
        network(x)
        first = network.seen[0]
        network(x)
        assert network.seen[0] is first
    dubito.ELBO(10, "softmax")(network, x, torch.tensor([0, 1])).loss.backward()
    assert network.seen[0] is network.seen[1]
    assert not torch.equal(network.layer.weight, network.layer.weight)


def test_a_network_that_fails_ends_its_pass():
    network, x = dubito.to_bayesian(Reading(), estimator="weight", initial_std=0.3), torch.randn(2, 3)
    with pytest.raises(ValueError, match="on purpose"):
        network(x, fail=True)
    assert not torch.equal(network.layer.weight, network.layer.weight)
    assert not torch.equal(network(x), network(x))


def test_a_network_that_calls_itself_stays_in_its_pass():
    class Again(Reading):
        def forward(self, x, depth=1):
            self.seen.append(self.layer.weight)
            y = self(x, depth - 1) if depth else x
            self.seen.append(self.layer.weight)
            return y

    network = dubito.to_bayesian(Again(), initial_std=0.3)
    network(torch.randn(2, 3))
    assert len(network.seen) == 4
    assert all(weight is network.seen[0] for weight in network.seen)


def test_threads_that_call_one_network_have_their_own_draws():
    network, x = dubito.to_bayesian(nn.Linear(3, 2), estimator="weight", initial_std=0.3), torch.randn(2, 3)
    outputs = []
    threads = [threading.Thread(target=lambda: outputs.append(network(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.pdist(torch.stack(outputs).flatten(1).detach()).min() > 0


def test_conversion_twice_and_copies_have_one_pass_each():
    network = dubito.to_bayesian(dubito.to_bayesian(Reading(), initial_std=0.3))
    assert len(network._forward_pre_hooks) == len(network._forward_hooks) == 1
    assert not dubito.to_deterministic(network)._forward_hooks


@pytest.mark.parametrize("estimator", ["local", "flipout", Weight()])
def test_a_checkpointed_layer_inside_a_pass_has_the_gradients_of_the_plain_one(estimator):
    torch.manual_seed(0)
    layer = make_layer("Linear", estimator=estimator, initial_std=0.3)
    x, found = make_input("Linear"), []
    for call in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        layer.zero_grad()
        torch.manual_seed(1)
        with one_pass():
            output = call(x)
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad.clone() for p in layer.parameters())])
    torch.testing.assert_close(*found)


def tied_network() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    network[2].weight = network[0].weight
    return network.double()


@pytest.mark.parametrize("kl_samples", [None, 1])
def test_a_compiled_network_has_the_passes_of_the_plain_one(kl_samples):
    """The same draws from the same seed, tied weights among them, in one graph that is made once."""
    torch.manual_seed(0)
    network = dubito.to_bayesian(tied_network(), estimator="weight", initial_std=0.3)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    x, labels = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    objective = dubito.ELBO(10, "softmax", kl_samples=kl_samples)
    for step in range(3):
        found = []
        for model in (network, compiled):
            network.zero_grad()
            torch.manual_seed(step)
            with torch.compiler.set_stance("default" if step < 2 else "fail_on_recompile"):
                loss = objective(model, x, labels).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in network.parameters())])
        torch.testing.assert_close(found[1], found[0])


def test_a_compiled_network_called_alone_opens_its_own_pass():
    torch.manual_seed(0)
    network = dubito.to_bayesian(tied_network(), estimator="weight", initial_std=0.3)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    x, outputs = torch.randn(5, 4, dtype=torch.float64), []
    for model in (network, compiled, compiled):
        torch.manual_seed(1)
        outputs.append(model(x).detach())
    torch.testing.assert_close(outputs[1:], [outputs[0]] * 2)
    assert not torch.equal(compiled(x), compiled(x))
    with one_pass():  # which ended after each call
        assert not torch.equal(compiled(x), outputs[0])


def test_sigma_is_computed_once_in_a_pass_and_again_where_it_changed():
    q = dubito.BayesLinear(2, 2).posteriors["weight"]
    with one_pass():
        first = q.std
        assert q.std is first
        with torch.no_grad():
            assert not q.std.requires_grad
            q.rho.add_(1.0)
        torch.testing.assert_close(q.std, torch.nn.functional.softplus(q.rho))
        assert q.std is not first
    assert q.std is not q.std


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_a_step_has_the_gradients_of_likelihood_and_divergence_apart(estimator):
    torch.manual_seed(0)
    network = dubito.attach_head(dubito.BayesLinear(3, 2, estimator=estimator, dtype=torch.float64), "softmax")
    x, labels, parameters = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0]), [*network.parameters()]
    torch.manual_seed(1)
    terms = dubito.ELBO(7)(network, x, labels)
    together = torch.autograd.grad(terms.loss, parameters)
    torch.manual_seed(1)
    likelihood = torch.autograd.grad(-network.probability_head.log_likelihood(network(x), labels).mean(), parameters)
    divergence = torch.autograd.grad(dubito.kl_divergence(network) / 7, parameters)
    torch.testing.assert_close(together, tuple(a + b for a, b in zip(likelihood, divergence, strict=True)))
