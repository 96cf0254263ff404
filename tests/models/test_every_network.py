"""Every network of the registry, one of Hugging Face and one of a user's own function: from building to exporting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError
from dubito.exporting import export_bytes
from dubito.models import build, names
from dubito.models.registry import registered
from dubito.runs.description import DataDescription

CLASSES = 3
SIZES = {"lenet5": 16, "alexnet": 29, "vgg16": 32, "resnet50": 16, "resnet34": 16, "resnet18": 16}
"""The smallest sensible image; 8 pixels for those that are not here."""
DRAWS_ARE_HEAVY = ("vgg16", "resnet18", "resnet32", "resnet34", "resnet50", "resnet56")
OWN = """
from torch import nn

def small(num_classes, in_channels, activation="relu"):
    kinds = {"relu": nn.ReLU, "silu": nn.SiLU}
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), kinds[activation](), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, num_classes),
    )
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Networks that are not in the registry: a folder of Hugging Face, and a module of the user's."""
    folder = tmp_path_factory.mktemp("networks")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.ViTConfig(image_size=8, patch_size=4, **sizes).save_pretrained(folder / "vit")
    (folder / "networks_of_mine.py").write_text(OWN)
    return {"hf": f"hf:{folder / 'vit'}", "own": "networks_of_mine:small", "folder": str(folder)}


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in names()), "hf", "own"])
def test_every_network_learns_predicts_is_stored_and_exported(
    name: str, elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere["folder"])
    size, chosen = SIZES.get(name, 8), elsewhere.get(name, name)
    network = build(chosen, CLASSES, 3, "vi", size, head="softmax", initial_std=0.02)
    images = torch.randn(3, 3, size, size)

    terms = dubito.ELBO(num_data=10)(network, images, torch.tensor([0, 2, 1]))
    terms.loss.backward()
    assert terms.loss.isfinite()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    network.zero_grad()

    prediction = dubito.predict(network, images, samples=2)
    assert prediction.probs.shape == (3, CLASSES)
    assert bool((prediction.epistemic > 0).all())

    again = build(chosen, CLASSES, 3, "vi", size, head="softmax", initial_std=0.02)
    again.load_state_dict(network.state_dict())
    assert torch.equal(dubito.predict(again, images, samples=2).probs, prediction.probs)

    data = DataDescription("some", 3, ("a", "b", "c"), (0.5,) * 3, (0.25,) * 3, 0, 10, size)
    what = "mean" if name in DRAWS_ARE_HEAVY else "draws"
    assert len(export_bytes(network, data, "torch", what, samples=2)) > 1000


@pytest.mark.parametrize("name", names())
def test_weights_of_a_network_are_called_alike_for_every_inference_and_choice(name: str) -> None:
    """So that weights of one can start another."""
    with torch.device("meta"):
        plain = build(name, CLASSES, inference="frequentist").state_dict()
        last = build(name, CLASSES, bayesian="last")
    bayesian = [path for path, part in last.named_modules() if isinstance(part, dubito.BayesLayer)]
    (classifier,) = bayesian
    assert {key for key in plain if not key.startswith(classifier)} <= last.state_dict().keys()


@pytest.mark.parametrize("name", [name for name in names() if registered(name).norm])
@pytest.mark.parametrize("norm", ["group", "frn"])
def test_residual_networks_can_be_normalised_otherwise(name: str, norm: str) -> None:
    with torch.device("meta"):
        network = build(name, CLASSES, image_size=16, norm=norm, activation="silu", inference="frequentist")
    kinds = {type(part).__name__ for part in network.modules()}
    assert {"group": "GroupNorm", "frn": "FilterResponseNorm"}[norm] in kinds
    assert not kinds & {"BatchNorm2d", "ReLU", "Softplus"}
    assert "SiLU" in kinds


def test_the_stem_of_a_large_residual_network_suits_the_images() -> None:
    with torch.device("meta"):
        small, large = (build("resnet18", image_size=size, inference="frequentist") for size in (64, 224))
    assert (small.conv1.kernel_size, small.conv1.stride) == ((3, 3), (1, 1))
    assert (large.conv1.kernel_size, large.conv1.stride) == ((7, 7), (2, 2))


@pytest.mark.parametrize(
    ("name", "size", "parameters"),
    [
        ("resnet18", 224, 11_689_512),  # torchvision's numbers for 1,000 classes
        ("resnet34", 224, 21_797_672),
        ("resnet50", 224, 25_557_032),
    ],
)
def test_residual_networks_have_as_many_parameters_as_published(name: str, size: int, parameters: int) -> None:
    with torch.device("meta"):
        network = build(name, 1000, image_size=size, inference="frequentist")
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


