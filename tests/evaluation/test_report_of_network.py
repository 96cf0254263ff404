"""`dubito.report` of a network in memory: the same report, without what only a run knows."""

from pathlib import Path

import pytest
import torch
from test_report import Page
from torch import Tensor, nn

import dubito
from dubito.errors import OptionError
from dubito.evaluation.images import shown
from dubito.runs.attached import data_of

NAMES = ("cat", "dog", "<owl>")


def network(inputs: int = 3 * 16 * 16) -> nn.Module:
    torch.manual_seed(0)
    return dubito.attach_head(nn.Sequential(nn.Flatten(), dubito.BayesLinear(inputs, 3)), "softplus")


def batches(*shape: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(20, *shape, generator=generator), torch.arange(20) % 3) for _ in range(2)]


def test_a_network_has_a_report_with_images_classes_and_posterior(tmp_path: Path) -> None:
    model = dubito.attach_data(network(), class_names=NAMES, size=16, mean=[0.5] * 3, std=[0.25] * 3)
    file = dubito.report(
        model,
        batches(3, 16, 16),
        tmp_path / "page.html",
        validation=batches(3, 16, 16, seed=1),
        figures=tmp_path / "figures",
        samples=4,
    )
    page = Page(file.read_text(encoding="utf-8"))
    found = dubito.evaluate(model, batches(3, 16, 16), samples=4)
    assert f"{100 * found.metrics['accuracy']:.1f} %" in page.text
    assert set(page.ids("section")) >= {"calibration", "mistakes", "uncertainty", "images", "classes", "posterior"}
    assert {"figure-conformal", "figure-scatter", "figure-posterior-std"} <= set(page.ids("figure"))
    assert "of validation images (" in page.text
    assert "image 0" in page.text
    assert all(name in page.text for name in NAMES)
    assert (tmp_path / "figures" / "risk-coverage.svg").exists()


def test_inputs_that_are_no_images_are_reported_without_them(tmp_path: Path) -> None:
    file = dubito.report(dubito.Predictor(network(5), 4), batches(5), tmp_path / "report.html")
    page = Page(file.read_text(encoding="utf-8"))
    assert "images" not in page.ids("section")
    assert "figure-scatter" in page.ids("figure")
    for reason in ("not images with one or three channels", "No validation images were given", "No Bayesian layer"):
        assert reason in page.text


def test_validation_batches_calibrate_a_network() -> None:
    model = network(5)
    held_out = batches(5, seed=1)
    found = dubito.evaluate(model, batches(5), validation=held_out, samples=4)
    alone = dubito.evaluate(model, held_out, samples=4)
    assert torch.equal(found.validation.prediction.probs, alone.test.prediction.probs)
    assert found.metrics["conformal"]["images"] == 40
    assert dubito.evaluate(model, batches(5), samples=4).metrics["conformal"] is None


def test_pictures_undo_the_normalisation() -> None:
    model = dubito.attach_data(nn.Flatten(), class_names=NAMES, size=4, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
    pixels = torch.randint(0, 256, (6, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    inputs = dubito.data.normalize(pixels, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert torch.equal(shown([inputs[:4], inputs[4:]], data_of(model)), pixels)
    assert shown([torch.zeros(2, 1, 4, 6)], None).shape == (2, 1, 6, 6)
    assert shown([torch.full((1, 1, 2, 2), 7.0)], None).tolist() == [[[[0, 0], [0, 0]]]]


def test_what_belongs_to_the_other_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="only be given with a network"):
        dubito.report(tmp_path, batches(5))
    with pytest.raises(OptionError, match="only be given with a run folder"):
        dubito.report(network(5), batches(5), tmp_path / "report.html", ood=["mnist"])
    with pytest.raises(OptionError, match="needs batches"):
        dubito.report(network(5))
