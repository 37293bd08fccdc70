import pytest
from distributed.test_lost_ranks import KEPT, LOST
from distributed.workers import Worlds


@pytest.fixture(scope="session")
def worlds():
    """All processes: four for most tests, and by name groups of which one rank is lost."""
    sizes = LOST | KEPT
    found = Worlds(4, *sizes.values(), module="distributed.losing", num_kept=len(KEPT))
    yield dict(zip(("workers", *sizes), found.worlds, strict=True))
    found.stop()


@pytest.fixture(scope="session")
def workers(worlds):
    """Four processes; groups of two are halves of them."""
    return worlds["workers"]
