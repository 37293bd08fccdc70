"""Runs of one test leave nothing for the next."""

import pytest
from caches import new_cache
from distributed.workers import Worlds


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def mesh_worlds():
    """Groups of processes that can train, by their number."""
    sizes = (8, 4, 2)
    found = Worlds(*sizes, module="lab.training.mesh_runs")
    yield dict(zip(sizes, found.worlds, strict=True))
    found.stop()
