"""Evaluating runs and ensembles, and keeping the evaluations."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import make_run
from safetensors.torch import load_file, save_file

import dubito
from dubito.data import load, normalize, open_dataset, split_validation
from dubito.errors import DataError, DubitoError, DubitoWarning, OptionError, RunError, ShapeError
from dubito.evaluation import Evaluated, Evaluation, evaluate, metrics
from dubito.evaluation.evaluation import _facts
from dubito.evaluation.noise import noisy_batches
from dubito.prediction import Predictor, pool
from dubito.training import Run

QUICK = {"samples": 3, "bootstrap": 50, "noise": (0.0, 0.3), "noise_images": 100}
KEYS = (
    *("accuracy", "top5_accuracy", "nll", "brier", "ece", "ece_equal_mass"),
    *("aleatoric", "epistemic", "entropy", "mutual_information"),
)


@pytest.fixture(scope="module")
def other(folder: Path) -> str:
    """Colour images of three other classes."""
    generator = np.random.default_rng(0)
    path = folder / "other.npz"
    images = generator.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x_train=images[:30], y_train=np.arange(30) % 3, x_test=images[30:], y_test=np.arange(30) % 3)
    return str(path)


@pytest.fixture(scope="module")
def evaluation(bayesian: Run, other: str) -> Evaluation:
    return evaluate(bayesian, ood=[other], **QUICK)


def same(first: dubito.Prediction, second: dubito.Prediction) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in ((getattr(first, f.name), getattr(second, f.name)) for f in fields(dubito.Prediction))
    )


def assert_close(first: dubito.Prediction, second: dubito.Prediction) -> None:
    assert first.samples == second.samples
    for name in ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), atol=1e-5, rtol=1e-4)


def test_the_test_images_are_predicted_as_predict_does_it(bayesian: Run, evaluation: Evaluation):
    test = load("digits", "test")
    inputs = normalize(test.images, test.mean, test.std)
    predictor = Predictor(bayesian.load(), 3, seed=0)
    expected = predictor(inputs)
    assert_close(evaluation.test.prediction, expected)
    torch.testing.assert_close(evaluation.test.draws[:, :200], predictor.draws(inputs[:200]))
    assert evaluation.test.members == (3,)
    assert evaluation.test.name == "digits/test"
    assert torch.equal(evaluation.test.images, test.images)
    assert torch.equal(evaluation.test.labels, test.labels)
    assert evaluation.class_names == test.class_names
    assert evaluation.metrics["accuracy"] == pytest.approx(metrics.accuracy(expected.probs, test.labels))
    assert evaluation.metrics["accuracy"] > 0.5


def test_calibration_uses_the_images_that_the_run_held_out(bayesian: Run, evaluation: Evaluation):
    train = open_dataset("digits").train()
    _, held_out = split_validation(train.labels, bayesian.config.validation_fraction, bayesian.config.seed)
    assert torch.equal(evaluation.validation.labels, train.labels[held_out])
    assert evaluation.validation.name == "digits/validation"
    assert evaluation.metrics["conformal"]["images"] == len(held_out)


def test_metrics_are_whole_and_plain_json(evaluation: Evaluation, other: str):
    found = evaluation.metrics
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for key in KEYS:
        low, high = found["intervals"][key]
        assert low <= found[key] <= high
    for name in metrics.UNCERTAINTIES:
        row = found["errors"][name]
        assert row["auroc_interval"][0] <= row["auroc"] <= row["auroc_interval"][1]
        assert 0 <= row["excess_aurc"] <= row["aurc"]
        assert len(found["risk_coverage"][name]) == len(found["risk_coverage"]["coverage"]) == 100
        assert found["risk_coverage"][name][-1] == pytest.approx(1 - found["accuracy"])
        assert set(found["ood"][other][name]) == {"auroc", "aupr", "fpr95", "auroc_interval"}
    assert found["temperature_scaling"]["after"]["nll"] > 0
    assert found["temperature_scaling"]["before"]["nll"] == pytest.approx(found["nll"])
    for method in ("lac", "aps"):
        assert 0.5 < found["conformal"][method]["coverage"] <= 1
        assert len(found["conformal"][method]["class_coverage"]) == 10
    assert sum(map(sum, found["confusion"])) == len(evaluation.test)
    assert [row["class"] for row in found["per_class"]] == list(evaluation.class_names)
    settings = found["settings"]
    assert (settings["samples"], settings["data"], settings["temperature"]) == (3, "digits", 0.05)
    assert settings["runs"][0]["model"] == "lenet5"
    assert settings["intervals_cover"] == "images and draws"
    assert 0 < evaluation.seconds["forward"] < evaluation.seconds["total"]


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_the_free_energy_is_that_of_the_epoch_whose_weights_are_evaluated(digits_run: Path, checkpoint: str):
    run = Run.open(digits_run)
    (facts,) = _facts([run], checkpoint)["runs"]
    rows = run.metrics()
    row = rows[-1] if checkpoint == "last" else rows[run.read_checkpoint("best")[1]["epoch"] - 1]
    assert facts["kl_per_image"] == pytest.approx(row["kl"] / run.data.num_data)
    assert facts["free_energy"] == pytest.approx(row["train_nll"] + facts["kl_per_image"])


def test_other_images_have_no_labels_and_the_network_s_channels(evaluation: Evaluation, other: str):
    part = evaluation.ood[other]
    assert part.labels is None
    assert part.images.shape == (30, 1, 32, 32)
    assert len(part.prediction) == 30


def test_noise_raises_the_uncertainty_and_level_0_is_the_clean_images(evaluation: Evaluation):
    clean, noisy = evaluation.noise
    assert (clean.gamma, noisy.gamma) == (0.0, 0.3)
    assert clean.aleatoric_interval[0] <= clean.aleatoric <= clean.aleatoric_interval[1]
    assert noisy.accuracy < clean.accuracy
    assert noisy.epistemic > clean.epistemic
    order = torch.randperm(len(evaluation.test), generator=torch.Generator().manual_seed(0))[:100]
    assert clean.aleatoric == pytest.approx(float(evaluation.test.prediction.aleatoric[order].mean()), rel=1e-5)
    assert evaluation.metrics["noise"][1]["aleatoric"] == noisy.aleatoric


def test_noise_is_added_to_pixels_between_0_and_1(bayesian: Run):
    """Noise of standard deviation gamma in [0, 1] is gamma / std after normalisation."""
    images = torch.full((64, 1, 32, 32), 128, dtype=torch.uint8)
    batches = torch.cat(list(noisy_batches(images, bayesian.data, 0.2, size=16, seed=0)))
    pixels = batches * bayesian.data.std[0] + bayesian.data.mean[0]
    count = pixels.numel()
    assert float(pixels.mean()) == pytest.approx(128 / 255, abs=5 * 0.2 / count**0.5)
    assert float(pixels.std()) == pytest.approx(0.2, abs=5 * 0.2 / (2 * count) ** 0.5)
    # It belongs to an image's place, whatever the batches: neither 7 nor 40 is a whole number of blocks.
    assert torch.equal(batches, torch.cat(list(noisy_batches(images, bayesian.data, 0.2, size=7, seed=0))))
    later = torch.cat(list(noisy_batches(images[40:], bayesian.data, 0.2, size=9, seed=0, first=40)))
    assert torch.equal(batches[40:], later)


def test_the_same_call_gives_the_same(bayesian: Run, other: str, evaluation: Evaluation):
    state = torch.random.get_rng_state()
    again = evaluate(str(bayesian.path), ood=[other, other], **QUICK)
    assert again.metrics == evaluation.metrics
    assert torch.equal(torch.random.get_rng_state(), state)
    assert evaluate(bayesian, **{**QUICK, "seed": 1}).metrics["nll"] != evaluation.metrics["nll"]


def test_saving_and_loading_is_exact(evaluation: Evaluation, tmp_path: Path):
    evaluation.save(tmp_path)
    loaded = Evaluation.load(tmp_path)
    assert loaded.metrics == evaluation.metrics
    assert loaded.noise == evaluation.noise
    assert loaded.seconds == evaluation.seconds
    assert loaded.class_names == evaluation.class_names
    assert [run.path.resolve() for run in loaded.runs] == [run.path.resolve() for run in evaluation.runs]
    assert list(loaded.ood) == list(evaluation.ood)
    parts = [(loaded.test, evaluation.test), (loaded.validation, evaluation.validation)]
    for one, two in [*parts, *zip(loaded.ood.values(), evaluation.ood.values(), strict=True)]:
        assert one.name == two.name
        assert torch.equal(one.images, two.images)
        assert same(one.prediction, two.prediction)
        assert (one.members, one.unit) == (two.members, two.unit)
        assert (one.labels is None and two.labels is None) or torch.equal(one.labels, two.labels)
        if one.labels is not None:
            assert torch.equal(one.draws, two.draws)
    assert loaded.is_current
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "evaluation.safetensors"]


def test_loading_without_images_needs_no_data_set(evaluation: Evaluation, tmp_path: Path, monkeypatch):
    evaluation.save(tmp_path)
    monkeypatch.setattr("dubito.evaluation.images.open_dataset", None)
    loaded = Evaluation.load(tmp_path, images=False)
    assert len(loaded.test) == len(evaluation.test)
    assert len(loaded.test.images) == 0
    assert same(loaded.test.prediction, evaluation.test.prediction)


def test_a_run_folder_may_be_moved_with_its_evaluation(bayesian: Run, evaluation: Evaluation, tmp_path: Path):
    shutil.copytree(bayesian.path, tmp_path / "one")
    first = Evaluation(**{**vars(evaluation), "runs": (Run.open(tmp_path / "one"),)})
    first.save(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    loaded = Evaluation.load(tmp_path / "two")
    assert loaded.runs[0].path == tmp_path / "two"
    assert loaded.is_current
    weights = tmp_path / "two" / "best.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert not loaded.is_current


def test_damaged_and_half_written_evaluations_are_one_sentence(evaluation: Evaluation, tmp_path: Path):
    with pytest.raises(RunError, match="no evaluation yet"):
        Evaluation.load(tmp_path)
    evaluation.save(tmp_path)
    text = (tmp_path / "evaluation.json").read_text()
    for left in (text.replace('"seed": 0', '"seed": 1'), text[:100]):  # as by a kill between the two files
        (tmp_path / "evaluation.json").write_text(left)
        assert Evaluation.load(tmp_path).metrics["settings"]["seed"] == 0
        assert (tmp_path / "evaluation.json").read_text() == text
    tensors = tmp_path / "evaluation.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:1000])
    with pytest.raises(RunError, match="damaged"):
        Evaluation.load(tmp_path)
    tensors.unlink()
    with pytest.raises(RunError, match="damaged"):
        Evaluation.load(tmp_path)


CHANGES = {
    "a checkpoint elsewhere": lambda content, tensors: content["metrics"]["settings"].update(checkpoint="../x/best"),
    "no settings": lambda content, tensors: content["metrics"].pop("settings"),
    "runs of numbers": lambda content, tensors: content.update(runs=[3]),
    "parts of a list": lambda content, tensors: content.update(parts=[]),
    "samples of a text": lambda content, tensors: content["parts"]["test"].update(samples="3"),
    "members of a text": lambda content, tensors: content["parts"]["test"].update(members="x"),
    "noise of numbers": lambda content, tensors: content.update(noise=[3]),
    "a class twice": lambda content, tensors: content.update(class_names=["0"] * 10),
    "labels beyond the classes": lambda content, tensors: tensors["test/labels"].add_(10),
    "draws of NaN": lambda content, tensors: tensors["test/draws"].fill_(float("nan")),
    "probabilities of other classes": lambda content, tensors: tensors.update({"test/probs": torch.zeros(3, 4)}),
    "no labels": lambda content, tensors: tensors.pop("test/labels"),
    "no runs": lambda content, tensors: content.update(runs=[]),
    "a billion samples": lambda content, tensors: content["metrics"]["settings"].update(samples=10**9),
    "a billion members": lambda content, tensors: content["parts"]["test"].update(members=[10**9]),
    "no tensor": lambda content, tensors: tensors.pop("test/entropy"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_evaluation_of_somebody_else_is_checked(change: str, evaluation: Evaluation, tmp_path: Path):
    evaluation.save(tmp_path)
    file = tmp_path / "evaluation.safetensors"
    content, tensors = json.loads((tmp_path / "evaluation.json").read_text()), load_file(file)
    CHANGES[change](content, tensors)
    save_file(tensors, file, {"json": json.dumps(content)})
    with pytest.raises(DubitoError):
        Evaluation.load(tmp_path, images=False)


def test_pooling_is_the_decomposition_of_all_draws():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(12, 20, 5, generator=generator, dtype=torch.float64).softmax(2)
    parts = pool([dubito.decompose(part) for part in draws.split([1, 4, 7])])
    whole = dubito.decompose(draws)
    assert parts.samples == whole.samples == 12
    for name in ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_an_ensemble_is_the_decomposition_of_its_members_draws(bayesian: Run, frequentist: Run):
    found = evaluate([bayesian, frequentist], **{**QUICK, "samples": 6})  # three for each, of which a twin has one
    test = load("digits", "test")
    inputs = normalize(test.images, test.mean, test.std)
    together = dubito.ensemble([bayesian.load(), frequentist.load()])
    assert_close(found.test.prediction, Predictor(together, 6, seed=0)(inputs))
    assert found.test.members == (3, 1)
    # Every member counts as much as any other, however many draws it has.
    drawn, single = (dubito.decompose(part) for part in found.test.draws.split([3, 1]))
    assert_close(found.test.prediction, pool([drawn, single], [1.0, 1.0]))
    assert_close(found.test.without([2]), pool([dubito.decompose(found.test.draws[:2]), single], [1.0, 1.0]))
    assert len(found.runs) == 2
    assert found.metrics["settings"]["temperature"] is None  # of which one member has none


def test_frequentist_networks_have_no_epistemic_uncertainty(frequentist: Run):
    found = evaluate(frequentist, **QUICK).metrics
    assert found["epistemic"] == 0
    assert found["settings"]["intervals_cover"] == "images"
    assert found["errors"]["epistemic"]["auroc"] == 0.5


def test_an_ensemble_is_calibrated_on_what_all_members_held_out(bayesian: Run, tmp_path: Path):
    twin = make_run(tmp_path / "twin", seed=1)
    found = evaluate([bayesian, twin], **QUICK)
    labels = open_dataset("digits").train().labels
    shared = set.intersection(*(set(split_validation(labels, 0.1, seed)[1].tolist()) for seed in (0, 1)))
    assert len(found.validation) == len(shared) > 0
    strangers = [make_run(tmp_path / f"{seed}", seed=seed) for seed in (2, 3, 4, 5)]
    with pytest.warns(DubitoWarning, match="no validation image in common"):
        alone = evaluate([bayesian, *strangers], **{**QUICK, "samples": 1, "noise": ()})
    assert len(alone.validation) == 0
    assert alone.metrics["conformal"] is None
    alone.save(tmp_path / "ensemble")
    assert len(Evaluation.load(tmp_path / "ensemble").validation) == 0


def test_members_of_an_ensemble_need_the_same_data(bayesian: Run, other: str, tmp_path: Path):
    stranger = make_run(tmp_path / "stranger", data=other)
    with pytest.raises(RunError, match="same data set"):
        evaluate([bayesian, stranger], **QUICK)
    twin = make_run(tmp_path / "twin", head="kendall_gal")
    with pytest.raises(OptionError, match="kendall_gal"):
        evaluate([bayesian, twin], **QUICK)


def test_two_classes_have_no_top_5_and_few_images_are_enough(folder: Path, tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32), dtype=np.uint8)
    np.savez(
        tmp_path / "two.npz",
        x_train=images[:30],
        y_train=np.arange(30) % 2,
        x_test=images[30:],
        y_test=np.arange(10) % 2,
    )
    run = make_run(tmp_path / "run", data=str(tmp_path / "two.npz"), validation_fraction=0.2)
    found = evaluate(run, **QUICK).metrics
    assert "top5_accuracy" not in found
    assert found["conformal"]["lac"]["threshold"] is None  # 6 images cannot promise 90 %: sets of all classes
    assert found["conformal"]["lac"]["coverage"] == 1


def test_another_data_set_must_have_the_same_classes(bayesian: Run, other: str, tmp_path: Path):
    with pytest.raises(DataError, match=r"3 classes, but the network .* tells 10 apart\. .*--ood"):
        evaluate(bayesian, data=other, **QUICK)
    images = np.zeros((40, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(40) % 10
    same_count = tmp_path / "ten.npz"
    np.savez(same_count, x_train=images, y_train=labels, x_test=images, y_test=labels)
    if open_dataset(str(same_count)).class_names == bayesian.data.class_names:
        # Numbers as names: the same classes, here in colour.
        found = evaluate(bayesian, data=str(same_count), **QUICK)
        assert found.test.images.shape == (40, 1, 32, 32)
        assert found.validation.name == "digits/validation"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"bootstrap": 0}, "bootstrap is 0"),
        ({"noise_images": 0}, "noise_images is 0"),
        ({"coverage": 1.0}, "coverage is 1.0"),
        ({"noise": (-0.1,)}, "-0.1"),
        ({"noise": (float("nan"),)}, "nan"),
        ({"ood": ["digits"]}, "cannot be given as --ood"),
        ({"ood": ["no-such-set"]}, "no-such-set"),
    ],
)
def test_wrong_options_are_one_sentence(bayesian: Run, options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        evaluate(bayesian, **{**QUICK, **options})


def test_runs_that_are_not_whole_are_one_sentence(bayesian: Run, tmp_path: Path):
    with pytest.raises(OptionError, match="no run"):
        evaluate([])
    with pytest.raises(RunError, match="There is no run folder"):
        evaluate(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no config\.yaml"):
        evaluate(tmp_path / "empty")
    shutil.copytree(bayesian.path, tmp_path / "half")
    (tmp_path / "half" / "best.safetensors").unlink()
    with pytest.raises(RunError, match="train it for an epoch first"):
        evaluate(tmp_path / "half")
    (tmp_path / "half" / "best.safetensors").write_bytes(b"{")
    with pytest.raises(RunError, match="damaged"):
        evaluate(tmp_path / "half", **QUICK)


def test_data_that_changed_since_training_is_refused(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (60, 32, 32), dtype=np.uint8)
    labels = np.arange(60) % 3
    path = tmp_path / "own.npz"
    np.savez(path, x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:])
    run = make_run(tmp_path / "run", data=str(path))
    np.savez(path, x_train=images[:30], y_train=labels[:30], x_test=images[40:], y_test=labels[40:])
    with pytest.raises(RunError, match="has changed since"):
        evaluate(run, **QUICK)


def test_any_network_is_evaluated_on_batches(bayesian: Run, frequentist: Run, evaluation: Evaluation):
    test = evaluation.test
    inputs = normalize(test.images, bayesian.data.mean, bayesian.data.std)
    batches = list(zip(inputs.split(200), test.labels.split(200), strict=True))
    found = evaluate(bayesian.load(), batches, samples=3, bootstrap=50)
    for key in KEYS:
        assert found.metrics[key] == pytest.approx(evaluation.metrics[key], rel=1e-4)
        assert found.metrics["intervals"][key] == pytest.approx(evaluation.metrics["intervals"][key], rel=1e-2)
    assert found.metrics["conformal"] is None
    together = evaluate(dubito.ensemble([bayesian.load(), frequentist.load()]), batches, samples=6, bootstrap=50)
    assert together.test.members == (3, 1)
    for call in (
        lambda: evaluate(bayesian.load()),
        lambda: evaluate(bayesian, batches),
        lambda: evaluate(bayesian.load(), []),
        lambda: evaluate(bayesian.load(), [inputs]),
    ):
        with pytest.raises((OptionError, ShapeError), match="batches"):
            call()


def test_some_images_of_a_part_keep_their_draws(evaluation: Evaluation):
    few: Evaluated = evaluation.test[5:10]
    assert len(few) == 5
    assert torch.equal(few.draws, evaluation.test.draws[:, 5:10])
    assert torch.equal(few.labels, evaluation.test.labels[5:10])
    assert torch.equal(few.prediction.probs, evaluation.test.prediction.probs[5:10])


def test_a_predictor_is_evaluated_as_its_network_is() -> None:
    network = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    dubito.attach_data(network, class_names=["a", "b", "c"], size=2)
    batches = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(2)]
    of_network = dubito.evaluate(network, batches, samples=4, seed=5)
    of_predictor = dubito.evaluate(dubito.Predictor(network, 4, seed=5), batches)
    assert of_network.metrics == of_predictor.metrics
    assert of_predictor.class_names == ("a", "b", "c")