@pytest.mark.parametrize(("name", "millions"), [("resnet20", 0.27), ("resnet32", 0.46), ("resnet56", 0.85)])
def test_cifar_networks_have_as_many_parameters_as_published(name: str, millions: float) -> None:
    """He et al. 2016, table 6; their shortcuts have no weights, so that ours have up to 0.01 million more."""
    with torch.device("meta"):
        network = build(name, 10, inference="frequentist")
    weights = sum(p.numel() for key, p in network.named_parameters() if "downsample" not in key)
    assert weights / 1e6 == pytest.approx(millions, abs=0.006)


def test_a_function_gets_what_it_has_parameters_for(elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(elsewhere["folder"])
    network = build(elsewhere["own"], 4, 1, "frequentist", 9, activation="silu", head="kendall_gal")
    assert isinstance(network[2], nn.SiLU)
    assert network(torch.randn(2, 1, 9, 9)).shape == (2, 8)
    sys.modules.pop("networks_of_mine")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("own", {"norm": "group"}, r"norm is 'group', but networks_of_mine:small has no parameter norm"),
        ("own", {"inference": "dropout"}, r"the network has no dropout layer"),
        ("nowhere.at_all:f", {}, r"Python finds no module nowhere.at_all: run from the folder that it is in"),
        ("math:pi", {}, r"'math:pi', but that is a float, not a function"),
        ("builtins:dict", {}, r"builtins:dict returned a dict, but must return a torch.nn.Module"),
        ("torch.nn:Identity", {}, r"torch.nn:Identity.* calls no layer|calls no layer that has weights"),
        ("hf", {"norm": "frn"}, r"norm is 'frn', but hf:.*vit has its own normalisation"),
        ("hf", {"activation": "softplus"}, r"activation is 'softplus', which hf:.*vit cannot have"),
        ("hf:vitt", {}, r"hf is 'vitt', but must be one of .*the nearest is 'vit', a folder with a config.json"),
        ("lenet5", {"bayesian": "nothing"}, r"bayesian=nothing picks no layer"),
        (
            "lenet5",
            {"bayesian": ""},
            r"bayesian is '', but must be patterns of names such as 'layer4,fc', or all or last",
        ),
        ("lenet5", {"freeze": " , "}, r"freeze is ' , ', but must be patterns of names .*, or none\."),
        ("lenet5", {"freeze": "nothing"}, r"freeze is 'nothing', which is not the name of a module or parameter"),
        ("lenet5", {"bayesian": "last", "freeze": "*"}, r"bayesian is 'last', but all of these layers are frozen"),
        ("lenet5", {"inference": "frequentist", "bayesian": "last"}, r"bayesian only make sense with inference='vi'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_one_sentence(
    name: str, options: dict, sentence: str, elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere["folder"])
    with pytest.raises(dubito.errors.OptionError, match=sentence):
        build(elsewhere.get(name, name), CLASSES, 3, **{"image_size": 16, **options})


def test_a_function_that_ignores_the_number_of_classes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_outputs.py").write_text(
        "from torch import nn\ndef f(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 7))\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dubito.errors.OptionError, match=r"outputs of shape \(1, 7\) of one image, but 3 classes"):
        build("wrong_outputs:f", CLASSES, 3, image_size=2)
    with pytest.raises(
        dubito.errors.OptionError, match=r"wrong_outputs:f does not take 3 x 5 x 5 images: mat1 and mat2"
    ):
        build("wrong_outputs:f", CLASSES, 3, image_size=5)


def test_what_the_code_of_a_user_raises_is_not_called_a_bug_of_dubito(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_networks.py").write_text(
        "def raises(num_classes, in_channels): raise RuntimeError('no such depth.\\nmore')\n"
        "def needs_width(num_classes, width): pass\n"
    )
    (tmp_path / "unfinished_networks.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    called = r"when it was called with num_classes=3"
    for name, sentence in {
        "faulty_networks:raises": rf"raises failed {called}, in_channels=3: RuntimeError: no such depth\.$",
        "faulty_networks:needs_width": rf"{called}: TypeError: needs_width\(\) missing 1 required .* 'width'\.$",
        "unfinished_networks:f": r"but importing unfinished_networks failed: SyntaxError: ",
    }.items():
        with pytest.raises(dubito.errors.OptionError, match=sentence):
            build(name, CLASSES, 3, image_size=5)


def test_a_function_that_returns_no_module_is_told_in_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_networks.py").write_text("def number():\n    return 3\n\n\ndef text():\n    return ''\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in (("number", "returned an int, but"), ("text", "returned a str, but")):
        with pytest.raises(OptionError, match=words):
            build(f"no_networks:{name}", 3)
