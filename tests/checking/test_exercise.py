"""An exercise's check, met with every kind of answer: each comes back as an outcome, in words."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from amp_course.checking import Exercise, Outcome, Wrong, progress
from amp_course.checking.judging import Case
from amp_course.checking.outcome import Interrupted
from tests.checking.conftest import Make, of_the_course, shared_state

pytestmark = pytest.mark.usefixtures("unchanged")


@of_the_course
def judge_double(answer: Any) -> None:
    """The answer doubles a tensor."""
    given = torch.tensor([1.0, 2.0])
    got = answer(given)
    if got is None:
        raise Wrong("your function returned None: give the result back with `return`")
    if got.dtype != given.dtype:
        raise Wrong(f"the result is {got.dtype}, not {given.dtype}")
    if got.shape != given.shape:
        raise Wrong(f"the result has shape {tuple(got.shape)}, not {tuple(given.shape)}")
    if not torch.equal(got, given * 2):
        raise Wrong("the values are not doubled")


@of_the_course
def judge_sixteen(answer: Any) -> None:
    """The answer is the number 16."""
    if answer == 16:
        return
    raise Wrong(f"`{answer!r}` is not it")


@pytest.fixture
def double(make: Make) -> Exercise:
    return make(name="double", judge=judge_double)


@pytest.fixture
def sixteen(make: Make) -> Exercise:
    return make(name="sixteen", judge=judge_sixteen, takes="value")


# --- answers that come back with something ---
class Doubler:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class DoublingClass(torch.Tensor):
    """Called, this class makes a new object, as any class does."""

    def __new__(cls, x: torch.Tensor) -> Any:
        return x * 2


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.mul(2)


RIGHT: dict[str, Any] = {
    "lambda": lambda x: x * 2,
    "partial": functools.partial(torch.mul, torch.tensor(2.0)),
    "bound method": Doubler().method,
    "callable object": Doubler(),
    "class": DoublingClass,
    "decorated": decorated,
}


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answer_of_any_kind(double: Exercise, kind: str) -> None:
    outcome = double.check(RIGHT[kind])
    assert outcome == Outcome("correct", "because.\nAlso right: something else.")
    assert outcome


def recursive(x: torch.Tensor) -> torch.Tensor:
    return recursive(x)


def exits(x: torch.Tensor) -> None:
    sys.exit(3)


WRONG: dict[str, tuple[Any, str]] = {
    "returns None": (lambda x: print(x), "returned None"),
    "wrong dtype": (lambda x: (x * 2).half(), "the result is torch.float16"),
    "wrong shape": (lambda x: (x * 2)[None], "shape (1, 2)"),
    "wrong values": (lambda x: x, "not doubled"),
    "a number": (
        lambda x: 2.0,
        "could not continue with your answer (AttributeError: 'float' object has no attribute "
        "'dtype')",
    ),
    "too few parameters": (lambda: 1, "compare its signature with the call"),
    "too many parameters": (lambda a, b: 1, "compare its signature with the call"),
    "a class that cannot be called so": (torch.nn.Linear, "compare its signature with the call"),
    "a module": (torch.nn.Linear(3, 3), "mat1 and mat2 shapes cannot be multiplied"),
    "recursion": (recursive, "calls itself endlessly"),
    "sys.exit": (exits, "leave a function with `return`"),
    "the parentheses": (
        torch.ones(2),
        "needs the function itself and got an object of type Tensor",
    ),
    "None": (None, "needs the function itself and got `None`"),
    "a string": ("double" * 100, "got `'doubledouble"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answer_of_any_kind(double: Exercise, kind: str) -> None:
    answer, words = WRONG[kind]
    outcome = double.check(answer)
    assert outcome.state == "not yet"
    assert words in outcome.message
    assert not outcome
    assert len(outcome.message) < 400
    assert progress.load().state(double.id) == "not yet"


class Table:
    """As pandas' tables are: `==` gives no bool, and the repr is huge."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None

    def __bool__(self) -> bool:
        raise ValueError("The truth value of a Table is ambiguous.")

    def __repr__(self) -> str:
        return "row\n" * 10**6


