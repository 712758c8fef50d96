"""What an answer returned is read as what it means, or refused in words."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from amp_course.checking import Wrong
from amp_course.checking.reading import (
    read_bool,
    read_dict,
    read_integer,
    read_number,
    read_pair,
    read_tensor,
)


def test_numbers_are_read_from_whatever_means_one() -> None:
    tensors = torch.tensor(2.0), torch.tensor([[2]]), np.array([2.0])
    for one in (2, 2.0, Fraction(2), np.float16(2), np.int64(2), *tensors):
        assert read_number(one) == 2.0
    for one in (2, np.uint16(2), torch.tensor(2), np.array(2)):
        assert read_integer(one) == 2
    assert read_bool(np.True_) is read_bool(1) is True
    assert read_bool(torch.tensor(False)) is read_bool(0) is False
    assert read_pair([1, 2]) == (1, 2)
    assert read_tensor(torch.ones(2, requires_grad=True), shape=(2,)).requires_grad is False


@pytest.mark.parametrize(
    ("read", "got", "words"),
    [
        (read_number, True, "returned True for 1, which is not a number"),
        (read_number, "2", "'2' for 1, which is not a number"),
        (read_number, [1], "returned a list"),
        (read_number, None, "returned None"),
        (read_number, torch.ones(2), "a tensor of shape (2,)"),
        (read_integer, 2.0, "a float"),
        (read_integer, "101", "the text '101'"),
        (read_integer, True, "a bool"),
        (read_bool, 2, "returned 2"),
        (read_bool, 1.0, "returned 1.0"),
        (read_pair, (1, 2, 3), "a tuple of length 3"),
        (read_tensor, [1.0], "a list"),
    ],
)
def test_what_is_something_else_is_refused(read: Any, got: Any, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        read(got, "for 1")
    assert words in str(caught.value) and "for 1" in str(caught.value)


def test_who_returned_it_and_when_is_said() -> None:
    with pytest.raises(Wrong, match=r"^at step 2, `get_scale\(\)` returned a dict, not a number$"):
        read_number({}, "at step 2", subject="`get_scale()` returned")


def test_a_dict_is_read_by_its_keys() -> None:
    assert read_dict({"a": 1, "more": 2, "b": 3}, ("a", "b")) == {"a": 1, "b": 3}
    with pytest.raises(
        Wrong, match=r"^your function returned a list for 1, not a dict with the keys a, b$"
    ):
        read_dict([1], ("a", "b"), "for 1")
    with pytest.raises(Wrong, match=r"^it is a dict without the key 'b': it needs a, b$"):
        read_dict({"a": 1}, ("a", "b"), subject="it is")
    with pytest.raises(Wrong, match=r"^it is None, not a dict with the keys a, b$"):
        read_dict(None, ("a", "b"), subject="it is")
