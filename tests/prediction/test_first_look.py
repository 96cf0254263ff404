"""The first prediction of a network names the posteriors that it does not use, and later ones do not look."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dubito
from dubito.errors import DubitoWarning
from dubito.variational.elbo import ELBO

METHODS = ("weights", "local", "moments", "mean")
NAMES = r"The prediction did not use forgotten\.posteriors\.weight, forgotten\.posteriors\.bias, but"


class Partly(nn.Module):
    def __init__(self, forgets: bool = True) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 3)
        if forgets:
            self.forgotten = nn.Linear(4, 4)
        self.calls = []

    def forward(self, x):
        self.calls.append(len(x))
        return nn.functional.linear(self.called(x), self.read.weight, self.read.bias)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("images", [1, 20])
def test_the_first_prediction_names_what_it_did_not_use_and_later_ones_do_not(method, images):
    model, x = dubito.to_bayesian(Partly(), head="softmax"), torch.randn(images, 4)
    with pytest.warns(DubitoWarning, match=NAMES):
        first = dubito.predict(model, x, 4, method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = dubito.predict(model, x, 4, method)
        dubito.predict(dubito.to_bayesian(Partly(forgets=False), head="softmax"), x, 4, method)
    assert torch.equal(first.probs, again.probs)
    assert all(p.grad is None for p in model.parameters())


def test_members_of_an_ensemble_are_looked_at_each():
    members = [dubito.to_bayesian(Partly(forgets), head="softmax") for forgets in (False, True)]
    with pytest.warns(DubitoWarning, match=NAMES):
        dubito.predict(dubito.ensemble(members), torch.randn(2, 4), 2)


def test_only_the_first_call_passes_more_images():
    """Counted by the calls of the network: one more, of at most 8 images, and never again."""
    model = dubito.to_bayesian(Partly(forgets=False), head="softmax")
    model.calls = calls = []
    hook = lambda module, args: calls.append(len(args[0]))  # noqa: E731
    model.register_forward_pre_hook(hook)
    x = torch.randn(20, 4)
    predictor = dubito.Predictor(model, 3)
    predictor(x)
    assert calls == [8, 20, 20, 20]
    del calls[:]
    predictor(x)
    dubito.Predictor(model, 3)(x)
    assert calls == [20] * 6


def test_a_free_energy_before_is_enough_and_the_other_way_round():
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    model = dubito.to_bayesian(Partly(), head="softmax")
    with pytest.warns(DubitoWarning, match="KL counts them"):
        ELBO(5)(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dubito.predict(model, x, 2)
        ELBO(5)(model, x, y)


def test_a_layer_whose_result_is_dropped_counts_as_unused():
    class Drops(Partly):
        def forward(self, x):
            self.forgotten(x)
            return super().forward(x)

    with pytest.warns(DubitoWarning, match=NAMES):
        dubito.predict(dubito.to_bayesian(Drops(), head="softmax"), torch.randn(2, 4), 2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_inside_checkpoints_are_not_called_unused(reentrant):
    class Checkpointed(Partly):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    x = torch.randn(5, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DubitoWarning)
        model = dubito.to_bayesian(Checkpointed(forgets=False), head="softmax")
        ELBO(5)(model, x, torch.zeros(5, dtype=torch.long)).loss.backward()
        dubito.predict(dubito.to_bayesian(Checkpointed(forgets=False), head="softmax"), x.detach(), 2)
    assert model.called.weight_mean.grad is not None


def test_what_cannot_be_differentiated_is_predicted_all_the_same():
    class Refuses(Partly):
        def forward(self, x):
            if torch.is_grad_enabled():
                raise RuntimeError("no gradients here")
            return super().forward(x)

    dubito.predict(dubito.to_bayesian(Refuses(), head="softmax"), torch.randn(2, 4), 2)
