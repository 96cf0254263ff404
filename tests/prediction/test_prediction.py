"""Prediction: what it averages, what it takes as inputs, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dubito
from dubito.errors import DubitoWarning, HeadError, NonFiniteError, OptionError, ShapeError
from dubito.prediction.predictor import Method

FIELDS = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")
METHODS = [method.value for method in Method]


def network(head="softplus", outputs=3, **options) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"initial_std": 0.3, "dtype": torch.float64, **options}
    model = nn.Sequential(
        dubito.BayesConv2d(1, 4, 3, padding=1, **options),
        nn.BatchNorm2d(4, dtype=torch.float64),
        nn.Softplus(),
        nn.Dropout(0.5),
        nn.Flatten(),
        dubito.BayesLinear(4 * 16, outputs, **options),
    )
    return dubito.attach_head(model, head)


def images(count=6, seed=1) -> torch.Tensor:
    return torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same(first, second, **tolerance) -> None:
    for field in FIELDS:
        torch.testing.assert_close(getattr(first, field), getattr(second, field), **tolerance)


@pytest.mark.parametrize("count", [6, 30], ids=["few", "many"])
@pytest.mark.parametrize("head", ["softplus", "softmax"])
def test_probabilities_are_the_mean_of_the_drawn_ones_and_uncertainty_is_theirs(head, count):
    predictor = dubito.Predictor(network(head), 9, covariance=True)
    prediction = predictor(images(count))
    raw = torch.stack([plain(images(count)) for plain in predictor.networks()]).detach()
    draws = raw.softmax(2) if head == "softmax" else dubito.softplus_normalize(raw)
    assert len(draws) == prediction.samples == predictor.samples == 9
    torch.testing.assert_close(predictor.draws(images(count)), draws, rtol=1e-12, atol=1e-14)
    expected = dubito.decompose(draws, covariance=True)
    assert_same(prediction, expected, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(prediction.epistemic_covariance, expected.epistemic_covariance)
    of_mean_logits = predictor.head.probs(raw.mean(0))
    assert (prediction.probs - of_mean_logits).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_both_parts_add_up_to_the_covariance_of_a_label(method):
    prediction = dubito.predict(network(), images(20), method=method, covariance=True)
    p = prediction.probs
    exact = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(prediction.aleatoric_per_class + prediction.epistemic_per_class, p * (1 - p), **exact)
    matrix = prediction.aleatoric_covariance + prediction.epistemic_covariance
    torch.testing.assert_close(matrix, torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1), **exact)
    torch.testing.assert_close(p.sum(1), torch.ones(20, dtype=torch.float64), **exact)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "mean"])
def test_every_posterior_is_drawn_whatever_estimator_and_mode_it_was_trained_with(estimator, training):
    """Also for copies of one image, which all have the same prediction."""
    model = network(estimator=estimator).train(training)
    expected = dubito.predict(network(), images(1))
    prediction = dubito.predict(model, images(1).expand(6, 1, 4, 4))
    assert (prediction.epistemic > 1e-4).all()
    assert (prediction.mutual_information > 1e-4).all()
    torch.testing.assert_close(prediction.probs, expected.probs.expand(6, -1))


@pytest.mark.parametrize("method", METHODS)
def test_normalisation_uses_its_running_statistics_also_in_training_mode(method):
    model = network().train()
    trained = dubito.predict(model, images(), method=method)
    assert_same(trained, dubito.predict(model.eval(), images(), method=method), rtol=0, atol=0)


def test_epistemic_uncertainty_vanishes_with_sigma_and_grows_with_it():
    values = [
        dubito.predict(network(initial_std=s), images(), samples=50).epistemic.mean().item() for s in (1e-6, 0.01, 0.3)
    ]
    assert values[0] < 1e-10 < values[1] < values[2]


def test_the_mean_is_the_network_in_evaluation_mode():
    model = network()
    prediction = dubito.predict(model, images(20), method="mean")
    torch.testing.assert_close(prediction.probs, dubito.softplus_normalize(model.eval()(images(20))).detach())
    assert prediction.samples == 1
    assert prediction.epistemic_per_class.abs().max() == 0
    assert prediction.mutual_information.abs().max() == 0


def test_predict_is_a_predictor_called_once():
    options = {"samples": 4, "seed": 3, "covariance": True}
    once = dubito.predict(network(), images(), **options)
    predictor = dubito.Predictor(network(), **options)
    assert_same(once, predictor(images()), rtol=0, atol=0)
    assert torch.equal(once.epistemic_covariance, predictor(images()).epistemic_covariance)
    assert (predictor.samples, predictor.method, predictor.seed, predictor.head.name) == (4, "weights", 3, "softplus")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(images(7))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: list(x.split(3)),
        lambda x: (part for part in x.split(3)),
        lambda x: DataLoader(TensorDataset(x, torch.arange(7)), batch_size=3),
        lambda x: DataLoader(Stream(), batch_size=3),
        lambda x: [(part, "label", 3) for part in x.split(3)],
        lambda x: [[part] for part in x.split(3)],
        lambda x: [x[:3], x[3:3], x[3:]],
    ],
    ids=["list", "generator", "loader", "stream", "tuples", "lists", "with an empty batch"],
)
@pytest.mark.parametrize("progress", [True, False])
def test_any_iterable_of_batches_is_as_good_as_a_tensor(make, progress):
    model = network()
    expected = dubito.predict(model, images(7))
    prediction = dubito.predict(model, make(images(7)), progress=progress)
    assert_same(prediction, expected, rtol=1e-10, atol=1e-12)


def test_progress_bar_is_shown_on_request_only(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if a person were watching
    dubito.predict(network(), images(), samples=2, batch_size=2)
    assert capsys.readouterr().err == ""
    dubito.predict(network(), images(), samples=2, batch_size=2, progress=True)
    shown = capsys.readouterr().err
    assert "Predicting" in shown
    assert "3/3" in shown


def test_frequentist_network_has_exactly_no_epistemic_uncertainty():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    prediction = dubito.predict(model, images(), head="softmax", covariance=True)
    assert prediction.epistemic_per_class.abs().max() == 0
    assert prediction.epistemic_covariance.abs().max() == 0
    assert prediction.mutual_information.max() < 1e-12
    torch.testing.assert_close(prediction.probs, model.eval()(images()).softmax(1))


def test_dropout_layers_are_drawn_on_request():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    assert dubito.predict(model, images(), head="softmax", dropout=True).epistemic.min() > 0
    assert dubito.predict(model, images(), head="softmax", dropout=False).epistemic.max() == 0
    model.draws_dropout = True
    assert dubito.predict(model, images(), head="softmax").epistemic.min() > 0
    assert dubito.predict(model, images(), head="softmax", method="mean").epistemic.max() == 0


def test_kendall_gal_uncertainties_are_those_of_the_logits():
    predictor = dubito.Predictor(network("kendall_gal", outputs=6), 8)
    prediction = predictor(images())
    mean, free = torch.stack([plain(images()) for plain in predictor.networks()]).detach().chunk(2, dim=2)
    torch.testing.assert_close(prediction.aleatoric_per_class, torch.log1p(torch.exp(free)).mean(0))
    torch.testing.assert_close(prediction.epistemic_per_class, mean.var(0, correction=0))
    assert prediction.probs.shape == (6, 3)
    assert prediction.probs.sum(1).tolist() == pytest.approx([1.0] * 6)
    torch.testing.assert_close(prediction.probs, predictor.draws(images()).mean(0))


@pytest.mark.parametrize("method", METHODS)
def test_kendall_gal_finds_no_mutual_information_in_a_point_estimate(method):
    model = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(16, 20)), "kendall_gal")
    prediction = dubito.predict(model, images(30).float(), method=method)
    assert prediction.mutual_information.abs().max() == 0
    assert prediction.epistemic_per_class.abs().max() == 0


def test_dense_outputs_are_predicted_at_every_pixel():
    torch.manual_seed(0)
    model = dubito.BayesConv2d(1, 3, 3, padding=1, initial_std=0.5, dtype=torch.float64)
    prediction = dubito.predict(model, images(), head="softplus")
    assert prediction.epistemic.shape == prediction.label.shape == (6, 4, 4)
    assert (prediction.epistemic > 0).all()


class Largest(TorchDispatchMode):
    """The number of elements of the largest result that torch makes inside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("method", ["weights", "local"])
