"""One small Ray of two nodes for all tests of a process, that ends with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dubito.engines.ray import OBJECT_STORE, QUIET

NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}


@dataclass
class TwoNodes:
    """Two Ray nodes on this machine, with a core each; the second can be killed."""

    ray: Any
    cluster: Any
    second: Any

    def kill_second(self) -> None:
        """Kill a node with all that runs on it."""
        self.cluster.remove_node(self.second, allow_graceful=False)

    def replace_second(self) -> None:
        """Start another one in its place."""
        self.second = self.cluster.add_node(**NODE)


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """The nodes; this process is connected to them."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ.update(QUIET)
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    second = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield TwoNodes(ray, cluster, second)
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def ray_of_two(two_nodes: TwoNodes) -> Any:
    """Ray with two workers."""
    return two_nodes.ray
