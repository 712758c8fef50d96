"""Judging: a mistake is named only if it does what the answer did, in every case."""

import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from amp_course.checking import Case, Exercise, Mistake, Wrong, call_answer
from amp_course.checking.differences import show_value
from amp_course.checking.judging import REMEMBERS, Judge
from amp_course.checking.reading import (
    read_number,
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
    assert wrong.mistake == mistake.name


def test_an_answer_that_does_the_same_in_one_case_only_gets_no_cause() -> None:
    wrong = feedback(lambda x, y: x * 2 if x == 1.0 else 7.0)  # as "forgets y" in the first case
    assert wrong.mistake is None
    assert str(wrong) == "for x = 1, the sum is 2, and 6 is right"


def test_a_named_mistake_comes_with_its_evidence_and_facts() -> None:
    text = "the sum of 1 and y is to be doubled. For x = 1, the sum is 3, and 6 is right"
    assert str(feedback(lambda x, y: x + y)) == text


def test_the_first_wrong_output_decides_and_later_ones_may_differ() -> None:
    wrong = feedback(lambda x, y: -5.0)  # the sign is that of "negative", the sum is not
    assert wrong.mistake == "negative"
    assert str(wrong).startswith("the sign is wrong for x = 1. ")


def test_what_is_raised_is_named_only_with_the_same_exception() -> None:
    def otherwise(x: float, y: float) -> float:
        raise ValueError("no")

    wrong = feedback(otherwise)
    assert wrong.mistake is None
    assert "ValueError (no)" in str(wrong) and "This happened for x = 1" in str(wrong)


def test_a_wrong_result_before_an_exception_decides() -> None:
    wrong = feedback(lambda x, y: 5.0 if x == 1.0 else {}[x])
    assert str(wrong) == "for x = 1, the sum is 5, and 6 is right"


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
    assert wrong.mistake == "does not double"
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
    assert wrong.mistake == REMEMBERS
    assert str(wrong).startswith(
        "your code gives another result when the check repeats its first case"
    )
    assert str(wrong).endswith(end)


def test_a_result_that_is_kept_from_an_earlier_case_is_recognized() -> None:
    wrong = feedback(lambda x, y, kept={}: kept.setdefault("sum", 2 * (x + y)))
    assert wrong.mistake is None
    assert str(wrong).endswith(
        "is right. You returned the same for x = 1: does your code leave an argument "
        "out, or keep something from an earlier call?"
    )
    assert "You returned the same" not in str(feedback(lambda x, y: 6.0 if x == 1 else 5.0))


def test_a_known_mistake_keeps_its_name_only_if_the_last_case_is_as_wrong_as_the_first() -> None:
    wrong = feedback(lambda x, y, calls=[]: calls.append(x) or (x if len(calls) < 3 else 0.0) * 2)
    assert wrong.mistake == REMEMBERS


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
    assert (outcome.state, outcome.mistake) == ("not yet", "forgets y")
    assert str(outcome).startswith("Not quite: you")
    assert exercise.check(right) and exercise.check(right).mistake is None
