"""The random state of torch, NumPy and Python, remembered and put back."""

import random

import numpy as np
import torch

from amp_course.kit.random_state import random_state, same_random_state, set_random_state


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


def test_draws_repeat():
    state = random_state()
    first = draws()
    assert draws() != first
    set_random_state(state)
    assert draws() == first


def test_a_block_leaves_no_trace():
    state = random_state()
    first = draws()
    set_random_state(state)
    with same_random_state():
        assert draws() == first
        torch.manual_seed(1)
    assert draws() == first


def test_it_survives_a_checkpoint_of_plain_values(tmp_path):
    state = random_state()
    first = draws()
    torch.save(state, tmp_path / "random.pt")
    set_random_state(torch.load(tmp_path / "random.pt", weights_only=True))
    assert draws() == first
