"""Trials of one test leave nothing for the next."""

import pytest
from lab.study.tiny import use_measures


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path_factory, monkeypatch):
    use_measures(monkeypatch)
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path_factory.mktemp("cache")))
