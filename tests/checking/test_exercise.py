"""An exercise and its three verbs, met with every kind of answer:
each comes back as an outcome, in words.
"""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import amp_course
from amp_course.checking import Exercise, Outcome, Wrong, progress
from amp_course.checking.exercise import _named
from amp_course.checking.judging import Case
from amp_course.checking.outcome import Interrupted
from tests.checking.conftest import shared_state

pytestmark = pytest.mark.usefixtures("unchanged")
Make = Callable[..., Exercise]


def of_the_course(judge: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let a judge that is written here pass for one of a chapter's,
    in whose lines no reader looks.
    """
    judge.__code__ = judge.__code__.replace(
        co_filename=str(Path(amp_course.__file__).with_name("judges.py"))
    )
    return judge


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


# --- answers that come back with something
# ----------------------------------------------------------------
class Doubler:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class DoublingModule(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


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
    "module": DoublingModule(),
    "class": DoublingClass,
    "decorated": decorated,
    "scripted by numpy": lambda x: torch.from_numpy(x.numpy() * 2),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answer_of_any_kind(double: Exercise, kind: str) -> None:
    outcome = double.check(RIGHT[kind])
    assert outcome == Outcome("correct", "because.\nAlso right: something else.")
    assert outcome


async def asynchronous(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def recursive(x: torch.Tensor) -> torch.Tensor:
    return recursive(x)


def exits(x: torch.Tensor) -> None:
    sys.exit(3)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises_unprintable(x: torch.Tensor) -> None:
    raise Unprintable


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
    "an array": (lambda x: np.zeros(2), "the result is float64"),
    "too few parameters": (lambda: 1, "compare its signature with the call"),
    "too many parameters": (lambda a, b: 1, "compare its signature with the call"),
    "a builtin": (len, "'int' object has no attribute 'dtype'"),
    "a class that cannot be called so": (torch.nn.Linear, "compare its signature with the call"),
    "a module": (torch.nn.Linear(3, 3), "mat1 and mat2 shapes cannot be multiplied"),
    "async": (asynchronous, "'coroutine' object has no attribute 'dtype'"),
    "recursion": (recursive, "calls itself endlessly"),
    "sys.exit": (exits, "leave a function with `return`"),
    "exit": (lambda x: exit(), "leave a function with `return`"),
    "an unprintable error": (raises_unprintable, "your code raised Unprintable in line"),
    "the parentheses": (
        torch.ones(2),
        "needs the function itself and got an object of type Tensor",
    ),
    "None": (None, "needs the function itself and got `None`"),
    "a string": ("double" * 100, "got `'doubledouble"),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
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

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("The truth value of a Table is ambiguous.")

    def __repr__(self) -> str:
        return "row\n" * 10**6


class BrokenRepr(Table):
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class HugeRepr(BrokenRepr):
    __repr__ = Table.__repr__


class EndlessRepr(BrokenRepr):
    def __repr__(self) -> str:
        while True:
            pass


VALUES: dict[str, tuple[Any, str]] = {
    "an array": (
        np.array([16, 16]),
        "truth value of an array with more than one element is ambiguous",
    ),
    "a tensor": (torch.tensor([16, 16]), "ambiguous"),
    "a table": (Table(), "truth value of a Table is ambiguous"),
    "a repr that fails": (BrokenRepr(), "no repr"),
    "a huge repr": (HugeRepr(), "`row"),
    "tensors in a dict": ({"a": torch.ones(2)}, "is not it"),
    "a dict half done": ({"a": torch.ones(2), "b": ...}, "there is still `...` for b"),
    "a function": (len, "built-in function len"),
    "None": (None, "`None` is not it"),
    "markup": ("<b>16</b>", "<b>16</b>"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_any_kind(sixteen: Exercise, kind: str) -> None:
    value, words = VALUES[kind]
    outcome = sixteen.check(value)
    assert outcome.state == "not yet"
    assert words in outcome.message
    assert len(outcome.message) <= 2000


def test_a_repr_that_does_not_end(make: Make) -> None:
    outcome = make(judge=judge_sixteen, takes="value", seconds=0.1).check(EndlessRepr())
    assert "had not finished after 0.1 seconds" in outcome.message


@pytest.mark.parametrize(
    "value", [BrokenRepr(), EndlessRepr(), HugeRepr()], ids=lambda value: type(value).__name__
)
def test_no_repr_of_the_readers_is_asked_for_outside_of_the_limit(
    double: Exercise, value: Any
) -> None:
    assert f"got an object of type {type(value).__name__}:" in double.check(value).message
    assert _named("a" * 1000).endswith("…`")


@pytest.mark.parametrize(
    "blank", [..., lambda x: ..., {"a": ...}, functools.partial(lambda x: ..., 1)]
)
def test_blank_is_told_where_to_write(make: Make, blank: Any) -> None:
    outcome = make().check(blank)
    assert outcome == Outcome(
        "not attempted",
        "Write your answer where it says `# your code here`, then run the cell again.",
    )
    assert not progress.progress_file().exists()


def test_check_of_nothing(double: Exercise) -> None:
    assert double.check().state == "not attempted"


def test_a_function_that_returns_none_with_reason(make: Make) -> None:
    seen: list[int] = []
    exercise = make(judge=lambda answer: answer())
    assert exercise.check(lambda: seen.append(1)).state == "correct"
    assert seen == [1]


# --- answers that do not come back
# -------------------------------------------------------------------------
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
    outcome = make(seconds=0.2).check(answer)
    assert 0.2 <= time.monotonic() - began < 5
    assert outcome.state == "not yet"
    assert outcome.message.startswith(
        "your code had not finished after 0.2 seconds and was stopped in line "
    )
    lines = [endless.__code__.co_firstlineno + n for n in (1, 2)]
    assert any(f"in line {line}, `" in outcome.message for line in lines)
    assert outcome.message.endswith("is there a loop whose condition never becomes false?")


@pytest.mark.parametrize(("answer", "state"), [(endless, "not yet"), (lambda: 1, "correct")])
def test_check_in_another_thread(make: Make, answer: Any, state: str) -> None:
    outcomes: list[Outcome] = []
    worker = threading.Thread(target=lambda: outcomes.append(make(seconds=0.2).check(answer)))
    worker.start()
    worker.join(10)
    assert [outcome.state for outcome in outcomes] == [state]


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


# --- objects of the answer's that do not come back
# ------------------------------------------------------------
def for_ever(*_: Any, **__: Any) -> Any:
    while True:
        pass


class EndlessMeta(type):
    """A class whose very name is a program that never ends."""

    __name__ = property(for_ever)  # type: ignore[assignment]


def raising(error: type[BaseException], **members: Any) -> Callable[[], None]:
    kind = type("Mine", (error,), members)

    def answer() -> None:
        raise kind("words")

    return answer


def from_endless_cause() -> None:
    raise ValueError("no") from type(
        "Cause", (Exception,), {"__str__": for_ever, "__repr__": for_ever}
    )()


def of_endless_class() -> None:
    raise EndlessMeta("Mine", (Exception,), {})("words")


class NotFreed:
    def __del__(self) -> None:
        for_ever()


def holds_what_is_never_freed() -> None:
    kept = NotFreed()
    raise ValueError(str(type(kept)))


def loops_with_what_is_never_freed() -> None:
    kept = NotFreed()  # noqa: F841
    for_ever()


ENDLESS_OBJECTS: dict[str, tuple[Any, str]] = {
    "str": (raising(Exception, __str__=for_ever), "had not finished"),
    "str, BaseException": (raising(BaseException, __str__=for_ever), "had not finished"),
    "repr": (raising(Exception, __repr__=for_ever), "your code raised Mine (words)"),
    "class": (raising(Exception, __class__=property(for_ever)), "your code raised Mine (words)"),
    "getattribute": (raising(Exception, __getattribute__=for_ever), ""),
    "cause": (from_endless_cause, "your code raised ValueError (no) in line"),
    "name of the class": (of_endless_class, "your code raised Mine (words) in line"),
    "args": (
        lambda: (_ for _ in ()).throw(KeyError(type("Key", (), {"__repr__": for_ever})())),
        "had not finished",
    ),
    "del, in a local": (holds_what_is_never_freed, ""),
    "del, in a loop": (loops_with_what_is_never_freed, "had not finished"),
    "getattr": (
        type("Mine", (), {"__getattr__": for_ever, "__call__": lambda self: 1})(),
        "had not finished",
    ),
    "metaclass": (EndlessMeta("Mine", (), {"__call__": for_ever}), ""),
    "dict of a class": (
        type("M", (type,), {"__dict__": property(for_ever)})("Mine", (), {}),
        "had not finished",
    ),
    "key": ({type("Key", (), {"__str__": for_ever, "__hash__": lambda self: 1})(): ...}, ""),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ENDLESS_OBJECTS)
def test_an_object_that_never_answers(make: Make, kind: str) -> None:
    answer, words = ENDLESS_OBJECTS[kind]
    began = time.monotonic()
    outcome = make(seconds=0.3, takes="value").check(answer)
    assert time.monotonic() - began < 10
    if words:
        assert outcome.state == "not yet" and words in outcome.message
    assert make().check(lambda: 1)  # and nothing is left ringing


@pytest.mark.parametrize(
    "error", [SystemExit, GeneratorExit, RuntimeError, type("Mine", (BaseException,), {})]
)
def test_an_exception_whose_text_raises_another(make: Make, error: type[BaseException]) -> None:
    def fails(self: Any) -> str:
        raise error("from the text")

    outcome = make().check(raising(Exception, __str__=fails))
    assert (
        outcome.state == "not yet"
        and "your code raised" in outcome.message
        and "in line" in outcome.message
    )


@pytest.mark.parametrize("looked_at", ["__getattr__", "__call__"])
def test_an_answer_that_raises_when_it_is_looked_at(make: Make, looked_at: str) -> None:
    def fails(*_: Any) -> Any:
        raise SystemExit

    outcome = make().check(type("Mine", (), {"__call__": lambda self: 1 / 0, looked_at: fails})())
    assert outcome.state == "not yet" and "your code raised" in outcome.message


# --- answers that import
# ---------------------------------------------------------------------------------------
SLOW = """
import time
half = 1
{inner}
whole = 2
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed libraries: `slow_library`, made of parts that import each other,
    and `endless_library`.
    """
    folder = tmp_path / "site-packages"
    package = folder / "slow_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import time\nfrom slow_library import part\ntime.sleep(0.3)\nwhole = part.whole\n"
    )
    (package / "part.py").write_text(
        SLOW.format(
            inner="time.sleep(0.6)\nimport slow_library\nassert not hasattr(slow_library, 'whole')"
        )
    )
    (folder / "endless_library.py").write_text(SLOW.format(inner="while True: time.sleep(0.01)"))
    (tmp_path / "my_module.py").write_text(SLOW.format(inner="while True: time.sleep(0.01)"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] in ("slow_library", "endless_library", "my_module")
    ]:
        del sys.modules[name]


def imports_slow_library() -> None:
    import slow_library

    assert slow_library.whole == 2


def imports_and_loops() -> None:
    imports_slow_library()
    for_ever()


def first_words(exercise: Exercise) -> str:
    return f"{exercise.why}\nAlso right: {exercise.alternative}"


def run_in(thread: bool, work: Callable[[], Any]) -> Any:
    if not thread:
        return work()
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(work()))
    worker.start()
    worker.join(30)
    return found[0]


@pytest.mark.parametrize("thread", [False, True])
def test_a_library_that_the_limit_hits_is_whole_in_the_next_check(
    make: Make, library: Path, thread: bool
) -> None:
    exercise = make(seconds=0.1)
    first = run_in(thread, lambda: exercise.check(imports_and_loops))
    assert "had not finished after 0.1 seconds" in first.message
    assert sys.modules["slow_library"].whole == sys.modules["slow_library.part"].whole == 2
    assert run_in(thread, lambda: exercise.check(imports_slow_library)) == Outcome(
        "correct", first_words(exercise)
    )


@pytest.mark.parametrize("thread", [False, True])
def test_a_library_that_never_ends_is_stopped_later(
    make: Make, library: Path, thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amp_course.checking.limit._IMPORT", 0.5)
    began = time.monotonic()
    outcome = run_in(thread, lambda: make(seconds=0.1).check(lambda: __import__("endless_library")))
    assert 0.6 <= time.monotonic() - began < 10
    assert "had not finished" in outcome.message and "endless_library" not in sys.modules


def test_a_module_of_the_readers_is_no_library(make: Make, library: Path) -> None:
    began = time.monotonic()
    outcome = make(seconds=0.1).check(lambda: __import__("my_module"))
    assert time.monotonic() - began < 10
    assert "was stopped in line 4, `while True: time.sleep(0.01)`" in outcome.message


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
exercise.judge = judge
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


# --- answers that leave things behind
# ----------------------------------------------------------------------
def test_a_leak_makes_a_right_answer_not_yet(make: Make) -> None:
    outcome = make().check(lambda: torch.set_default_dtype(torch.float64))
    assert outcome.state == "not yet"
    assert outcome.message.startswith(
        "your code leaves the default dtype at torch.float64 (it was torch.float32)"
    )
    assert outcome.notes == ()


def test_leaks_beside_an_error_are_notes(make: Make) -> None:
    def fails() -> None:
        torch.set_grad_enabled(False)
        torch.manual_seed(torch.initial_seed() + 1)
        raise ValueError("no")

    outcome = make().check(fails)
    assert outcome.message.startswith("your code raised ValueError (no)")
    assert len(outcome.notes) == 2
    assert outcome.notes[0].startswith("Your code leaves gradients switched off")
    assert outcome.notes[1].startswith("your code seeds the global random generator")


def test_a_remark_leaves_a_right_answer_correct(make: Make) -> None:
    outcome = make().check(lambda: torch.manual_seed(torch.initial_seed() + 1))
    assert outcome.state == "correct"
    assert len(outcome.notes) == 1
    assert outcome.notes[0].startswith("your code seeds")


def test_a_deprecation_in_the_answer_is_shown_as_ever(make: Make) -> None:
    with pytest.warns(UserWarning, match="from the answer"):
        assert (
            make().check(lambda: warnings.warn("from the answer", stacklevel=1)).state == "correct"
        )


def test_an_answer_that_prints_a_lot(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    def prints() -> None:
        for n in range(20_000):
            print(n)

    assert make().check(prints)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:20_000] == [str(n) for n in range(20_000)]
    assert lines[20_000:] == ["Correct. because.", "Also right: something else."]


def test_check_within_a_check(make: Make) -> None:
    inner, outer = make(name="inner"), make(name="outer")
    assert outer.check(lambda: inner.check(lambda: 1))
    assert progress.load().state("loop.inner") == progress.load().state("loop.outer") == "correct"


# --- what a check costs, and what it writes
# ----------------------------------------------------------------
def test_a_check_costs_little(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "record", lambda *_: None)
    exercise = make(takes="value")
    times = []
    for _ in range(20):
        began = time.process_time()  # of this process: other programs may be busy
        exercise._judge_safely(int)
        times.append(time.process_time() - began)
    # A new process takes 5 ms. One that has loaded every chapter, as here, looks four times at
    # 35,000 names.
    assert min(times) < 0.03


def test_progress_is_written_and_a_failure_to_is_a_note(
    make: Make, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = make()
    assert exercise.check(lambda: 1).notes == ()
    assert progress.load().state("loop.probe") == "correct"
    work.rename(work.with_name("elsewhere"))
    work.write_text("a file where the folder should be")
    outcome = exercise.check(lambda: 1)
    assert outcome.state == "correct"
    assert "progress could not be saved" in outcome.notes[0]


# --- the other verbs, and the card
# -------------------------------------------------------------------------
def test_hints_come_one_by_one(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    exercise = make()
    heads, lines = zip(
        *((note.head, note.lines) for note in (exercise.hint() for _ in range(4))), strict=True
    )
    assert heads == (
        "Hint 1 of 3 (2 more)",
        "Hint 2 of 3 (1 more)",
        "Hint 3 of 3 (that was the last; `exercises.probe.solution()` shows an answer)",
        "Hint 3 of 3 (that was the last; `exercises.probe.solution()` shows an answer)",
    )
    assert lines[0] == ("1. look",)
    assert lines[2] == lines[3] == ("1. look", "2. look closer", "3. it is this")
    assert "Hint 1 of 3 (2 more)\n1. look\nHint 2 of 3" in capsys.readouterr().out
    assert make().hint().lines == ("1. look",)


def test_solution_shows_code_and_alternative(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("amp_course.checking.exercise.solution_code", lambda *of: f"# {of}")
    note = make().solution()
    assert note.code == "# ('loop', 'probe')"
    assert (
        capsys.readouterr().out
        == "One answer to “Probe”\nAlso right: something else.\n# ('loop', 'probe')\n"
    )


def test_card(make: Make) -> None:
    exercise = make(task="Keep x < 3 in `f`.")
    facts = "difficulty ●●○○○ · importance ●●●○○ · 5 minutes · about 1 line"
    assert repr(exercise) == f"Exercise 1: Probe\n{facts}\nKeep x < 3 in `f`."
    assert facts in exercise._repr_html_()
    assert "Keep x &lt; 3 in <code>f</code>." in exercise._repr_html_()


def test_an_instance_of_an_answer_that_is_a_class_is_refused_in_its_own_words(make: Make) -> None:
    class MyScaler:
        def scale(self, loss: Any) -> Any:
            return loss

        def update(self) -> None: ...

    judged = make(
        name="double",
        right=MyScaler,
        cases=lambda answer, draw: iter([Case("", {"it": "update" in vars(answer)})]),
        mistakes=[],
    )
    assert "needs the class itself" in judged.check(MyScaler()).message
    assert "`exercises.double.check(MyScaler)`" in judged.check(MyScaler()).message


def test_a_function_that_a_call_does_not_run_is_noted_below_what_is_wrong(make: Make) -> None:
    async def later() -> int:
        return 1

    exercise = make(judge=judge_sixteen)
    assert "`yield`" in exercise.check(lambda: (yield 1)).notes[-1]
    assert "`async def`" in exercise.check(later).notes[-1]
    assert exercise.check(lambda: 2).notes == ()


def test_methods_that_are_still_empty_are_named_below_what_is_wrong(make: Make) -> None:
    class Half:
        def scale(self, loss: Any) -> Any:
            return loss

        def update(self) -> None: ...

    judged = make(
        name="double",
        right=lambda: 1,
        cases=lambda answer, draw: iter([Case("", {"it": answer is Half})]),
        mistakes=[],
    )
    assert judged.check(Half).notes[-1] == "Still empty: `update()`."
