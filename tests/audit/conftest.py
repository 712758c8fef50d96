"""What the tests of `audit` share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def tiny_nets(one_thread):
    """With nets this small, a second thread only costs time, above all on a busy machine."""
