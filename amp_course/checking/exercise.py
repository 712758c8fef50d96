"""The exercise object: a card to read, and three verbs: `check(answer)`, `hint()`, `solution()`.

The `judge` decides what is right. What all exercises share is here: the time limit, the
isolation, the words for what went wrong, the progress.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from amp_course.checking import interrupts, progress
from amp_course.checking.blank import empty_methods, is_blank, open_places
from amp_course.checking.explain import explain, short, where
from amp_course.checking.judging import Cases, Judge
from amp_course.checking.limit import PATIENCE, TimeUp, within
from amp_course.checking.mistakes import Mistake
from amp_course.checking.outcome import Interrupted, Note, Outcome, Wrong, box_html
from amp_course.checking.sandbox import Sandbox, sandbox
from amp_course.checking.solutions import solution_code
from amp_course.checking.warmup import load_lazy_modules
from amp_course.kit.markup import counted

_COMPARING_SECONDS = 30.0  # for comparing an answer that has ended
_LONG = 2000  # characters of a diagnosis, which may quote a long answer


@dataclass(eq=False, repr=False, kw_only=True)
class Card:
    """What a learner reads of an exercise before the first check.

    name:       "add_autocast", also in the id "loop.add_autocast" and the tag of its solution cell
    task:       what to do, in one or two sentences
    difficulty, importance: 1 to 5
    minutes:    how long it takes someone who has read the chapter
    lines:      about how many lines the answer has
    hints:      from a nudge to nearly everything
    why:        one line on why it matters, shown with "correct"
    alternative: another right answer that is worth knowing
    takes:      "function" when the answer is one, else "value"
    seconds:    how long an answer may compute
    """

    chapter: str
    name: str
    number: int
    title: str
    task: str
    difficulty: int
    importance: int
    minutes: int
    lines: int
    hints: tuple[str, ...]
    why: str
    alternative: str
    takes: Literal["function", "value"] = "function"
    seconds: float = 10.0

    @property
    def id(self) -> str:
        """The exercise's name in the progress file: "loop.add_autocast"."""
        return f"{self.chapter}.{self.name}"

    def _facts(self) -> str:
        return (
            f"difficulty {_dots(self.difficulty)} · importance {_dots(self.importance)} · "
            f"{counted(self.minutes, 'minute')} · about {counted(self.lines, 'line')}"
        )

    def __repr__(self) -> str:
        return f"Exercise {self.number}: {self.title}\n{self._facts()}\n{self.task}"

    def _repr_html_(self) -> str:
        return box_html("card", f"Exercise {self.number}: {self.title}", [self._facts(), self.task])


