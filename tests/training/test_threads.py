"""Small work is done by one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import dubito
from dubito.models import ARCHITECTURES
from dubito.threads import multiplications, suitable_threads, suiting_threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("inference", ["vi", "frequentist", "dropout"])
@pytest.mark.parametrize("name", ["lenet5", "alexnet"])
def test_multiplications_are_those_of_the_table(name: str, inference: str) -> None:
    network = dubito.models.build(name, inference=inference)
    modes = [module.training for module in network.modules()]
    expected = sum(shape.multiplications for shape in ARCHITECTURES[name].shapes(3, 10))
    assert multiplications(network, torch.zeros(3, 32, 32)) == expected
    assert [module.training for module in network.modules()] == modes


def test_lenet5_gets_one_thread_and_alexnet_all_of_them() -> None:
    image = torch.zeros(3, 32, 32)
    assert suitable_threads(dubito.models.build("lenet5"), image, batch_size=64) == 1
    assert suitable_threads(dubito.models.build("alexnet"), image, batch_size=64) == 2


def test_the_number_of_threads_comes_back_also_after_an_error() -> None:
    seen = []

    def fail() -> None:
        with suiting_threads(torch.nn.Linear(2, 1), torch.zeros(2), batch_size=1) as threads:
            seen.extend([threads, torch.get_num_threads()])
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2
