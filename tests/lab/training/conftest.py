"""Runs of one test leave nothing for the next."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path_factory.mktemp("cache")))