class Exercise(Card):
    """One exercise of a chapter: its card, and how an answer is judged.

    right, cases, mistakes, and by name tolerance, show and messages are those of `Judge`. Example:
    `double = Exercise(card, right, cases, mistakes, tolerance=1e-6)`
    """

    def __init__(
        self, card: Card, right: Any, cases: Cases, mistakes: Sequence[Mistake], **more: Any
    ) -> None:
        super().__init__(**vars(card))
        self.judge = Judge(right, cases, tuple(mistakes), **more)
        self._hints_shown = 0

    @property
    def mistakes(self) -> Sequence[Mistake]:
        """The mistakes that have a diagnosis of their own."""
        return self.judge.mistakes

    def check(self, answer: Any = ...) -> Outcome:
        """Judge an answer, show the outcome, record it in the learner's progress and return it.

        The answer runs with a time limit, and what all cells share (random states, autocast,
        default dtype, grad mode and more) is put back after it. Whatever it raises becomes an
        outcome. Ctrl-C raises `Interrupted`, and then nothing is recorded. Nothing stops a single
        call into C that does not return: then restart the kernel.
        """
        try:
            with interrupts.handled():
                return self._check(answer)
        except KeyboardInterrupt:
            raise Interrupted from None

    def _check(self, answer: Any) -> Outcome:
        outcome = self._judge_safely(answer)
        interrupts.ignore_from_now_on()
        problem = progress.record(self.id, outcome.state, outcome.mistake)
        if problem:
            outcome = replace(outcome, notes=(*outcome.notes, problem))
        history = progress.load().history(self.id)
        known = {"exercise": self.id, "state": outcome.state, **history}
        outcome.show(known if history["attempts"] else None)
        return outcome

    def hint(self) -> Note:
        """Show the next hint below those already shown; each says more than the one before."""
        count = self._hints_shown = min(self._hints_shown + 1, len(self.hints))
        more = f"{len(self.hints) - count} more"
        if count == len(self.hints):
            more = f"that was the last; `exercises.{self.name}.solution()` shows an answer"
        lines = tuple(f"{number}. {text}" for number, text in enumerate(self.hints[:count], 1))
        note = Note("hint", f"Hint {count} of {len(self.hints)} ({more})", lines)
        note.show()
        progress.record_help(self.id, hints=count)
        return note

    def solution(self) -> Note:
        """Show the course's answer, and another one in words."""
        code = solution_code(self.chapter, self.name)
        head, lines = f"One answer to “{self.title}”", (f"Also right: {self.alternative}",)
        note = Note("solution", head, lines, code)
        note.show()
        progress.record_help(self.id, solution=True)
        return note

    def _judge_safely(self, answer: Any) -> Outcome:
        unfinished = self._unfinished(answer)
        if unfinished is not None:
            return unfinished
        load_lazy_modules()  # before the clock starts
        with sandbox() as found:
            problem = self._problem(answer, found)
        remarks = tuple(found.remarks)
        if problem is not None:
            notes = (*(f"{leak[0].upper()}{leak[1:]}." for leak in found.leaks), *remarks)
            if empty := empty_methods(answer):
                notes = (*notes, f"Still empty: {', '.join(empty)}.")
            mistake = problem.mistake if isinstance(problem, Wrong) else None
            message = short(str(problem), _LONG)
            return Outcome("not yet", message, notes + _runs_later(answer), mistake)
        if found.leaks:
            return Outcome("not yet", "; ".join(found.leaks), remarks)
        return Outcome("correct", f"{self.why}\nAlso right: {self.alternative}", remarks)

    def _unfinished(self, answer: Any) -> Outcome | None:
        if is_blank(answer):
            return Outcome(
                "not attempted",
                "Write your answer where it says `# your code here`, then run the cell again.",
            )
        remaining = open_places(answer)
        if remaining:
            return Outcome("not yet", f"there is still `...` for {', '.join(remaining)}")
        if self.takes == "function" and not callable(answer):
            is_class = isinstance(self.judge.right, type)
            what, name = ("class", type(answer).__name__) if is_class else ("function", self.name)
            return Outcome(
                "not yet",
                f"the check needs the {what} itself and got {_named(answer)}: write its name "
                f"without parentheses, `exercises.{self.name}.check({name})`",
            )
        return None

    def _problem(self, answer: Any, found: Sandbox) -> str | Wrong | None:
        """Judge an answer within the time limits; return what is wrong with it."""
        limit = self.seconds + _COMPARING_SECONDS
        try:
            within(limit, lambda: self.judge(answer, found, self.seconds), PATIENCE)
        except Wrong as wrong:
            return wrong
        except TimeUp as late:
            line = where(late)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: exit() must not end the notebook
            return explain(error)
        else:
            return None
        if not line:
            return (
                "the check itself took too long on this machine, and your answer was not "
                "judged: run it again"
            )
        return (
            f"your code had not finished after {self.seconds:g} seconds and was stopped{line}: is "
            "there a loop whose condition never becomes false? If not, the machine may be busy: "
            "run it again"
        )


def _dots(value: int) -> str:
    return "●" * value + "○" * (5 - value)


def _runs_later(answer: Any) -> tuple[str, ...]:
    """Return a note on a function with `yield` or `async`: calling it runs nothing yet."""
    flags = answer.__code__.co_flags if type(answer) is types.FunctionType else 0
    if flags & inspect.CO_GENERATOR:
        return ("A function with `yield` runs only when somebody loops over what it returns.",)
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return ("An `async def` runs only when somebody awaits it: write a plain `def`.",)
    return ()


def _named(value: Any) -> str:
    # No repr of another type: it may be the learner's code, or long.
    if value is None or type(value) in (bool, int, float, str):
        return f"`{short(repr(value), 60)}`"
    return f"an object of type {type(value).__name__}"
