"""When two results are alike, and a difference in words."""

from typing import Any

import pytest
import torch

from amp_course.checking import Results
from amp_course.checking.differences import alike, describe, show_value


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "same"),
    [
        (1.0, 1.0, 0, True),
        (0.0, -0.0, 0, False),
        (0.0, -0.0, 1e-6, True),
        (float("nan"), float("nan"), 0, True),
        (1.0, 1.0 + 1e-9, 0, False),
        (1.0, 1.0 + 1e-9, 1e-6, True),
        (True, 1, 0, False),
        ("a", "a", 0, True),
        (1.0, "1.0", 0, False),
        (1.0, None, 0, False),
        ([1.0, 2.0], (1.0, 2.0), 0, True),
        ([1.0], [1.0, 2.0], 0, False),
        ({"a": 1.0}, {"b": 1.0}, 0, False),
        (torch.ones(2), torch.ones(2), 0, True),
        (torch.ones(2), torch.ones(2).half(), 0, False),
        (torch.ones(2), torch.ones(1, 2), 0, False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), 0, True),
        (torch.ones(2), torch.ones(2) + 1e-4, 1e-3, True),
        (torch.tensor([1e-9, 1.0]), torch.tensor([0.0, 1.0]), 1e-6, True),
        (torch.tensor([float("inf")]), torch.tensor([1.0]), 1.0, False),
    ],
)
def test_alike(one: Any, other: Any, tolerance: float, same: bool) -> None:
    assert alike(one, other, tolerance) is same and alike(other, one, tolerance) is same


@pytest.mark.parametrize(
    ("want", "got", "words"),
    [
        (512.0, 1024.0, "it is 1024, and 512 is right"),
        (
            torch.tensor([0, 4737.61]),
            torch.tensor([0, 4737.6104]),
            "in it, element [1] is 4737.61035, and 4737.60986 is right",
        ),
        (2.0**-24, 0.0, "it is 0.0, and 2^-24 is right"),
        (torch.float32, torch.float16, "it is float16, and float32 is right"),
        (torch.ones(3), torch.ones(3) * 8, "it is 8 times as large as it should be"),
        (torch.ones(3), torch.ones(3) / 1024, "it is 1/1,024 of what it should be"),
        (torch.ones(3), torch.ones(3) / 6_004_797, "it is 1/6,005,000 of what it should be"),
        (torch.ones(3), torch.ones(3) * 65_536, "it is 65,536 times as large as it should be"),
        (0.0253754, 2.0**-10, "it is 0.000976562, and 0.0253754 is right"),
        (1.0, 2.0**-10, "it is 2^-10, and 1 is right"),
        (torch.ones(3), -torch.ones(3), "it has the wrong sign"),
        (torch.ones(3), torch.tensor([1.0, 1.0, 5.0]), "in it, element [2] is 5, and 1 is right"),
        (torch.ones(3), torch.ones(2), "it has the shape (2,), and (3,) is right"),
        (torch.ones(3), torch.ones(3).half(), "it has the dtype float16, and float32 is right"),
        (
            [torch.ones(1), torch.ones(1)],
            [torch.ones(1), torch.zeros(1)],
            "it (2 of 2) is 0.0, and 1 is right",
        ),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "`b` in it is 3, and 2 is right"),
        (
            Results({"for 1": 1.0, "for 2": 2.0}),
            Results({"for 1": 1.0, "for 2": 3.0}),
            "for 2, you return 3, and 2 is right",
        ),
    ],
)
def test_a_difference_in_words(want: Any, got: Any, words: str) -> None:
    assert describe("it", want, got, show_value) == words


@pytest.mark.parametrize(
    ("output", "verb"),
    [
        ("the weights after the step", "are"),
        ("the loss", "is"),
        ("the list of losses", "is"),
        ("`bias`", "is"),
        ("the norm of all gradients", "is"),
        ("what `step` returns", "is"),
        ("the masters' gradients", "are"),
        ("your answer about activations", "is"),
    ],
)
def test_a_message_agrees_in_number(output: str, verb: str) -> None:
    assert describe(output, 1, 2, show_value) == f"{output} {verb} 2, and 1 is right"
