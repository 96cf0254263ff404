"""Run folders of strangers: whatever their files hold, opening them ends in one sentence and reads no other file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import dubito
from dubito.errors import DubitoError, RunError
from dubito.foreign import read_tensors
from dubito.runs.run import Run


def edit(run: Path, part: str, **values: Any) -> None:
    """Change settings or the description in config.yaml."""
    content = yaml.load((run / "config.yaml").read_text(), yaml.CSafeLoader)
    content[part].update(values)
    (run / "config.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper))


def edit_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def edit_checkpoint(
    file: Path, change: Callable[[dict[str, torch.Tensor]], object] | None = None, notes: Any = None
) -> None:
    """Change tensors in place, or replace the notes."""
    tensors, kept = load_file(file), read_tensors(file)[1]
    if change is not None:
        change(tensors)
    save_file(tensors, file, {"notes": kept if notes is None else json.dumps(notes)})


def refused(act: Callable[[], object], *words: str) -> str:
    """The one sentence that it ends in, in which these words are."""
    with pytest.raises(DubitoError) as raised:
        act()
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert len(sentence) < 1500
    assert all(word in sentence for word in words), sentence
    return sentence


@pytest.mark.parametrize("name", ["file", "preset", "include", "config"])
def test_a_configuration_names_no_other_file(name: str, own_run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: [hunter2")
    edit(own_run, "training", **{name: str(secret)})
    assert "hunter2" not in refused(lambda: Run.open(own_run), f"setting is '{name}'")


def test_the_run_that_a_training_started_from_is_not_read(own_run: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.yaml").write_text("password: [hunter2")
    edit(own_run, "training", init=str(begun))
    assert Run.open(own_run).load() is not None


def test_a_linked_file_is_not_quoted(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0\n\tpassword: hunter2: 'x\n")
    for name in ("config.yaml", "calibration.json", "metrics.csv", "best.safetensors"):
        (own_run / name).unlink()
        (own_run / name).symlink_to(tmp_path / "secret")
    run = Run.open  # the configuration itself is the first that cannot be read
    assert "hunter2" not in refused(lambda: run(own_run), "config.yaml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"members": 10**9}, "members is 1000000000, but must be at most 1000"),
        ({"epochs": 10**400}, "epochs is"),
        ({"model": ["lenet5"]}, "must be text"),
        ({"model": "a" * 10**6}, "model has 1000000 characters"),
        ({"head": ["softmax"]}, "head is"),
        ({"head": "x" * 5000}, "head is"),
        ({"dropout": None}, "dropout is None"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
    ],
)
def test_settings_are_of_their_types_and_bounded(values: dict[str, Any], words: str, own_run: Path) -> None:
    edit(own_run, "training", **values)
    refused(lambda: Run.open(own_run), "config.yaml", words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mean": [float("nan")]}, "mean is [nan]"),
        ({"std": [0.0]}, "std is [0.0]"),
        ({"std": [-1.0]}, "std is [-1.0]"),
        ({"std": "0.5"}, "std is of type str"),
        ({"mean": [[0.5]]}, "is not a run's configuration"),
        ({"name": ["digits"]}, "name is of type list"),
        ({"fit": ["crop"]}, "fit is"),
        ({"class_names": "0123456789"}, "class_names is of type str"),
        ({"class_names": [*"012345678", "8"]}, "Two classes are called '8'"),
        ({"class_names": [*"012345678", ""]}, "empty name"),
        ({"class_names": [*"012345678", "\x1b[2J"]}, "control characters"),
        ({"class_names": [str(number) for number in range(60_000)]}, "There are 60000 classes"),
    ],
)
def test_a_description_makes_sense(values: dict[str, Any], words: str, own_run: Path) -> None:
    edit(own_run, "data", **values)
    refused(lambda: Run.open(own_run), "config.yaml", words)


@pytest.mark.parametrize("text", ["", "[]", "training: 3\ndata: 4", "&a {training: *a}", "[" * 10_000, "\x00", "- - -"])
def test_a_configuration_that_is_none_is_refused(text: str, own_run: Path) -> None:
    (own_run / "config.yaml").write_text(text)
    refused(lambda: Run.open(own_run), "config.yaml")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_converted(dtype: torch.dtype, own_run: Path) -> None:
    def convert(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: t.to(dtype) for name, t in tensors.items() if t.is_floating_point()})

    edit_checkpoint(own_run / "best.safetensors", convert)
    prediction = dubito.Predictor(own_run, samples=2)(torch.zeros(1, 1, 32, 32))
    assert prediction.probs.dtype is torch.float32
    assert bool(prediction.probs.isfinite().all())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.to(torch.int32), "is torch.int32, but must be torch.float32"),
        (lambda t: t.to(torch.complex64), "is torch.complex64, but"),
        (lambda t: t.fill_(float("nan")), "not finite"),
        (lambda t: t.double().fill_(1e300), "not finite"),
        (lambda t: t.flatten()[:-1], "has the shape"),
    ],
)
def test_weights_fit_or_are_refused(change: Callable[[torch.Tensor], torch.Tensor], words: str, own_run: Path) -> None:
    def edited(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.endswith("weight.mean"))
        tensors[name] = change(tensors[name]).contiguous()

    edit_checkpoint(own_run / "best.safetensors", edited)
    refused(lambda: Run.open(own_run).load(), str(own_run), words)


@pytest.mark.parametrize("notes", [[], 3, None, "text", {"pruned": []}, {"pruned": {"a": [1]}}, {"pruned": {"a": -1}}])
def test_notes_of_other_types_are_refused(notes: Any, own_run: Path) -> None:
    edit_checkpoint(own_run / "best.safetensors", notes=[] if notes is None else notes)
    refused(lambda: Run.open(own_run).load(), "best.safetensors is damaged")


def test_pruned_bits_unpack_to_a_bounded_size(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpacked: what it would take is known from the shapes."""
    file = own_run / "best.safetensors"
    name = next(name for name in load_file(file) if name.endswith(".mean")).removesuffix(".mean")

    def bits(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{name}.kept"] = torch.zeros(2**20, dtype=torch.uint8)

    edit_checkpoint(file, bits, {"pruned": {name: [2**23]}})
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_BYTES", str(2**25))
    refused(lambda: Run.open(own_run).load(), "unpack to 67108864 bytes, but 33554432 are allowed")
    for shape in ([2**60, 2**60], [-8], [8.0], "8", [2**24]):
        edit_checkpoint(file, notes={"pruned": {name: shape}})
        refused(lambda: Run.open(own_run).load(), "best.safetensors is damaged")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": 0.0}, "temperature makes no sense"),
        ({"temperature": float("nan")}, "temperature makes no sense"),
        ({"accuracy": "high"}, "accuracy makes no sense"),
        ({"images": -1}, "images makes no sense"),
        ({"quantiles": {"entropy": ["x"]}}, "quantiles makes no sense"),
        ({"quantiles": {"entropy": []}}, "quantiles makes no sense"),
        ({"quantiles": 3}, "is damaged"),
        ({"scores": {"entropy": {"auroc": 0.5, "interval": [0.1]}}}, "scores makes no sense"),
        ({"scores": []}, "is damaged"),
        ({"weights": 3}, "weights makes no sense"),
        ({"more": 3}, "is damaged"),
    ],
)
def test_a_calibration_makes_sense(values: dict[str, Any], words: str, own_run: Path) -> None:
    edit_json(own_run / "calibration.json", **values)
    refused(lambda: Run.open(own_run).find_calibration(), "calibration.json", words)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("prediction/probs", lambda t: t[:, :3], "probs is"),
        ("prediction/probs", lambda t: t.half(), "probs is torch.float16"),
        ("prediction/entropy", lambda t: t * float("nan"), "entropy has values that are not finite"),
        ("prediction/secret", lambda t: torch.zeros(3), "unknown tensor"),
        ("labels", lambda t: t + 10, "labels must be 0 to 9"),
        ("labels", lambda t: t.float(), "labels are torch.float32"),
        ("labels", lambda t: t[:3], "labels are"),
        ("example_index", lambda t: t - 10**6, "labels must be"),
        ("examples", lambda t: t[:, :, :3], "examples are"),
    ],
)
def test_a_validation_record_makes_sense(name: str, change: Any, words: str, own_run: Path) -> None:
    file = own_run / "validation.safetensors"
    edit_checkpoint(file, lambda tensors: tensors.update({name: change(tensors.get(name)).contiguous()}))
    refused(lambda: Run.open(own_run).find_validation(), "validation.safetensors is damaged", words)


