"""Trials of one test leave nothing for the next."""

import pytest
from caches import new_cache
from lab.study.tiny import use_measures


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path_factory, monkeypatch):
    use_measures(monkeypatch)
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
