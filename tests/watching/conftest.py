"""What the tests of the watchers share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def tiny_nets(one_thread):
    """Networks this small are slower with a second thread, most of all on a busy machine."""