@pytest.mark.parametrize("text", ["epoch,val_nll\n1,x\n", "epoch\n1,2,3\n", "x" * 10**6])
def test_tables_of_other_content_are_refused(text: str, own_run: Path) -> None:
    (own_run / "metrics.csv").write_text(text + "\n1\n")
    refused(lambda: Run.open(own_run).metrics(), "metrics.csv is damaged")


def test_many_class_names_take_no_time(own_run: Path) -> None:
    """As many as are allowed: a check of each with each would take minutes."""
    edit(own_run, "data", class_names=[f"class {number}" for number in range(30_000)])
    assert len(Run.open(own_run).data.class_names) == 30_000
    with pytest.raises(RunError, match="has the shape"):
        Run.open(own_run).load()


def test_a_network_of_hugging_face_is_described_in_the_run(own_run: Path, tmp_path: Path) -> None:
    """Neither a folder elsewhere nor the hub is looked at."""
    edit(own_run, "training", model=f"hf:{tmp_path}")
    refused(lambda: Run.open(own_run).load(), "has no network.json")
    for content in ("[]", "{", '{"model_type": 3}', "[" * 10_000, '{"model_type": "vit", "hidden_size": "large"}'):
        (own_run / "network.json").write_text(content)
        refused(lambda: Run.open(own_run).load(), "hf:")


