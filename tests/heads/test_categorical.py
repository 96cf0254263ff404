"""The categorical likelihood with class weights, ignored labels and label smoothing, against torch and by hand."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.heads import (
    CategoricalLikelihood,
    GaussianHead,
    SoftmaxHead,
    SoftplusHead,
    balanced_class_weights,
    categorical_log_likelihood,
)
from dubito.variational.elbo import ELBO

WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "ignored", "smoothing", "places"),
    list(itertools.product([None, WEIGHTS], [None, 255, -100, 2], [0.0, 0.3, 1.0], [(), (3,), (3, 5)])),
)
def test_class_numbers_have_the_cross_entropy_of_torch(weights, ignored, smoothing, places):
    torch.manual_seed(0)
    logits = torch.randn(6, 4, *places, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, (6, *places))
    if ignored is not None:
        labels[torch.rand(labels.shape) < 0.4] = ignored
    options = {"label_smoothing": smoothing, "weight": weights}
    expected = F.cross_entropy(
        logits, labels, reduction="none", ignore_index=-1 if ignored is None else ignored, **options
    )
    expected = -expected.flatten(1).sum(1) if places else -expected
    found = SoftmaxHead().log_likelihood(
        logits, labels, class_weights=weights, ignore_index=ignored, label_smoothing=smoothing
    )
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(value.sum(), logits)[0] for value in (found, expected)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize(
    ("weights", "smoothing", "places"), list(itertools.product([None, WEIGHTS], [0.0, 0.3], [(), (3, 5)]))
)
def test_class_probabilities_have_the_cross_entropy_of_torch(weights, smoothing, places):
    torch.manual_seed(0)
    logits, soft = torch.randn(2, 6, 4, *places, dtype=torch.float64)
    soft = soft.softmax(1)
    expected = -F.cross_entropy(logits, soft, weight=weights, reduction="none", label_smoothing=smoothing)
    found = SoftmaxHead().log_likelihood(logits, soft, class_weights=weights, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected.flatten(1).sum(1) if places else expected)


def test_the_softplus_head_has_the_formula_written_out():
    logits, label, weights, smoothing = [0.3, -1.2, 2.0], 1, [0.5, 2.0, 1.5], 0.2
    positive = [math.log1p(math.exp(f)) for f in logits]
    log_probs = [math.log(value / sum(positive)) for value in positive]
    targets = [smoothing / 3 + (1 - smoothing) * (c == label) for c in range(3)]
    expected = sum(w * t * p for w, t, p in zip(weights, targets, log_probs, strict=True))
    outputs = torch.tensor([logits, logits], dtype=torch.float64)
    found = SoftplusHead().log_likelihood(
        outputs, torch.tensor([label, 9]), class_weights=weights, label_smoothing=smoothing, ignore_index=9
    )
    assert found.tolist() == pytest.approx([expected, 0.0], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.bool])
def test_labels_of_every_integer_type_are_the_same(dtype):
    log_probs = torch.randn(4, 2).log_softmax(1)
    labels = torch.tensor([0, 1, 1, 0])
    found = categorical_log_likelihood(log_probs, labels.to(dtype), class_weights=[1, 3], label_smoothing=0.1)
    assert torch.equal(found, categorical_log_likelihood(log_probs, labels, class_weights=[1, 3], label_smoothing=0.1))


def test_half_precision_is_computed_in_single():
    log_probs = torch.full((1, 2, 400, 400), -1.0, dtype=torch.float16)
    labels = torch.zeros(1, 400, 400, dtype=torch.uint8)
    labels[0, :200] = 255
    weights = torch.tensor([2.0, 1.0], dtype=torch.float16)
    assert categorical_log_likelihood(log_probs, labels, ignore_index=255, class_weights=weights).item() == -160_000


def test_the_free_energy_of_minibatches_averages_to_that_of_the_whole_training_set():
    """Every pair of 6 examples once: with weights in the denominator, as in torch's mean, this would not hold."""
    torch.manual_seed(0)
    model = dubito.BayesLinear(3, 4, estimator="mean", dtype=torch.float64)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 3, 7, 3])
    objective = ELBO(6, "softmax", class_weights=WEIGHTS, ignore_index=7, label_smoothing=0.1)
    whole = objective(model, x, y)
    pairs = [objective(model, x[[i, j]], y[[i, j]]).loss for i, j in itertools.combinations(range(6), 2)]
    torch.testing.assert_close(torch.stack(pairs).mean(), whole.loss)
    logits = x @ model.weight_mean.T + model.bias_mean
    total = F.cross_entropy(logits, y, weight=WEIGHTS, ignore_index=7, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(whole.loss, (total + model.kl_divergence()) / 6)


def test_a_minibatch_of_ignored_labels_costs_kl_alone():
    model = dubito.BayesLinear(3, 4)
    terms = ELBO(10, "softplus", ignore_index=-1)(model, torch.randn(2, 3), torch.full((2,), -1))
    assert terms.nll.item() == 0
    terms.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_without_an_ignored_label_minus_100_is_refused():
    with pytest.raises(ShapeError, match="go from -100 to 0"):
        SoftmaxHead().log_likelihood(torch.zeros(2, 4), torch.tensor([0, -100]))


def test_it_compiles_to_one_graph():
    torch.manual_seed(0)
    log_probs, labels = torch.randn(6, 4).log_softmax(1), torch.tensor([0, 1, 1, 3, 7, 3])
    likelihood = CategoricalLikelihood(class_weights=[1, 2, 3, 4], ignore_index=7, label_smoothing=0.1)
    compiled = torch.compile(likelihood, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(log_probs, labels), likelihood(log_probs, labels))


def test_balanced_weights_make_every_class_count_alike_and_have_mean_1():
    labels = torch.tensor([0] * 7 + [1] * 2 + [3] * 3, dtype=torch.uint8)
    weights = balanced_class_weights(labels, 5)
    assert weights[[2, 4]].tolist() == [1.0, 1.0]  # no such label
    torch.testing.assert_close(weights[[0, 1, 3]], 12 / (3 * torch.tensor([7.0, 2.0, 3.0])))
    torch.testing.assert_close(weights[labels.long()].mean(), torch.tensor(1.0))
    totals = torch.bincount(labels, weights[labels.long()])
    torch.testing.assert_close(totals[[0, 1, 3]], torch.full((3,), 4.0))


@pytest.mark.parametrize("labels", [torch.zeros(0, dtype=torch.long), torch.zeros(2), torch.zeros(2, 2).long()])
def test_balanced_weights_need_labels(labels):
    with pytest.raises(ShapeError, match="must be class numbers"):
        balanced_class_weights(labels, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": [1.0, -1.0]}, "class_weights is .*none negative"),
        ({"class_weights": [0.0, 0.0]}, "not all 0"),
        ({"class_weights": [math.nan, 1.0]}, "one finite number"),
        ({"class_weights": [[1.0]]}, "one finite number for each class"),
        ({"label_smoothing": 1.1}, "label_smoothing is 1.1, but must lie in 0"),
        ({"label_smoothing": math.nan}, "label_smoothing is nan"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        CategoricalLikelihood(**options)
    with pytest.raises(OptionError, match=message):
        ELBO(5, "softmax", **options)


def test_options_that_do_not_fit_the_network_are_refused():
    with pytest.raises(ShapeError, match="3 class weights, but the network has 4 classes"):
        SoftmaxHead().log_likelihood(torch.zeros(2, 4), torch.tensor([0, 1]), class_weights=[1, 1, 1])
    with pytest.raises(OptionError, match="ignore_index is 2, but the targets are class probabilities"):
        SoftmaxHead().log_likelihood(torch.zeros(2, 4), torch.full((2, 4), 0.25), ignore_index=2)
    with pytest.raises(OptionError, match="The gaussian head has no classes"):
        ELBO(5, GaussianHead(), label_smoothing=0.1)(nn.Linear(2, 1), torch.ones(1, 2), torch.ones(1, 1))
