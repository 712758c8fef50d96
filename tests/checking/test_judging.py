"""The engine: the first output that is wrong decides,
and a cause is named only if a mistake does the same on every turn.
"""

import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from amp_course.checking import Case, Exercise, Mistake, Results, Wrong, call_answer
from amp_course.checking.differences import alike, describe, show_value
from amp_course.checking.judging import REMEMBERS, Judge
from amp_course.checking.reading import (
    read_bool,
    read_dict,
    read_integer,
    read_number,
    read_pair,
    read_tensor,
)


def right(x: float, y: float) -> float:
    total = x + y
    total = total * 2
    return total


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    for x, y in ((1.0, 2.0), (draw.uniform(3, 4), 0.0)):
        case = f"for x = {show_value(x)}"
        got = read_number(call_answer(answer, case, x, y), case)
        yield Case(case, {"the sign": got > 0, "the sum": got}, {"x": x})


MISTAKES = [
    Mistake("forgets y", "you left y out", edits={"total = x + y": "total = x"}),
    Mistake(
        "does not double",
        "the sum of {x:g} and y is to be doubled",
        edits={"total = total * 2": "pass"},
    ),
    Mistake("negative", "the sign is wrong {case}", lambda x, y: -1.0),
    Mistake("raises", "there is nothing to raise", lambda x, y: {}[x]),
]
JUDGE = Judge(right, cases, MISTAKES, tolerance=1e-6)


def feedback(answer: Any) -> Wrong | None:
    try:
        JUDGE(answer)
    except Wrong as wrong:
        return wrong
    return None


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_mistake_is_named_whichever_way_it_is_written(mistake: Mistake) -> None:
    wrong = feedback(mistake.made_of(right))
    assert wrong is not None and wrong.mistake == mistake.name


def test_an_answer_that_does_the_same_in_one_case_only_gets_no_cause() -> None:
    wrong = feedback(lambda x, y: x * 2 if x == 1.0 else 7.0)  # as "forgets y" in the first case
    assert wrong is not None and wrong.mistake is None
    assert str(wrong) == "for x = 1, the sum is 2, and 6 is right"


def test_a_named_mistake_comes_with_its_evidence_and_facts() -> None:
    assert (
        str(feedback(lambda x, y: x + y))
        == "the sum of 1 and y is to be doubled. For x = 1, the sum is 3, and 6 is right"
    )


def test_the_first_wrong_output_decides_and_later_ones_may_differ() -> None:
    wrong = feedback(lambda x, y: -5.0)  # the sign is that of "negative", the sum is not
    assert wrong is not None and wrong.mistake == "negative"
    assert str(wrong).startswith("the sign is wrong for x = 1. ")


def test_what_is_raised_is_named_only_with_the_same_exception() -> None:
    def otherwise(x: float, y: float) -> float:
        raise ValueError("no")

    wrong = feedback(otherwise)
    assert wrong is not None and wrong.mistake is None
    assert "ValueError (no)" in str(wrong) and "This happened for x = 1" in str(wrong)


def test_a_wrong_result_before_an_exception_decides() -> None:
    wrong = feedback(lambda x, y: 5.0 if x == 1.0 else {}[x])
    assert wrong is not None and str(wrong) == "for x = 1, the sum is 5, and 6 is right"


def test_what_is_no_number_is_refused_in_words() -> None:
    text = (
        "your function returned None for x = 1, not a number: does every path through it end "
        "with a `return`?"
    )
    assert str(feedback(lambda x, y: None)) == text


def test_right_answers_of_any_kind_pass() -> None:
    class Adder:
        def __call__(self, x: float, y: float) -> Any:
            return torch.tensor([(x + y) * 2], dtype=torch.float64)

        def method(self, x: float, y: float) -> float:
            return 2 * (y + x)

    for answer in (
        right,
        Adder(),
        Adder().method,
        functools.partial(right),
        lambda x, y: (x + y) * 2,
    ):
        assert feedback(answer) is None


def test_evidence_distinguishes_mistakes() -> None:
    def watched(answer: Any, draw: random.Random) -> Iterator[Case]:
        calls: list[int] = []
        got = answer(calls)
        yield Case("", {"the result": got}, evidence={"calls": len(calls)})

    one = Mistake("asks once", "once", lambda calls: calls.append(1) or 0)
    two = Mistake("asks twice", "twice", lambda calls: calls.extend([1, 1]) or 0)
    judge = Judge(lambda calls: 1, watched, [one, two])
    for asked, name in ((1, "asks once"), (2, "asks twice"), (3, None)):
        with pytest.raises(Wrong) as caught:
            judge(lambda calls, n=asked: calls.extend([1] * n) or 0)
        assert caught.value.mistake == name


def test_an_edit_of_a_line_that_is_not_there_fails_loudly() -> None:
    with pytest.raises(ValueError, match=r"0 lines `total = x - y`"):
        Mistake("m", "t", edits={"total = x - y": "pass"}).made_of(right)
    with pytest.raises(ValueError, match=r"2 lines `pass`"):
        Mistake("m", "t", edits={"pass": "return"}).made_of(two_passes)


