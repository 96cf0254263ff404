"""What an exported file computes is what the network computes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import dubito
from dubito.data import load, normalize
from dubito.errors import OptionError
from dubito.export import OUTPUTS, OnnxModel, export
from dubito.export.graph import make_graph
from dubito.prediction import Prediction
from dubito.runs.run import DataDescription, Run

COUNTS = (1, 2, 5, 33)
FIELDS = tuple(OUTPUTS.values())


def assert_same(found: Prediction, expected: Prediction, atol: float = 1e-5) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=atol, msg=name)


def assert_same_on_average(found: list[Prediction], expected: list[Prediction]) -> None:
    """The means of every field differ by less than 5 standard errors of their difference."""
    for name in ("probs", "aleatoric_per_class", "epistemic_per_class", "mutual_information"):
        a, b = (torch.stack([getattr(p, name) for p in parts]).double() for parts in (found, expected))
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert error.max() < 0.2 * b.mean(0).abs().max(), name  # else this could not fail
        assert ((a.mean(0) - b.mean(0)).abs() <= 5 * error).all(), name


def test_moments_of_a_run_are_those_of_its_network(digits_run: Path, digits_onnx: Path) -> None:
    run, pictures = Run.open(digits_run), load("digits", "test").images
    model = OnnxModel(digits_onnx)
    for count in (1, 3, 64):
        inputs = normalize(pictures[:count], run.data.mean, run.data.std)
        found, expected = model.predict(pictures[:count]), dubito.predict(run.load(), inputs, method="moments")
        assert_same(found, expected)
        torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-2, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [{"parameterization": "alpha"}, {"bayesian_bias": False}, {"prior": "mixture"}, {"inference": "dropout"}],
    ids=str,
)
def test_graph_of_every_kind_of_network_gives_its_moments(images, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = dubito.models.build("lenet5", 3, 1, **options).eval()
    data = DataDescription("three", 1, ("ant", "bee", "cat"), (0.3,), (0.4,), padding=0, num_data=100)
    found = make_graph(network, data, "moments", 1)(images(5))
    expected = dubito.predict(network, normalize(images(5), data.mean, data.std), method="moments")
    assert expected.epistemic.min() > 0
    for name, tensor in zip(FIELDS, found, strict=True):
        torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("head", ["softmax", "kendall_gal"])
def test_mean_is_the_network_of_posterior_means(tiny, data, images, head: str) -> None:
    network = tiny(head=head)
    model = OnnxModel(export(network, data, what="mean"))
    for count in COUNTS:
        found = model.predict(images(count))
        assert_same(found, model.predict(images(count)), atol=0)
        assert found.epistemic_per_class.eq(0).all()
        if head != "kendall_gal":
            inputs = normalize(images(count), data.mean, data.std)
            assert_same(found, dubito.predict(network, inputs, 1, estimator="mean"))
            torch.testing.assert_close(found.aleatoric_per_class, found.probs * (1 - found.probs))


def test_draws_agree_with_draws_of_the_weights_on_average(tiny, data, images) -> None:
    network, inputs = tiny(), normalize(images(5), data.mean, data.std)
    content = export(network, data, what="draws", samples=4)
    model, same, other = (OnnxModel(content, seed) for seed in (0, 0, 1))
    generator = torch.Generator().manual_seed(0)
    expected = [dubito.predict(network, inputs, 4, generator=generator, route="weights") for _ in range(400)]
    found = [model.predict(images(5)) for _ in range(400)]
    assert_same_on_average(found, expected)
    assert found[0].samples == 4
    assert found[0].probs.equal(same.predict(images(5)).probs)
    assert not found[0].probs.equal(other.predict(images(5)).probs)


def test_draws_of_dropout_agree_on_average(tiny, data, images) -> None:
    network = tiny(nn.Dropout(0.3), bayesian=False)
    network.draws_dropout = True
    inputs = normalize(images(2), data.mean, data.std)
    model = OnnxModel(export(network, data, samples=3), seed=0)
    assert model.description.what == "draws"
    generator = torch.Generator().manual_seed(0)
    expected = [dubito.predict(network, inputs, 3, generator=generator) for _ in range(200)]
    assert_same_on_average([model.predict(images(2)) for _ in range(200)], expected)


@pytest.mark.parametrize(("what", "head"), [("moments", "kendall_gal"), ("mean", "softplus")])
def test_torch_file_needs_torch_alone(tiny, data, images, what: str, head: str) -> None:
    network = tiny(head=head)
    extra = {"dubito.json": ""}
    program = torch.export.load(io.BytesIO(export(network, data, "torch", what)), extra_files=extra).module()
    assert json.loads(extra["dubito.json"])["data"]["class_names"] == list(data.class_names)
    options = {"method": "moments"} if what == "moments" else {"samples": 1, "estimator": "mean"}
    for count in COUNTS:
        inputs = normalize(images(count), data.mean, data.std)
        expected = dubito.predict(network, inputs, **options)
        for name, tensor in zip(FIELDS, program(images(count)), strict=True):
            torch.testing.assert_close(tensor, getattr(expected, name), rtol=0, atol=1e-5)


def test_file_is_one_valid_model_that_says_what_it_is(digits_run: Path, digits_onnx: Path) -> None:
    content = digits_onnx.read_bytes()
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [value.name for value in model.graph.output] == list(OUTPUTS)
    facts = json.loads({entry.key: entry.value for entry in model.metadata_props}["dubito"])
    data = Run.open(digits_run).data
    assert facts["what"] == "moments"
    assert facts["head"] == "softplus"
    assert facts["size"] == 32
    for name in ("class_names", "mean", "std"):
        assert tuple(facts["data"][name]) == getattr(data, name)
    assert (facts["data"]["channels"], facts["data"]["padding"]) == (data.channels, data.padding)
    assert b".py" not in content  # where the source is, is nobody's business
    # means and deviations of 62,000 weights in four bytes each, and the operations
    assert len(content) < 2 * 4 * 62_000 + 250_000


def test_network_stays_as_it_was(tiny, data, images) -> None:
    network = tiny().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    for what in ("draws", "mean"):
        export(network, data, "torch", what, samples=2)
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert torch.get_rng_state().equal(state)


class Sums(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Looks(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("part", "what", "expected"),
    [
        (Sums(), "moments", "what='moments' cannot follow '4' (Sums), which calls cumsum: use what='draws'"),
        (Bessel(), "mean", "'4' (Bessel) cannot become ONNX: "),
        (Looks(), "mean", "'4' (Looks) cannot become a graph: "),
        (nn.Linear(5, 5), "mean", "'4' (Linear) cannot become a graph: "),
    ],
)
def test_what_cannot_be_exported_is_named_with_its_place(tiny, data, part, what: str, expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        export(tiny(part, bayesian=what == "moments"), data, what=what)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("what", ["moments", "draws"])
def test_point_estimates_have_nothing_to_draw(tiny, data, what: str) -> None:
    with pytest.raises(OptionError, match="has nothing to draw: it is a point estimate, so export 'mean'"):
        export(tiny(bayesian=False), data, what=what)


def test_ensembles_are_exported_one_by_one(tiny, data) -> None:
    with pytest.raises(OptionError, match="The network is an Ensemble of several; export its members one by one"):
        export(dubito.ensemble([tiny(), tiny()]), data)


def test_dropout_that_is_shared_is_drawn_under_all_its_names(data, images) -> None:
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)
    size = images(1)[0].numel()
    layers = [nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), drop, nn.Linear(32, 32), nn.ReLU(), drop, nn.Linear(32, 3)]
    network = dubito.mc_dropout(nn.Sequential(*layers), head="softmax").eval()
    graph = make_graph(network, data, "draws", 200)
    inputs = normalize(images(3), data.mean, data.std)
    torch.manual_seed(1)
    many = torch.stack([dict(zip(FIELDS, graph(images(3)), strict=True))["epistemic"] for _ in range(5)])
    generators = [torch.Generator().manual_seed(seed) for seed in range(5)]
    expected = torch.stack([dubito.predict(network, inputs, 200, generator=g).epistemic for g in generators])
    error = (many.var(0) / 5 + expected.var(0) / 5).sqrt()
    assert ((many.mean(0) - expected.mean(0)).abs() <= 6 * error).all()


def test_draws_of_tied_weights_are_the_same_in_all_places(data, images) -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size = images(1)[0].numel()
            self.a, self.b = nn.Linear(size, 3, bias=False), nn.Linear(size, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.a(x.flatten(1)) - self.b(x.flatten(1))

    network = dubito.to_bayesian(Difference(), head="softmax", initial_std=0.5).eval()
    graph = make_graph(network, data, "draws", 6)
    assert dict(zip(FIELDS, graph(images(3)), strict=True))["epistemic"].max() < 1e-9


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_as_many_classes_as_names(tiny, images, format: str) -> None:
    data = DataDescription("two", 1, ("ant", "bee"), (0.3,), (0.4,), padding=0, num_data=100)
    with pytest.raises(OptionError, match="3 classes apart, but its data's description names 2"):
        export(tiny(), data, format)


@pytest.mark.parametrize("what", ["mean", "moments"])
def test_networks_of_double_precision_are_exported(tiny, data, images, what: str) -> None:
    network = tiny().double()
    inputs = normalize(images(3), data.mean, data.std).double()
    found = make_graph(network, data, what, 1)(images(3))
    options = {"method": "moments"} if what == "moments" else {"estimator": "mean"}
    expected = dubito.predict(network, inputs, **options)
    torch.testing.assert_close(found[0], expected.probs.float(), rtol=1e-4, atol=1e-5)