def test_memory_grows_neither_with_draws_nor_with_images(method):
    """With weights that are made again; those that are kept have a budget."""
    model = network()

    def largest(samples, count):
        predictor = dubito.Predictor(model, samples, method, batch_size=20, memory=0)
        with Largest() as mode:
            predictor(images(count))
        return mode.elements

    activations, results = 20 * 4 * 16, 400 * 3
    assert largest(2, 40) == largest(30, 40) <= activations
    assert largest(2, 400) <= max(activations, results, 400 * 16)


@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["made again", "kept"])
def test_drawn_weights_are_kept_only_while_they_fit(memory):
    predictor = dubito.Predictor(network(), 10, memory=memory)
    size = sum(q.numel() for q in network().state_dict().values()) * 8 * 10
    assert (predictor._draws.weights.stacked is not None) == (memory > size)


def test_converted_transformer_draws_although_torch_would_bypass_its_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2)
    model = dubito.to_bayesian(nn.Sequential(encoder, nn.Flatten()), initial_std=0.3)
    prediction = dubito.predict(model, torch.randn(3, 2, 8, dtype=torch.float64), head="softmax")
    assert (prediction.epistemic > 0).all()
    torch.testing.assert_close(
        model.eval()[0](torch.ones(1, 2, 8).double()), encoder.eval()(torch.ones(1, 2, 8).double())
    )


