"""Stratified splits, and the table of data sets."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dubito.data import DATASETS, load, open_dataset, split_validation, statistics
from dubito.errors import DataError, OptionError


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**31),
)
def test_splits_are_complete_disjoint_and_stratified(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    train, validation = split_validation(labels, fraction, seed)
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(len(labels)))
    taken = torch.bincount(labels[validation], minlength=len(counts))
    for count, own in zip(counts, taken.tolist(), strict=True):
        assert abs(own - count * fraction) <= 1
        assert own < count or count == 0


def test_a_balanced_split_has_exactly_its_share() -> None:
    labels = torch.arange(60_000) % 10
    train, validation = split_validation(labels, 0.1, seed=3)
    assert torch.bincount(labels[validation]).tolist() == [600] * 10
    assert len(train) == 54_000


def test_splits_depend_on_the_seed_and_leave_the_global_random_state_alone() -> None:
    labels = torch.arange(1000) % 7
    state = torch.get_rng_state()
    first = split_validation(labels, 0.1, seed=5)
    torch.manual_seed(99)
    second = split_validation(labels, 0.1, seed=5)
    torch.set_rng_state(state)
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], split_validation(labels, 0.1, seed=6)[1])
    assert torch.equal(torch.get_rng_state(), state)
    # images of a class have equal chances: neither the first nor the last ones are always taken
    taken = torch.zeros(1000)
    for seed in range(200):
        taken[split_validation(labels, 0.1, seed)[1]] += 1
    assert int(taken.min()) > 0  # each has (0.9)^200 < 1e-9 to be left out


def test_wrong_fractions_and_labels_are_refused() -> None:
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(OptionError, match="fraction is"):
            split_validation(torch.zeros(3, dtype=torch.long), fraction)
    with pytest.raises(DataError):
        split_validation(torch.tensor([-1, 0]), 0.1)
    with pytest.raises(DataError):
        split_validation(torch.zeros(3), 0.1)


def test_digits_are_stratified_seeded_and_as_the_table_says() -> None:
    source = open_dataset("digits")
    train, test = source.train(), source.test()
    info = DATASETS["digits"]
    assert (len(train), len(test)) == (info.train_count, info.test_count)
    assert train.images.shape[1:] == (1, info.size, info.size)
    assert int(train.images.max()) == 255
    assert (train.mean, train.std) == statistics(train.images)
    share = torch.bincount(test.labels).double() / torch.bincount(torch.cat([train.labels, test.labels]))
    assert torch.all((share - 0.2).abs() < 1 / 150)
    assert torch.equal(load("digits", "test").images, test.images)


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_of_the_table_is_consistent(name: str) -> None:
    info = DATASETS[name]
    assert info.name == name
    assert len(info.mean) == len(info.std) == info.channels
    assert len(set(info.class_names)) == info.num_classes == (100 if name == "cifar100" else 10)
    assert all(0 < mean < 1 for mean in info.mean)
    assert all(source.startswith("http") and source.endswith("/") for source in info.sources)
    assert bool(info.sources) == bool(info.files) == (info.format != "embedded")
    for file in info.files:
        assert file.hash or info.archive
        assert file.hash is None or len(file.hash) in (len("sha256:") + 64, len("md5:") + 32)
        if file.name.endswith(".bin"):
            assert file.size % (3073 if name == "cifar10" else 3074) == 0
    assert {split for file in info.files for split in file.splits} in (set(), {"train", "test"})
    assert info.download_size > 0 or not info.files


def test_importing_the_data_layer_imports_torch_and_numpy_alone() -> None:
    code = "import sys, dubito.data; print(sorted({'pooch', 'PIL', 'sklearn', 'requests', 'scipy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
