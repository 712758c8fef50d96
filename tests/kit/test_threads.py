"""One thread inside, as many as before outside, whatever happens."""

import pytest
import torch

from amp_course.kit.threads import one_thread


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