VALUES: dict[str, tuple[Any, str]] = {
    "an array": (
        np.array([16, 16]),
        "truth value of an array with more than one element is ambiguous",
    ),
    "a table": (Table(), "truth value of a Table is ambiguous"),
    "tensors in a dict": ({"a": torch.ones(2)}, "is not it"),
    "a dict half done": ({"a": torch.ones(2), "b": ...}, "there is still `...` for b"),
    "a function": (len, "built-in function len"),
    "None": (None, "`None` is not it"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_any_kind(sixteen: Exercise, kind: str) -> None:
    value, words = VALUES[kind]
    outcome = sixteen.check(value)
    assert outcome.state == "not yet"
    assert words in outcome.message
    assert len(outcome.message) <= 2000


@pytest.mark.parametrize(
    "blank", [..., lambda x: ..., {"a": ...}, functools.partial(lambda x: ..., 1)]
)
def test_a_blank_is_not_attempted(make: Make, blank: Any) -> None:
    outcome = make().check(blank)
    assert outcome == Outcome(
        "not attempted",
        "Write your answer where it says `# your code here`, then run the cell again.",
    )
    assert not progress.progress_file().exists()


# --- answers that do not come back ---
def endless() -> None:
    while True:
        time.sleep(0.01)  # here


def swallowing() -> str:
    try:
        endless()
    except BaseException:
        return "right"
    return ""


@pytest.mark.parametrize("answer", [endless, swallowing])
def test_endless_answer_comes_back_with_its_line(make: Make, answer: Any) -> None:
    began = time.monotonic()
    outcome = make(seconds=0.1).check(answer)
    assert 0.1 <= time.monotonic() - began < 5
    assert outcome.state == "not yet"
    assert outcome.message.startswith(
        "your code had not finished after 0.1 seconds and was stopped in line "
    )
    lines = [endless.__code__.co_firstlineno + n for n in (1, 2)]
    assert any(f"in line {line}, `" in outcome.message for line in lines)
    assert "is there a loop whose condition never becomes false?" in outcome.message


def test_checks_in_another_thread(make: Make) -> None:
    outcomes: list[Outcome] = []

    def checks() -> None:
        outcomes.extend(make(seconds=0.1).check(answer) for answer in (endless, lambda: 1))

    worker = threading.Thread(target=checks)
    worker.start()
    worker.join(10)
    assert [outcome.state for outcome in outcomes] == ["not yet", "correct"]


def test_ctrl_c_interrupts_and_leaves_nothing(make: Make) -> None:
    def changes_all_and_loops() -> None:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(torch.initial_seed() + 1)
        torch.autocast("cpu").__enter__()
        while True:
            pass

    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    before = shared_state()
    with pytest.raises(Interrupted, match=r"^Interrupted; nothing was recorded\.$"):
        make(seconds=30).check(changes_all_and_loops)
    timer.join()
    assert shared_state() == before


def test_an_answer_that_raises_keyboard_interrupt_is_an_interrupt(make: Make) -> None:
    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        make().check(interrupts)


FIRST_CHECK = """
import os, signal, sys, threading, time
from amp_course.checking import Card, Exercise
assert "torch._dynamo" not in sys.modules
def judge(answer):
    times.append(time.monotonic())
    answer()
    times.append(time.monotonic())
def trains():
    import torch
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
times = []
card = Card(
    chapter="loop", name="probe", number=1, title="Probe", task="Write it.",
    difficulty=1, importance=1, minutes=1, lines=1,
    hints=("look", "closer"), why="why", alternative="other", seconds=1.0
)
exercise = Exercise(card, None, None, ())
exercise.judge = lambda answer, left, seconds: judge(answer)
exercise.show = lambda: None
exercise.check(lambda: ...)
print("blank", "torch._dynamo" in sys.modules)
if sys.argv[1] == "interrupted":
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        exercise.check(trains)
    except KeyboardInterrupt:
        print("interrupted")
print(exercise._judge_safely(trains).state, times[-1] - times[0] < 1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["quiet", "interrupted"])
def test_the_first_check_of_a_process(how: str) -> None:
    """PyTorch's lazy imports happen before the clock starts;
    Ctrl-C in their midst ends the check and spoils nothing.
    """
    command = [sys.executable, "-W", "ignore", "-c", FIRST_CHECK, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Not attempted")]
    assert lines == [
        "blank False",
        *(["interrupted"] if how == "interrupted" else []),
        "correct True",
    ], done.stderr


class MyScaler:
    def scale(self, loss: Any) -> Any:
        return loss

    def update(self) -> None: ...


def test_words_for_an_answer_that_is_to_be_a_class(make: Make) -> None:
    judged = make(
        name="double",
        right=torch.nn.Linear,
        cases=lambda answer, draw: iter([Case("", {"it": answer is MyScaler})]),
        mistakes=[],
    )
    assert "needs the class itself" in judged.check(MyScaler()).message
    assert "`exercises.double.check(MyScaler)`" in judged.check(MyScaler()).message
    assert judged.check(MyScaler).notes[-1] == "Still empty: `update()`."


def test_a_function_that_a_call_does_not_run_is_noted_below_what_is_wrong(make: Make) -> None:
    async def later() -> int:
        return 1

    exercise = make(judge=judge_sixteen)
    assert "`yield`" in exercise.check(lambda: (yield 1)).notes[-1]
    assert "`async def`" in exercise.check(later).notes[-1]
    assert exercise.check(lambda: 2).notes == ()
