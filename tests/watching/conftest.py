"""What the tests of the watchers share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def tiny_nets(one_thread):
    """Nets this small lose by a second thread, most of all on a machine with other work."""
