"""The noise of all draws: torch's own, from the generator that is given."""

import pytest
import torch

from dubito.estimators import Local
from dubito.variational.posterior import standard_normal

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_torchs_from_the_given_generator(dtype):
    found = standard_normal(100_000, dtype, CPU, torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.randn(100_000, dtype=dtype, generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(found, standard_normal(100_000, dtype, CPU, torch.Generator().manual_seed(2)))


def test_a_generator_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    standard_normal(100, torch.float32, CPU, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_has_the_dtype_and_device_asked_for():
    noise = standard_normal(5, torch.float64, torch.device("meta"))
    assert (noise.dtype, noise.device.type) == (torch.float64, "meta")


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 9), (3, 4, 5, 6), (2, 3, 4, 5, 6)])
def test_noise_is_filled_in_the_order_of_memory_whatever_the_format(shape):
    last = torch.zeros(shape[0], *shape[2:], shape[1]).movedim(-1, 1)  # channels last, and (5, 7) transposed
    for like in (torch.zeros(shape), last):
        torch.manual_seed(3)
        found = Local().noise(like)
        torch.manual_seed(3)
        expected = torch.randn(like.numel())
        assert found.shape == like.shape
        assert found.stride() == like.stride()
        assert torch.equal(found.as_strided((like.numel(),), (1,)), expected)


def test_noise_of_every_second_pixel_has_its_shape():
    assert Local().noise(torch.zeros(2, 3, 8, 8, dtype=torch.float64)[..., ::2]).shape == (2, 3, 8, 4)
