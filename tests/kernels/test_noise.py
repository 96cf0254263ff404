"""The noise of all layers: its distribution, and the generator against one written with Python's whole numbers."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from dubito import kernels
from dubito.kernels.noise import BLOCK, SMALLEST
from dubito.noise import standard_normal, standard_normal_like

MASK = 2**64 - 1
SIZES = {torch.float32: (32, 24), torch.float64: (64, 53)}
"""Bits of a whole number, and of them those that a number of this type holds."""


def splitmix(counter: int) -> int:
    """SplitMix64 as its authors publish it."""
    z = counter & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def expected(keys: list[int], place: int, dtype: torch.dtype) -> float:
    """The number at a place of the noise."""
    width, bits = SIZES[dtype]
    block, place = divmod(place, BLOCK * 64 // width)
    counter, part = divmod(place, 64 // width)
    word = (splitmix((counter + 1) * 0x9E3779B97F4A7C15) + keys[block]) & MASK
    half = word >> 32
    if half >> 31:  # a negative number, and the shift repeats the sign
        half |= 0xFFFFFFFF00000000
    word = ((word ^ half) * 0xBF58476D1CE4E5B9) & MASK
    number = word >> (width * part) & (2**width - 1)
    signed = number - 2**width if number >> (width - 1) else number
    return math.sqrt(2) * special.erfinv(signed / 2 ** (width - 1) * (1 - 2.0**-bits))


def test_the_reference_has_the_published_first_outputs_of_seed_1234567():
    golden = 0x9E3779B97F4A7C15
    assert [splitmix(1234567 + golden * k) for k in (1, 2)] == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_every_number_is_the_normal_quantile_of_a_keyed_word(dtype, tolerance):
    """At the ends, around the ends of blocks, and of odd lengths."""
    for count in (3 * BLOCK + 5, 2 * BLOCK):
        torch.manual_seed(3)
        noise = standard_normal_like(torch.empty(count, dtype=dtype))
        torch.manual_seed(3)
        blocks = -(-count * SIZES[dtype][0] // (64 * BLOCK))
        keys = torch.randint(-(2**63), 2**63 - 1, (blocks,)).tolist()
        for block in range(-(-count // BLOCK) + 1):
            for place in range(max(0, block * BLOCK - 3), min(count, block * BLOCK + 3)):
                assert noise[place].item() == pytest.approx(expected(keys, place, dtype), rel=tolerance, abs=1e-7)


@pytest.mark.parametrize("count", [SMALLEST - 1, SMALLEST, 20 * SMALLEST + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal_and_independent(count, dtype):
    """A Kolmogorov-Smirnov test, moments, and correlations of neighbours, of blocks and of calls; 4 standard errors."""
    torch.manual_seed(0)
    noise, following = (standard_normal_like(torch.empty(count, dtype=dtype)).double() for _ in range(2))
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.01
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(noise.pow(power).mean().item() - mean) < 4 * math.sqrt(variance / count)
    for lag in (1, 2, 3, 64, BLOCK - 1, BLOCK, 2 * BLOCK, count // 2):
        if lag < count - 1000:
            error = 1 / math.sqrt(count - lag)
            assert abs((noise[:-lag] * noise[lag:]).mean().item()) < 4 * error
            assert abs((noise[:-lag].square() * noise[lag:].square()).mean().item() - 1) < 4 * math.sqrt(8) * error
    assert abs((noise * following).mean().item()) < 4 / math.sqrt(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_share_a_word_or_an_entry_of_the_table_are_independent(dtype):
    """A chi-squared test on 64 x 64 cells of equal probability, for the pairs that have most in common."""
    torch.manual_seed(1)
    block = BLOCK * 64 // SIZES[dtype][0]
    noise = torch.stack([standard_normal_like(torch.empty(8 * block, dtype=dtype)) for _ in range(2)])
    cells = (special.ndtr(noise.double().numpy()) * 64).astype(int)
    calls, places = cells, cells.reshape(2, 8, block)
    pairs = {
        "a word": (cells[:, ::2], cells[:, 1::2]),
        "the table, in one call": (places[:, :-1], places[:, 1:]),
        "the table, in two calls": (calls[0], calls[1]),
        "the other half, in another block": (places[:, :-1, ::2], places[:, 1:, 1::2]),
    }
    for name, (left, right) in pairs.items():
        counts = np.bincount((64 * left + right).ravel(), minlength=64 * 64)
        assert stats.chisquare(counts).pvalue > 1e-3, name


def test_tails_are_as_heavy_as_they_should_be():
    """Of 5 million numbers about 317 lie beyond 4; the tolerance is 4 standard errors."""
    torch.manual_seed(0)
    count = 5_000_000
    expected = 2 * stats.norm.sf(4) * count
    found = int((standard_normal_like(torch.empty(count)).abs() > 4).sum())
    assert abs(found - expected) < 4 * math.sqrt(expected)


def test_noise_is_always_finite():
    """The smallest and the largest number that a word can give are finite quantiles."""
    for dtype, (width, bits) in SIZES.items():
        whole = torch.tensor([2 ** (width - 1) - 1, -(2 ** (width - 1)), 0], dtype=getattr(torch, f"int{width}"))
        ends = whole.to(dtype) * (2.0 ** (1 - width) * (1 - 2.0**-bits))
        assert ends.erfinv().isfinite().all()
        assert ends.abs().max() < 1


def test_small_noise_and_noise_without_the_kernel_is_torchs():
    for size, off in ((15, ()), (2 * SMALLEST, ("noise",))):
        with kernels.without(*off):
            found = standard_normal(size, torch.float32, torch.device("cpu"), torch.Generator().manual_seed(1))
        assert torch.equal(found, torch.randn(size, generator=torch.Generator().manual_seed(1)))


def test_noise_like_a_tensor_has_its_shape_dtype_and_device():
    like = torch.empty(64, 64, 3, 3, dtype=torch.float64)
    noise = standard_normal_like(like, torch.Generator().manual_seed(1))
    assert (noise.shape, noise.dtype, noise.device) == (like.shape, like.dtype, like.device)
    flat = standard_normal(like.numel(), like.dtype, like.device, torch.Generator().manual_seed(1))
    assert torch.equal(noise.view(-1), flat)


def test_noise_depends_on_the_seed_and_not_on_the_threads():
    before = torch.get_num_threads()
    like = torch.empty(3 * SMALLEST)
    drawn = []
    try:
        for threads, seed in ((1, 0), (2, 0), (2, 1)):
            torch.set_num_threads(threads)
            torch.manual_seed(seed)
            drawn.append(standard_normal_like(like))
        following = standard_normal_like(like)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert not torch.equal(drawn[2], following)


def test_half_precision_and_other_devices_get_torch_s_own():
    for like in (torch.empty(SMALLEST, dtype=torch.bfloat16), torch.empty(SMALLEST, device="meta")):
        noise = standard_normal_like(like)
        assert (noise.dtype, noise.device) == (like.dtype, like.device)
