import pytest
from distributed.workers import Worlds


@pytest.fixture(scope="session")
def worlds():
    """All processes: four for most tests, and groups of which one rank is lost."""
    found = Worlds(4, 2, 2, 2, 4, 4)
    yield found.worlds
    found.stop()


@pytest.fixture(scope="session")
def workers(worlds):
    """Four processes; groups of two are halves of them."""
    return worlds[0]