def test_model_without_a_head_is_asked_for_one():
    with pytest.raises(HeadError, match="has no head"):
        dubito.predict(nn.Linear(2, 2), torch.zeros(1, 2))


def test_another_head_than_the_models_own_warns():
    with pytest.warns(DubitoWarning, match="own head is 'softplus', but 'softmax' was asked for"):
        dubito.predict(network(), images(), head="softmax")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0, but a prediction needs at least 1 draw"),
        ({"batch_size": 0}, "batch_size is 0, but must be at least 1"),
        ({"method": "sample"}, "method is 'sample', but must be one of 'weights', 'local', 'moments', 'mean'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        dubito.predict(network(), images(), **options)


@pytest.mark.parametrize("method", ["local", "moments"])
def test_only_draws_of_weights_are_networks(method):
    with pytest.raises(OptionError, match=f"method is '{method}', but only draws of weights are plain networks"):
        dubito.Predictor(network(), method=method).networks()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.tensor(1.0), "The inputs hold a Tensor, but must be a tensor of images"),
        (None, "The inputs are None, but must be a tensor of images"),
        ([{"image": torch.zeros(1, 16)}], "The inputs hold a dict, but must be"),
        (np.zeros((2, 16)), "The inputs hold a ndarray, but must be"),
        ([], "There are no images to predict: the inputs are empty"),
        (torch.zeros(0, 16), "There are no images to predict"),
    ],
)
def test_inputs_that_hold_no_images_are_refused(inputs, message):
    with pytest.raises(ShapeError, match=message):
        dubito.predict(nn.Linear(16, 3), inputs, head="softmax")


def test_outputs_without_a_class_axis_are_refused_with_both_shapes():
    with pytest.raises(ShapeError, match=r"outputs of shape \(32,\) from inputs of shape \(2, 16\), but logits need"):
        dubito.predict(nn.Flatten(0), torch.zeros(2, 16), head="softmax")


def test_model_that_returns_no_tensor_is_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ShapeError, match="The model returned tuple, but predict needs a tensor of logits"):
        dubito.predict(Pair(), torch.zeros(2, 16), head="softmax")


@pytest.mark.parametrize("count", [6, 30], ids=["few", "many"])
@pytest.mark.parametrize("method", METHODS)
def test_nan_parameters_are_named(method, count):
    model = network()
    with torch.no_grad():
        model[5].weight_mean[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"outputs are not finite: NaN or infinite values in 5\..*weight"):
        dubito.predict(model, images(count), method=method)


def test_inputs_that_are_not_finite_are_told_as_such():
    with pytest.raises(NonFiniteError, match="The inputs hold NaN or infinite values"):
        dubito.predict(network(), torch.full_like(images(), math.nan))


def test_a_network_may_have_a_part_that_is_called_predictor():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.predictor = nn.Linear(4, 3)

        def forward(self, x):
            return self.predictor(x)

    network = dubito.to_bayesian(Named(), head="softmax", initial_std=1e-6)
    x = torch.randn(2, 4)
    expected = torch.softmax(x @ network.predictor.weight_mean.T + network.predictor.bias_mean, 1)
    torch.testing.assert_close(dubito.predict(network, x).probs, expected, rtol=1e-4, atol=1e-5)
