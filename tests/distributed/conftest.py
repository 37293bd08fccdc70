import pytest
from distributed.workers import Workers


@pytest.fixture(scope="session")
def workers():
    """Four processes for all tests; groups of two are halves of them."""
    found = Workers(4)
    yield found
    found.stop()
