"""One Ray for all tests of a process, small, that ends with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from dubito.engines.ray import OBJECT_STORE, QUIET


@pytest.fixture(scope="session")
def ray_of_two() -> Iterator[object]:
    """A Ray with two workers, whose processes find the tests."""
    ray = pytest.importorskip("ray")
    os.environ.update(QUIET)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield ray
    ray.shutdown()