def two_passes(x: float) -> None:
    if x:
        pass
    else:
        pass


def test_what_an_answer_leaves_behind_reaches_neither_the_right_code_nor_mistakes() -> None:
    def leaves(x: float, y: float) -> float:
        torch.set_default_dtype(torch.float64)
        return x + y

    before = torch.get_default_dtype()
    wrong = feedback(leaves)
    assert wrong is not None and wrong.mistake == "does not double"
    assert torch.get_default_dtype() is before


def counts(x: float, y: float, calls: list[float] = []) -> float:  # noqa: B006  # the fault itself
    calls.append(x)
    return 2 * (x + y) + (len(calls) > 2)


def largest(x: float, y: float, so_far: list[float] = [0.0]) -> float:  # noqa: B006
    so_far[0] = max(so_far[0], 2 * (x + y))
    return so_far[0]


class UsedUp:
    """Holds an iterator that one call uses up; wrong from the second case on."""

    factors = iter([2, 2])

    def __call__(self, x: float, y: float) -> float:
        return (x + y) * sum(self.factors) / 2


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (counts, "For x = 1, the sum is 7, and 6 is right"),
        (largest, ", and 6 is right"),
        (UsedUp(), "For x = 1, the sign is False, and True is right"),
        (
            lambda x, y, calls=[]: calls.append(x) or 100.0 + len(calls),
            "For x = 1, the sum is 101, and 6 is right",
        ),
    ],
)
def test_an_answer_that_remembers_an_earlier_call_is_recognized(answer: Any, end: str) -> None:
    wrong = feedback(answer)
    assert wrong is not None and wrong.mistake == REMEMBERS
    assert str(wrong).startswith(
        "your code gives another result when the check repeats its first case"
    )
    assert str(wrong).endswith(end)


def test_a_result_that_is_kept_from_an_earlier_case_is_recognized() -> None:
    wrong = feedback(lambda x, y, kept={}: kept.setdefault("sum", 2 * (x + y)))
    assert wrong is not None and wrong.mistake is None
    assert str(wrong).endswith(
        "is right. You returned the same for x = 1: does your code leave an argument "
        "out, or keep something from an earlier call?"
    )
    assert "You returned the same" not in str(feedback(lambda x, y: 6.0 if x == 1 else 5.0))


def test_a_known_mistake_keeps_its_name_only_if_the_last_case_is_as_wrong_as_the_first() -> None:
    wrong = feedback(lambda x, y, calls=[]: calls.append(x) or (x if len(calls) < 3 else 0.0) * 2)
    assert wrong is not None and wrong.mistake == REMEMBERS


def test_what_an_answer_prints_in_the_first_case_is_printed_once(capsys: Any) -> None:
    def prints(x: float, y: float) -> float:
        print("x is", x)
        return right(x, y)

    assert feedback(prints) is None
    assert capsys.readouterr().out.count("x is 1.0") == 1


def test_what_another_process_answers_is_not_repeated() -> None:
    def far(answer: Any, draw: random.Random) -> Iterator[Case]:
        yield Case("", {"it": answer()}, elsewhere=True)

    judge = Judge(lambda: 1, far, [])
    assert [turn.again for turn in judge.run(judge.right, 0)] == [False]


def test_a_right_answer_that_raises_is_the_courses_fault() -> None:
    def broken(x: float, y: float) -> float:
        raise KeyError(x)

    with pytest.raises(RuntimeError, match="own answer fails"):
        Judge(broken, cases, [])(broken)


def test_all_that_is_random_is_the_same_for_answer_and_right_code() -> None:
    def by_chance(answer: Any, draw: random.Random) -> Iterator[Case]:
        yield Case("", {"the draw": (draw.random(), torch.rand(()).item(), answer())})

    Judge(lambda: torch.rand(()).item(), by_chance, [])(lambda: torch.rand(()).item())


def test_an_outcome_has_the_name_of_the_mistake(make: Any) -> None:
    exercise: Exercise = make(
        name="sum_doubled", right=right, cases=cases, mistakes=MISTAKES, tolerance=1e-6
    )
    outcome = exercise.check(lambda x, y: x * 2)
    assert (
        outcome.state == "not yet"
        and outcome.mistake == "forgets y"
        and str(outcome).startswith("Not quite: you")
    )
    assert exercise.check(right) and exercise.check(right).mistake is None


# ---- differences ----


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


# ---- reading ----


def test_numbers_are_read_from_whatever_means_one() -> None:
    from fractions import Fraction

    import numpy as np

    for one in (
        2,
        2.0,
        Fraction(2),
        np.float16(2),
        np.int64(2),
        torch.tensor(2.0),
        torch.tensor([[2]]),
        np.array([2.0]),
    ):
        assert read_number(one) == 2.0
    for one in (2, np.uint16(2), torch.tensor(2), np.array(2)):
        assert read_integer(one) == 2
    assert (
        read_bool(np.True_) is read_bool(1) is True
        and read_bool(torch.tensor(False)) is read_bool(0) is False
    )
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
