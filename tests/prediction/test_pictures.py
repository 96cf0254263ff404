"""A predictor takes photographs in every form, prepared as the network's training had them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dubito
from dubito.data import normalize
from dubito.errors import DataError, OptionError, ShapeError
from dubito.prediction.predictor import Predictor


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = (np.arange(30 * 20 * 3) * 7 % 256).astype(np.uint8).reshape(30, 20, 3)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def predictor() -> Predictor:
    torch.manual_seed(0)
    network = dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2)), head="softmax")
    fields: dict[str, Any] = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "fit": "pad"}
    dubito.attach_data(network, class_names=["cat", "dog"], size=8, **fields)
    return Predictor(network, samples=4)


def test_every_form_of_a_photograph_has_one_prediction(photo: Path, predictor: Predictor) -> None:
    data = predictor.data
    assert data is not None
    prepared = normalize(data.read(photo)[None], (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    expected = predictor(prepared).probs
    pixels = np.asarray(Image.open(photo))
    forms = [photo, str(photo), [photo], photo.read_bytes(), Image.open(photo), pixels, pixels[None], [pixels]]
    for form in forms:
        assert torch.equal(predictor(form).probs, expected)
    assert torch.equal(predictor.draws(photo), predictor.draws(prepared))
    assert torch.equal(predictor([photo, pixels]).probs, expected.expand(2, 2))


def test_pillows_images_are_turned_upright_as_files_are(photo: Path, predictor: Predictor) -> None:
    picture = Image.open(photo)
    exif = picture.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    picture.save(file, format="PNG", exif=exif)
    assert torch.equal(predictor(Image.open(file)).probs, predictor(file.getvalue()).probs)
    assert not torch.equal(predictor(Image.open(file)).probs, predictor(photo).probs)


def test_what_cannot_be_read_is_named(photo: Path, predictor: Predictor) -> None:
    with pytest.raises(DataError, match=r"nowhere\.png does not exist"):
        predictor("nowhere.png")
    with pytest.raises(DataError, match="image 0 cannot be read as an image"):
        predictor(b"no image")
    with pytest.raises(ShapeError, match=r"Image 1 is an array of float64 and shape \(4, 4, 3\), but must be of uint8"):
        predictor([photo, np.zeros((4, 4, 3))])
    with pytest.raises(ShapeError, match="Image 1 is a int, but must be a path"):
        predictor([photo, 3])
    bare = Predictor(dubito.attach_head(nn.Flatten(), "softmax"))
    with pytest.raises(
        OptionError, match=r"needs to know what the images of the network are like.*dubito\.attach_data"
    ):
        bare(photo)


def test_a_run_and_a_saved_network_take_photographs(digits_run: Path, photo: Path, tmp_path: Path) -> None:
    found = Predictor(digits_run, samples=2)(photo)
    assert found.probs.shape == (1, 10)
    folder = dubito.save(dubito.load(digits_run), tmp_path / "saved")
    assert torch.equal(Predictor(folder, samples=2)(photo).probs, found.probs)


def test_a_network_has_a_name_for_each_class() -> None:
    network = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), "softmax")
    dubito.attach_data(network, class_names=["cat", "dog"], size=2)
    with pytest.raises(ShapeError, match="tells 3 classes apart, but 2 class names come with it; give one for each"):
        Predictor(network)(torch.zeros(1, 3, 2, 2))


def test_tensors_that_a_described_network_cannot_take_are_refused_in_one_sentence(digits_run: Path) -> None:
    predictor = dubito.Predictor(digits_run, 2)
    with pytest.raises(ShapeError, match=r"have 3 channels .* but the network takes 1: give \(N, 1, 32, 32\)"):
        predictor(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ShapeError, match=r"are torch.uint8, but the network takes normalised floating-point pixels"):
        predictor(torch.zeros(2, 1, 32, 32, dtype=torch.uint8))
    assert len(predictor(torch.zeros(2, 1, 32, 32))) == 2
