"""Batches: exact augmentation and normalisation, a pure function of seed, epoch and batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dubito.data import Augmentation, Batches, add_pixel_noise, crop_and_flip, normalize
from dubito.errors import DataError, OptionError, ShapeError

IMAGES = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(50)
FULL = Augmentation(padding=4, flip=True)


def equal(first: list[tuple[Tensor, Tensor]], second: list[tuple[Tensor, Tensor]]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True)
    )


def slow_crop_and_flip(images: Tensor, padding: int, top: Tensor, left: Tensor, flips: Tensor | None) -> Tensor:
    result = []
    for number, image in enumerate(images):
        channels, height, width = image.shape
        padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
        padded[:, padding : padding + height, padding : padding + width] = image
        y, x = int(top[number]), int(left[number])
        window = padded[:, y : y + height, x : x + width]
        result.append(window.flip(-1) if flips is not None and flips[number] else window)
    return torch.stack(result)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 20),
    channels=st.integers(1, 3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    padding=st.integers(0, 5),
    flip=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_crop_and_flip_equal_the_slow_reference_exactly(
    count: int, channels: int, height: int, width: int, padding: int, flip: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=g)
    top, left = torch.randint(0, 2 * padding + 1, (2, count), generator=g)
    flips = torch.rand(count, generator=g) < 0.5 if flip else None
    before = images.clone()
    assert torch.equal(
        crop_and_flip(images, padding, top, left, flips), slow_crop_and_flip(images, padding, top, left, flips)
    )
    assert torch.equal(images, before)


def test_normalisation_is_exact() -> None:
    mean, std = [0.1, 0.5, 0.9], [0.2, 0.3, 0.4]
    expected = (IMAGES.double() / 255 - torch.tensor(mean, dtype=torch.float64).view(3, 1, 1)) / torch.tensor(
        std, dtype=torch.float64
    ).view(3, 1, 1)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.02)):
        images, labels = next(iter(Batches(IMAGES, LABELS, 50, mean=mean, std=std, dtype=dtype)))
        assert images.dtype == dtype
        assert torch.allclose(images.double(), expected, atol=tolerance)
        assert torch.equal(images, normalize(IMAGES, mean, std, dtype))
        assert torch.equal(labels, LABELS)
        pixels = IMAGES.to(torch.float64) / 255
        assert torch.allclose(normalize(pixels, mean, std, dtype).double(), expected, atol=tolerance)
    plain, _ = next(iter(Batches(IMAGES, LABELS, 50)))
    assert torch.equal(plain, IMAGES.float().div(255))


def test_padding_is_a_black_pixel_before_normalisation() -> None:
    white = torch.full((64, 1, 32, 32), 255, dtype=torch.uint8)
    batches = Batches(white, torch.zeros(64), 64, augment=Augmentation(4), mean=[0.5], std=[0.25])
    images, _ = next(iter(batches))
    assert set(images.unique().tolist()) == {-2.0, 2.0}


def test_augmentation_draws_every_offset_and_flips_half() -> None:
    """A single bright pixel tells where its image was cut; 9 x 9 offsets and both directions must appear evenly."""
    count = 20_000
    images = torch.zeros(count, 1, 16, 16, dtype=torch.uint8)
    images[:, :, 7, 5] = 1  # off the centre, so that a mirrored one lies elsewhere
    batches = Batches(images, torch.zeros(count), count, augment=FULL)
    seen, _ = next(iter(batches))
    place = (seen > 0).flatten(1).float().argmax(1)
    rows = torch.bincount(place // 16, minlength=16).double()[3:12]
    assert int(rows.sum()) == count
    # binomial(count, 1/9): five standard errors, nine counts
    assert torch.all((rows - count / 9).abs() < 5 * (count * (1 / 9) * (8 / 9)) ** 0.5)
    columns = place % 16
    mirrored = int((columns >= 10).sum())  # straight ones reach 1 .. 9, mirrored ones 6 .. 14
    expected, deviation = count / 2 * 5 / 9, (count * (5 / 18) * (13 / 18)) ** 0.5
    assert abs(mirrored - expected) < 5 * deviation


def test_an_epoch_gives_every_image_once_with_its_label() -> None:
    batches = Batches(IMAGES, LABELS, 16, shuffle=True)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(labels.sort().values, LABELS)
    assert torch.equal(images, IMAGES[labels].float().div(255))
    assert len(batches) == 4
    assert [len(y) for _, y in Batches(IMAGES, LABELS, 16, shuffle=True, drop_last=True)] == [16, 16, 16]
    assert torch.equal(torch.cat([y for _, y in Batches(IMAGES, LABELS, 16)]), LABELS)


def test_batches_are_a_pure_function_of_seed_epoch_and_batch() -> None:
    def batches(seed: int, epoch: int) -> list[tuple[Tensor, Tensor]]:
        made = Batches(IMAGES, LABELS, 16, shuffle=True, seed=seed, augment=FULL)
        made.set_epoch(epoch)
        return list(made)

    assert equal(batches(1, 2), batches(1, 2))
    assert not equal(batches(1, 2), batches(1, 3))
    assert not equal(batches(1, 2), batches(2, 2))
    # without shuffling only the augmentation is left to differ
    still = Batches(IMAGES, LABELS, 16, augment=FULL)
    first, second = list(still), list(still)
    assert not equal(first, second)
    still.set_epoch(0)
    assert equal(first, list(still))
    assert equal(second, list(still))


def test_a_plain_loop_sees_a_new_order_and_new_crops_in_every_epoch() -> None:
    batches = Batches(IMAGES, LABELS, 16, shuffle=True, seed=1, augment=FULL)
    epochs = [list(batches) for _ in range(3)]
    for epoch, seen in enumerate(epochs):
        batches.set_epoch(epoch)
        assert equal(list(batches.iter_from(0)), seen)
        assert batches.epoch == epoch  # resuming begins no epoch
    orders = [torch.cat([labels for _, labels in epoch]) for epoch in epochs]
    assert not torch.equal(orders[0], orders[1])
    batches.set_epoch(0)
    next(iter(batches))  # a loop that is left early counts too
    assert equal(list(batches), epochs[1])


@pytest.mark.parametrize("start", range(5))
def test_a_resumed_epoch_continues_with_the_same_batches(start: int) -> None:
    batches = Batches(IMAGES, LABELS, 16, shuffle=True, seed=4, augment=FULL)
    batches.set_epoch(7)
    whole = list(batches)
    resumed = Batches(IMAGES, LABELS, 16, shuffle=True, seed=4, augment=FULL)
    resumed.set_epoch(7)
    assert equal(list(resumed.iter_from(start)), whole[start:])


def test_an_iterator_keeps_its_epoch() -> None:
    batches = Batches(IMAGES, LABELS, 16, shuffle=True, augment=FULL)
    whole = list(batches)
    batches.set_epoch(0)
    iterator = iter(batches)
    first = next(iterator)
    batches.set_epoch(5)
    assert equal([first, *iterator], whole)


def test_the_global_random_state_is_neither_used_nor_changed() -> None:
    batches = Batches(IMAGES, LABELS, 16, shuffle=True, augment=FULL)
    state = torch.get_rng_state()
    first = list(batches)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    batches.set_epoch(0)
    assert equal(first, list(batches))
    torch.set_rng_state(state)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_one_permutation_and_have_equally_many(world_size: int, shuffle: bool) -> None:
    ranks = [
        Batches(IMAGES, LABELS, 4, shuffle=shuffle, seed=2, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    own = [torch.cat([labels for _, labels in batches]) for batches in ranks]
    assert {len(labels) for labels in own} == {-(-50 // world_size)}
    assert len({len(batches) for batches in ranks}) == 1
    together = torch.stack(own, 1).flatten()
    alone = Batches(IMAGES, LABELS, 4, shuffle=shuffle, seed=2).order()
    assert torch.equal(together[:50], alone)
    assert torch.equal(together[50:], alone[: len(together) - 50])
    assert torch.equal(together.unique(), LABELS)


def test_batches_of_an_epoch_augment_differently() -> None:
    same = IMAGES[:1].expand(8, -1, -1, -1)
    first, second = (images for images, _ in Batches(same, torch.zeros(8), 4, augment=FULL))
    assert not torch.equal(first, second)


def test_ranks_augment_differently() -> None:
    same = IMAGES[:1].expand(8, -1, -1, -1)
    first, second = (
        next(iter(Batches(same, torch.zeros(8), 4, augment=FULL, rank=rank, world_size=2)))[0] for rank in (0, 1)
    )
    assert not torch.equal(first, second)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"torch\.float32"):
        Batches(IMAGES.float(), LABELS)
    with pytest.raises(ShapeError, match="labels"):
        Batches(IMAGES, LABELS[:9])
    with pytest.raises(DataError, match="no images"):
        Batches(IMAGES[:0], LABELS[:0])
    for wrong in (
        {"batch_size": 0},
        {"rank": 2, "world_size": 2},
        {"seed": -1},
        {"mean": [0.5]},
        {"std": [1.0, 0.0, 1.0]},
    ):
        with pytest.raises(OptionError):
            Batches(IMAGES, LABELS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        Augmentation(padding=-1)
    batches = Batches(IMAGES, LABELS, 25)
    with pytest.raises(OptionError, match="batches 0 to 1"):
        batches.iter_from(3)
    with pytest.raises(OptionError):
        batches.set_epoch(-1)


def test_batches_are_made_on_the_device_that_is_asked_for() -> None:
    batches = Batches(IMAGES, LABELS, 8, shuffle=True, mean=[0.5] * 3, std=[0.5] * 3, device="meta")
    images, labels = next(iter(batches))
    assert images.device.type == labels.device.type == "meta"


def test_pixel_noise_has_its_standard_deviation_and_is_the_same_at_every_level() -> None:
    """The noise is added to pixels in [0, 1], so normalised by the same standard deviation as they are."""
    images = torch.full((16, 3, 32, 32), 51, dtype=torch.uint8)  # 0.2
    noisy = {gamma: add_pixel_noise(images, gamma, torch.Generator().manual_seed(3)) for gamma in (0.0, 0.1, 0.3)}
    assert torch.equal(noisy[0.0], images / 255)
    torch.testing.assert_close(noisy[0.3] - 0.2, 3 * (noisy[0.1] - 0.2), atol=1e-6, rtol=0)
    count = images.numel()
    error = 5 * 0.3 / (2 * count) ** 0.5  # five standard errors of a standard deviation
    assert abs(noisy[0.3].std().item() - 0.3) < error
    assert noisy[0.3].min() < 0  # nothing is clipped
    from_floats = add_pixel_noise(images / 255, 0.3, torch.Generator().manual_seed(3))
    assert torch.equal(noisy[0.3], from_floats)
    prepared = normalize(noisy[0.3], [0.2] * 3, [0.1, 0.2, 0.4])
    spread = prepared.std((0, 2, 3))
    torch.testing.assert_close(spread, torch.tensor([3.0, 1.5, 0.75]), rtol=5 * (2 * count / 3) ** -0.5, atol=0)
