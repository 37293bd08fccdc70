"""Runs of one test leave nothing for the next."""

import pytest
from caches import new_cache


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
