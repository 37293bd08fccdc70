import pytest
from distributed.test_lost_ranks import LOST
from distributed.workers import Worlds


@pytest.fixture(scope="session")
def worlds():
    """All processes: four for most tests, and by name groups of which one rank is lost."""
    found = Worlds(4, *LOST.values(), module="distributed.losing")
    yield dict(zip(("workers", *LOST), found.worlds, strict=True))
    found.stop()


@pytest.fixture(scope="session")
def workers(worlds):
    """Four processes; groups of two are halves of them."""
    return worlds["workers"]