def test_a_configuration_fetches_no_code_and_no_weights() -> None:
    from dubito.models.hugging_face import _harmless

    content = {"hidden_size": 8, "attn_implementation": "someone/kernel", "inner": [{"auto_map": {}, "a": 1}]}
    assert _harmless(content) == {"hidden_size": 8, "inner": [{"a": 1}]}


@pytest.fixture
def saved(own_run: Path, tmp_path: Path) -> Path:
    """A folder that dubito.save made."""
    return dubito.save(dubito.load(own_run), tmp_path / "saved")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"built_as": {"name": "lenet5", "init": "/etc/passwd"}}, "another file"),
        ({"built_as": {"name": "hf:/etc"}}, "another file"),
        ({"built_as": {"name": 3}}, "is damaged"),
        ({"built_as": []}, "is damaged"),
        ({"built_as": {"name": "lenet5", "num_classes": 10**12}}, "cannot be loaded"),
        ({"structure": []}, "is damaged"),
        ({"tensors": {"tied": [], "pruned": {}}}, "is damaged"),
        ({"tensors": {"tied": {}, "pruned": {"a": [10**12]}}}, "is damaged"),
        ({"data": {"class_names": ["a", "a"]}}, "is damaged"),
        ({"members": 3}, "is damaged"),
        ({"members": [{"name": []}]}, "is damaged"),
        ({"version": "9" * 4000}, "saved in version"),
        ({"format": []}, "does not describe"),
    ],
)
def test_a_saved_network_is_complete_in_itself(values: dict[str, Any], words: str, saved: Path) -> None:
    edit_json(saved / "network.json", **values)
    refused(lambda: dubito.load(saved), words)


@pytest.mark.parametrize("text", ["", "[" * 10_000, "[]", "\x00", "3"])
def test_a_description_of_a_saved_network_that_is_none_is_refused(text: str, saved: Path) -> None:
    (saved / "network.json").write_text(text)
    refused(lambda: dubito.load(saved), "network.json")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_a_saved_network_has_floating_point_weights(dtype: torch.dtype, saved: Path) -> None:
    file = saved / "network.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(".mean"))
    save_file({**tensors, name: torch.zeros(tensors[name].shape).to(dtype)}, file)
    refused(lambda: dubito.load(saved), name, str(dtype))
    save_file({**tensors, name: tensors[name] * float("nan")}, file)
    refused(lambda: dubito.load(saved), name, "not finite")


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        ({"held_out": torch.zeros(0)}, {}),
        ({"held_out": torch.full((5,), float("nan"))}, {}),
        ({"held_out": torch.zeros(5, dtype=torch.int64)}, {}),
        ({"held_out": torch.zeros(5, 5)}, {}),
        ({}, {"score": "magic"}),
        ({}, {"score": []}),
        ({}, {"layers": [{"module": "", "side": "output", "cells": -1}]}),
        ({}, {"layers": [{"module": "", "side": ["output"]}]}),
        ({}, {"layers": [{"module": "nowhere", "side": "output"}]}),
        ({}, {"layers": 3}),
        ({}, {"layers": []}),
        ({}, {"trial": [{"score": "neighbours"}]}),
        ({}, {"trial": 3}),
        ({}, {"notes": 3}),
        ({"score.reference0": torch.zeros(3, 3)}, {}),
        ({"score.reference0": torch.zeros(0, 84)}, {}),
        ({"score.reference0": torch.zeros(9)}, {}),
    ],
)
def test_a_novelty_that_does_not_fit_is_refused(change: dict[str, Any], notes: dict[str, Any], own_run: Path) -> None:
    file = own_run / "novelty.safetensors"
    kept = json.loads(read_tensors(file)[1])
    tensors = {**load_file(file), **change}
    if any(name.startswith("score.") for name in change):
        kept["score"] = "neighbours"
        tensors |= {"score.centre": torch.zeros(1), "score.spread": torch.ones(1)}
    kept["notes"]["weights"] = Run.open(own_run).fingerprint()
    save_file(tensors, file, {"notes": json.dumps({**kept, **notes})})
    if notes.get("layers") == [] and kept["score"] == "entropy":
        pytest.skip("entropy needs no layers")
    refused(lambda: dubito.Predictor(own_run, samples=2)(torch.zeros(1, 1, 32, 32)), "ovelty")


@pytest.mark.parametrize("text", ["", "[" * 10_000, "[]", '{"format": 1}', "\x00", '{"format": 1, "measured": 3}'])
def test_a_rule_that_is_none_is_refused(text: str, own_run: Path) -> None:
    (own_run / "decision.json").write_text(text)
    refused(lambda: dubito.Predictor(own_run, samples=2), "decision.json")


def test_weights_to_start_from_are_bounded_too(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    for notes in ("[]", "[" * 10_000, '{"pruned": 3}', '{"pruned": {"a": [1]}}'):
        save_file({"network.a": torch.zeros(1)}, file, {"notes": notes})
        refused(lambda: dubito.models.build("lenet5", init=file), "init is", "cannot be read")
