"""One cluster for all tests; what runs on it starts and stops with its module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes."""
    with running_cluster() as running:
        yield running
