"""The exercise object: a card to read, and three verbs: `check(answer)`, `hint()`, `solution()`.

The right answer is defined by the exercise's `judge`, in its chapter. What all exercises share is
here: the time limit, the isolation, the words for what went wrong, the progress.
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

_AFTERWARDS = 30.0  # seconds for comparing an answer that has ended
_LONG = 2000  # characters of a diagnosis


@dataclass(eq=False, repr=False, kw_only=True)
class Card:
    """What a learner reads of an exercise before the first check.

    name:       "add_autocast"; with the chapter it makes the id "loop.add_autocast" and tags its
                solution cell
    task:       what to do, in one or two sentences
    difficulty, importance: 1 to 5
    minutes:    how long it takes a reader who has read the chapter
    lines:      how many lines the answer has, about
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
        """Judge an answer, show the outcome and return it; note it in the reader's progress.

        The answer runs with a time limit, and what all cells share (random states, autocast,
        default dtype, grad mode and more) is put back after it. Whatever it raises comes back as an
        outcome. Ctrl-C raises `Interrupted`, and then nothing is noted. Nothing stops a single call
        into C that does not return: then restart the kernel.
        """
        try:
            with interrupts.noted():
                return self._check(answer)
        except KeyboardInterrupt:
            raise Interrupted from None

    def _check(self, answer: Any) -> Outcome:
        outcome = self._judge_safely(answer)
        interrupts.hold_from_now_on()
        problem = progress.record(self.id, outcome.state, outcome.mistake)
        if problem:
            outcome = replace(outcome, notes=(*outcome.notes, problem))
        history = progress.load().history(self.id)
        outcome.show(
            {"exercise": self.id, "state": outcome.state, **history}
            if history["attempts"]
            else None
        )
        return outcome

    def hint(self) -> Note:
        """Show the next hint below those already shown; each says more than the one before."""
        self._hints_shown = min(self._hints_shown + 1, len(self.hints))
        shown = self.hints[: self._hints_shown]
        left = len(self.hints) - len(shown)
        after = (
            f"({left} more)"
            if left
            else f"(that was the last; `exercises.{self.name}.solution()` shows an answer)"
        )
        lines = tuple(f"{number}. {text}" for number, text in enumerate(shown, 1))
        note = Note("hint", f"Hint {len(shown)} of {len(self.hints)} {after}", lines)
        note.show()
        progress.record_help(self.id, hints=len(shown))
        return note

    def solution(self) -> Note:
        """Show the course's answer, with another one worth knowing in words."""
        note = Note(
            "solution",
            f"One answer to “{self.title}”",
            (f"Also right: {self.alternative}",),
            solution_code(self.chapter, self.name),
        )
        note.show()
        progress.record_help(self.id, solution=True)
        return note

    def _judge_safely(self, answer: Any) -> Outcome:
        unfinished = self._unfinished(answer)
        if unfinished is not None:
            return unfinished
        load_lazy_modules()  # before the clock starts
        with sandbox() as left:
            problem = self._problem(answer, left)
        if problem is None and left.leaks:
            return Outcome("not yet", "; ".join(left.leaks), tuple(left.remarks))
        if problem is not None:
            notes = (*(f"{leak[0].upper()}{leak[1:]}." for leak in left.leaks), *left.remarks)
            if empty := empty_methods(answer):
                notes = (*notes, f"Still empty: {', '.join(empty)}.")
            mistake = problem.mistake if isinstance(problem, Wrong) else None
            # it may quote a long answer
            message = short(str(problem), _LONG)
            return Outcome("not yet", message, notes + _runs_later(answer), mistake)
        return Outcome(
            "correct", f"{self.why}\nAlso right: {self.alternative}", tuple(left.remarks)
        )

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
            a_class = isinstance(self.judge.right, type)
            what, name = ("class", type(answer).__name__) if a_class else ("function", self.name)
            return Outcome(
                "not yet",
                f"the check needs the {what} itself and got {_named(answer)}: write its name "
                f"without parentheses, `exercises.{self.name}.check({name})`",
            )
        return None

    def _problem(self, answer: Any, left: Sandbox) -> str | Wrong | None:
        """Judge an answer within the limits of time; return what is wrong with it."""

        def judged() -> str | Wrong | None:
            try:
                self.judge(answer, left, self.seconds)
            except Wrong as wrong:
                return wrong
            except (TimeUp, KeyboardInterrupt):
                raise
            except BaseException as error:
                # SystemExit too: an answer that calls exit() must not end the notebook
                return explain(error)
            return None

        try:
            return within(self.seconds + _AFTERWARDS, judged, PATIENCE)
        except TimeUp as late:
            line = where(late)
        if not line:
            return (
                "the check itself took too long on this machine, and your answer was not "
                "judged: run it again"
            )
        return (
            f"your code had not finished after {self.seconds:g} seconds and was stopped{line}: is "
            "there a loop whose condition never becomes false?"
        )


def _dots(value: int) -> str:
    return "●" * value + "○" * (5 - value)


def _runs_later(answer: Any) -> tuple[str, ...]:
    """Return what to know about a function with `yield` or `async`,
    whose call alone runs nothing of it.
    """
    flags = answer.__code__.co_flags if type(answer) is types.FunctionType else 0
    if flags & inspect.CO_GENERATOR:
        return ("A function with `yield` runs only when somebody loops over what it returns.",)
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return ("An `async def` runs only when somebody awaits it: write a plain `def`.",)
    return ()


def _named(value: Any) -> str:
    # Not its repr: that is the reader's code, and may be long.
    if value is None or type(value) in (bool, int, float, str):
        return f"`{short(repr(value), 60)}`"
    return f"an object of type {type(value).__name__}"
