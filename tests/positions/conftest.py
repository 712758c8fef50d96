"""What several test files of the chapter share."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Run on one thread: for models this small it costs less, and minds no other program."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
