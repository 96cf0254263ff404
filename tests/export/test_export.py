"""What an exported file computes is what the network computes."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import dubito
from dubito.data import load, normalize
from dubito.errors import OptionError, RunError, ShapeError
from dubito.exporting import OUTPUTS, Description, OnnxModel, What, export_bytes
from dubito.exporting.formats import _require_same
from dubito.exporting.graph import METHODS, Fitted, make_graph
from dubito.prediction import Prediction
from dubito.runs.description import DataDescription
from dubito.runs.run import Run

COUNTS = (1, 2, 33)
FIELDS = tuple(OUTPUTS.values())


def assert_same(found: Prediction, expected: Prediction, atol: float = 1e-5) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=atol, msg=name)


def test_draws_of_a_run_are_those_of_its_predictor(digits_run: Path, digits_onnx: Path) -> None:
    run, pictures = Run.open(digits_run), load("digits", "test").images
    model, predictor = OnnxModel(digits_onnx), dubito.Predictor(run.load())
    for count in (1, 3, 64):
        found = model.predict(pictures[:count])
        expected = predictor(normalize(pictures[:count], run.data.mean, run.data.std))
        assert_same(found, expected)
        torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-2, atol=1e-9)
    assert found.samples == expected.samples == 10
    assert expected.epistemic.min() > 0


@pytest.mark.parametrize("what", ["draws", "moments", "mean"])
@pytest.mark.parametrize("head", ["softplus", "softmax", "kendall_gal"])
def test_graph_gives_what_the_predictor_gives(tiny, data, images, what: str, head: str) -> None:
    network = tiny(head=head)
    predictor = dubito.Predictor(network, 4 if what == "draws" else 1, METHODS[What(what)])
    graph = make_graph(network, data, what, 4)
    for count in COUNTS:
        expected = predictor(normalize(images(count), data.mean, data.std))
        for name, tensor in zip(FIELDS, graph(images(count)), strict=True):
            torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-4, atol=1e-6, msg=name)
    assert (float(expected.epistemic.max()) > 0) == (what != "mean")


@pytest.mark.parametrize(
    "options",
    [{"posterior": "alpha"}, {"bayesian_bias": False}, {"prior": "mixture"}, {"inference": "dropout"}],
    ids=str,
)
@pytest.mark.parametrize("what", ["draws", "moments"])
def test_graph_of_every_kind_of_network_gives_its_prediction(images, options: dict[str, Any], what: str) -> None:
    torch.manual_seed(0)
    network = dubito.models.build("lenet5", 3, 1, **options).eval()
    data = DataDescription("three", 1, ("ant", "bee", "cat"), (0.3,), (0.4,), padding=0, num_data=100)
    found = make_graph(network, data, what, 3)(images(5))
    predictor = dubito.Predictor(network, 3, METHODS[What(what)])
    expected = predictor(normalize(images(5), data.mean, data.std))
    assert expected.epistemic.min() > 0
    for name, tensor in zip(FIELDS, found, strict=True):
        torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("what", ["draws", pytest.param("moments", marks=pytest.mark.slow), "mean"])
def test_onnx_file_gives_what_the_predictor_gives(tiny, data, images, what: str) -> None:
    network = tiny()
    model = OnnxModel(export_bytes(network, data, what=what, samples=4))
    assert model.description.samples == (4 if what == "draws" else None)
    predictor = dubito.Predictor(network, 4 if what == "draws" else 1, METHODS[What(what)])
    for count in COUNTS:
        found = model.predict(images(count))
        assert_same(found, model.predict(images(count)), atol=0)
        assert_same(found, predictor(normalize(images(count), data.mean, data.std)))


def test_onnx_file_of_dropout_holds_its_masks(tiny, data, images) -> None:
    network = tiny(nn.Dropout(0.3), bayesian=False)
    network.draws_dropout = True
    model = OnnxModel(export_bytes(network, data, samples=3))
    assert model.description.what == "draws"
    found = model.predict(images(5))
    assert_same(found, dubito.Predictor(network, 3)(normalize(images(5), data.mean, data.std)))
    assert found.epistemic.min() > 0


def test_torch_file_needs_torch_alone(tiny, data, images) -> None:
    network, extra = tiny(), {"dubito.json": ""}
    program = torch.export.load(io.BytesIO(export_bytes(network, data, "torch", samples=3)), extra_files=extra).module()
    facts = json.loads(extra["dubito.json"])
    assert facts["data"]["class_names"] == list(data.class_names)
    assert (facts["what"], facts["samples"]) == ("draws", 3)
    predictor = dubito.Predictor(network, 3)
    for count in COUNTS:
        expected = predictor(normalize(images(count), data.mean, data.std))
        for name, tensor in zip(FIELDS, program(images(count)), strict=True):
            torch.testing.assert_close(tensor, getattr(expected, name), rtol=0, atol=1e-5)


def test_file_is_one_valid_model_that_says_what_it_is(digits_run: Path, digits_onnx: Path) -> None:
    content = digits_onnx.read_bytes()
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [value.name for value in model.graph.output] == [*OUTPUTS, "novelty", "conformal"]
    facts = json.loads({entry.key: entry.value for entry in model.metadata_props}["dubito"])
    data = Run.open(digits_run).data
    assert (facts["what"], facts["samples"]) == ("draws", 10)
    assert facts["head"] == "softplus"
    assert DataDescription.of(facts["data"]) == data
    assert b".py" not in content  # no paths of the source code
    # 62,000 weights of ten draws in four bytes each, the operations, and twice what novelty keeps in two bytes
    kept = (digits_run / "novelty.safetensors").stat().st_size
    assert len(content) < 10 * 4 * 62_000 + 250_000 + 2 * kept


def test_a_file_that_is_too_large_for_onnx_is_refused(tiny, data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubito.exporting.formats.LARGEST", 1000)
    with pytest.raises(OptionError, match="an ONNX file holds at most 2 GB: give fewer samples, or what='moments'"):
        export_bytes(tiny(), data, samples=50)


def test_a_file_that_disagrees_with_the_predictor_is_not_written(tiny, data) -> None:
    graph, other = make_graph(tiny(), data, "mean", 1), make_graph(tiny(std=1.0), data, "draws", 2)
    wrong = SimpleNamespace(predict=lambda images: other.predictor(other.prepare(images)))
    with pytest.raises(RunError, match="The ONNX model was not written: its probs differs from the network's by"):
        _require_same(graph, wrong, Description(What.MEAN, "softplus", data))


def test_network_stays_as_it_was(tiny, data, images) -> None:
    network = tiny().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    for what in ("draws", "mean"):
        export_bytes(network, data, "torch", what, samples=2)
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
        export_bytes(tiny(part, bayesian=what == "moments"), data, what=what)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("what", ["moments", "draws"])
def test_point_estimates_have_nothing_to_draw(tiny, data, what: str) -> None:
    with pytest.raises(OptionError, match="has nothing to draw: it is a point estimate, so export 'mean'"):
        export_bytes(tiny(bayesian=False), data, what=what)


@pytest.mark.parametrize("what", ["draws", "moments", "mean"])
def test_graph_of_an_ensemble_is_the_mixture_of_its_members(tiny, data, images, what: str) -> None:
    """Members with other heads, and one that has nothing to draw, count alike."""
    network = dubito.ensemble([tiny(), tiny(head="softmax"), tiny(bayesian=False)])
    predictor = dubito.Predictor(network, 12 if what == "draws" else 1, METHODS[What(what)], calibrated=1.5)
    graph = make_graph(network, data, what, 12, Fitted(temperature=1.5))
    for count in COUNTS:
        expected = predictor(normalize(images(count), data.mean, data.std))
        for name, tensor in zip(FIELDS, graph(images(count)), strict=True):
            torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-4, atol=1e-6, msg=name)
    assert float(expected.epistemic.max()) > 0


def test_onnx_file_of_point_estimates_holds_every_member(tiny, data, images) -> None:
    torch.manual_seed(0)
    network = dubito.ensemble([tiny(bayesian=False), tiny(bayesian=False)])
    with torch.no_grad():
        for parameter in network.members[1].parameters():
            parameter.mul_(1.5)
    model = OnnxModel(export_bytes(network, data))
    found = model.predict(images(3))
    assert model.description.samples == 2
    assert_same(found, dubito.Predictor(network)(normalize(images(3), data.mean, data.std)))
    assert float(found.epistemic.max()) > 0


def test_dropout_that_is_shared_is_drawn_under_all_its_names(data, images) -> None:
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)
    size = images(1)[0].numel()
    layers = [nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), drop, nn.Linear(32, 32), nn.ReLU(), drop, nn.Linear(32, 3)]
    network = dubito.mc_dropout(nn.Sequential(*layers), head="softmax").eval()
    found = dict(zip(FIELDS, make_graph(network, data, "draws", 20)(images(3)), strict=True))
    expected = dubito.Predictor(network, 20)(normalize(images(3), data.mean, data.std))
    torch.testing.assert_close(found["epistemic"], expected.epistemic, rtol=1e-4, atol=1e-7)


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


def test_as_many_classes_as_names(tiny) -> None:
    data = DataDescription("two", 1, ("ant", "bee"), (0.3,), (0.4,), padding=0, num_data=100)
    for format in ("onnx", "torch"):
        with pytest.raises(OptionError, match="3 classes apart, but its data's description names 2"):
            export_bytes(tiny(), data, format, samples=1)


@pytest.mark.parametrize("what", ["draws", "moments", "mean"])
def test_networks_of_double_precision_are_exported(tiny, data, images, what: str) -> None:
    network = tiny().double()
    inputs = normalize(images(3), data.mean, data.std).double()
    found = make_graph(network, data, what, 2)(images(3))
    expected = dubito.Predictor(network, 2, METHODS[What(what)])(inputs)
    torch.testing.assert_close(found[0], expected.probs.float(), rtol=1e-4, atol=1e-5)


def test_images_of_another_size_are_exported(data, images) -> None:
    torch.manual_seed(0)
    network = dubito.attach_head(dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(48 * 48, 3))), "softmax")
    model = OnnxModel(export_bytes(network, dataclasses.replace(data, size=48), samples=2))
    pictures = torch.randint(256, (3, 1, 48, 48), dtype=torch.uint8)
    expected = dubito.Predictor(network, 2)(normalize(pictures, data.mean, data.std))
    assert_same(model.predict(pictures), expected)
    with pytest.raises(ShapeError, match=r"but must be torch.uint8 \(N, 1, 48, 48\)"):
        model.predict(images(1))


def test_a_network_is_exported_at_its_own_size_without_a_run(tmp_path: Path) -> None:
    network = dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4)), head="softmax").eval()
    with pytest.raises(OptionError, match="Exporting needs to know what the images of the network are like"):
        dubito.export(network, tmp_path / "own.onnx")
    dubito.attach_data(network, class_names=list("abcd"), size=12)
    with pytest.raises(OptionError, match=r"must end in .onnx or .pt2"):
        dubito.export(network, tmp_path / "own.model")
    model = OnnxModel(dubito.export(network, tmp_path / "own.onnx", samples=3))
    images = torch.randint(256, (2, 3, 12, 12), dtype=torch.uint8)
    expected = dubito.predict(network, images / 255, samples=3)
    assert torch.allclose(model.predict(images).probs, expected.probs, atol=1e-4)
    dubito.save(network, tmp_path / "saved")
