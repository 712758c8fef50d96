"""Judge an answer by what it does: run it and the right answer on the same cases.

An exercise's `cases` is a generator that runs any answer and yields a `Case` with its outputs. The
first output that differs from the right answer's is the one to explain. A cause is named only if a
known mistake does what the answer did, in every case; otherwise the message says what happened: the
case, what is right and what came.

At the end every answer gets the first case again: what it keeps from call to call then changes an
output.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import random
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from amp_course.checking.differences import MISSING, Show, alike, describe, show_value
from amp_course.checking.explain import explain, signature
from amp_course.checking.limit import PATIENCE, within
from amp_course.checking.mistakes import Mistake
from amp_course.checking.outcome import Wrong
from amp_course.checking.sandbox import Sandbox, sandbox
from amp_course.checking.torch_state import TORCH
from amp_course.checking.workplace import workplace
from amp_course.kit.random_state import random_state, set_random_state

_RAISED, _REFUSED = "raised", "refused"

REMEMBERS = "remembers an earlier call"
_REMEMBERS = (
    "your code gives another result when the check repeats its first case at the end. Something "
    "lasts from one call to the next: look for a default argument such as `seen=[]`, a global "
    "variable, an attribute of the class, a cache, or an iterator that is used up"
)

Cases = Callable[[Any, random.Random], Iterator["Case"]]


@dataclass(frozen=True)
class Case:
    """What an answer did in one case.

    name:      in words: "at step 2", "with a scale of 512"; "" where the outputs say it
    outputs:   what has to be right → its value, in the order in which to explain them
    facts:     what messages may quote in braces, besides {case}
    evidence:  what need not be right, and distinguishes one mistake from another
    elsewhere: the answer ran in another process, which keeps nothing for the next call
    again:     this is the first case, repeated at the end
    Example: Case("at step 2", {"the norm": 3.5})
    """

    name: str
    outputs: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    again: bool = False


class Failed(Exception):
    """An answer raised; the message is the case, `__cause__` is the answer's own exception."""

    def __init__(self, case: str) -> None:
        super().__init__(case)
        self.evidence: dict[str, Any] = {}


def call_answer(answer: Callable[..., Any], case: str, *arguments: Any, **named: Any) -> Any:
    """Return `answer(*arguments, **named)`; raise `Failed` for whatever it raises,
    with the case in words: "for 0x0001".
    """
    try:
        return answer(*arguments, **named)
    except Failed:  # of an inner call
        raise
    except Exception as error:
        raise Failed(case) from error


@dataclass(frozen=True)
class Judge:
    """What it takes to judge one exercise.

    right:     the right answer; the edits of mistakes are edits of its source
    cases:     runs an answer on cases and yields them
    mistakes:  wrong answers that people write
    tolerance: relative, for numbers and tensors; 0 means to the last bit
    show:      writes a value for a message
    messages:  output → what to say if no mistake explains it, with {got}, {want} and the case's
               facts in braces
    """

    right: Any
    cases: Cases
    mistakes: Sequence[Mistake]
    tolerance: float = 0.0
    show: Show = show_value
    messages: dict[str, str] = field(default_factory=dict)

    def __call__(self, answer: Any, report: Sandbox | None = None, seconds: float = 10.0) -> None:
        """Return if the answer is right, else raise `Wrong`, or `TimeUp` if it runs for more than
        `seconds`.

        What the answer leaves changed is added to `report`.
        """
        seed = secrets.randbits(31)
        right = self.run(self.right, seed)
        with sandbox(TORCH):
            # outside the inner sandbox, which would blame the answer for it
            torch.manual_seed(seed)
            with workplace(), sandbox() as found:
                mine = within(seconds, lambda: list(self._run(answer, seed)), PATIENCE)
        if report is not None:
            report.leaks += found.leaks
            report.remarks += found.remarks
        # After a leak, which is named already, the repeated case ran in a changed state.
        counted: Any = _once if found.leaks else iter
        run = functools.partial(self.run_mistake, seed=seed)
        wrong = self.explain([*counted(mine)], [*counted(right)], lambda one: counted(run(one)))
        if wrong is not None:
            raise wrong

    def explain(
        self, mine: list[Case], right: list[Case], run: Callable[[Mistake], Generator[Case]]
    ) -> Wrong | None:
        """Return the diagnosis of an answer by its cases, or None if it is right;
        `run` yields a mistake's cases.
        """
        for case in right:
            if {_RAISED, _REFUSED} & case.outputs.keys():
                error = case.facts.get("error")
                raise RuntimeError(f"the course's own answer fails: {case.outputs}") from error
        place, output = self._first_difference(mine, right)
        if not output:
            return None
        names = list(dict.fromkeys(name for case in right for name in case.outputs))
        if output in names:
            names = names[: names.index(output) + 1]
        wanted, here = (_at(place, cases, output) for cases in (right, mine))
        for mistake in self.mistakes:
            with contextlib.closing(run(mistake)) as cases:
                same = self._does_the_same(cases, mine, names)
            if same:
                feedback = mistake.feedback.format(**_facts(wanted, here))
                return Wrong(self._with_evidence(feedback, output, wanted, here), mistake.name)
        observed = self._observed(output, wanted, here)
        if mine[-1].again and (changed := self._first_difference(mine[-1:], mine[:1])[1]):
            if place:  # else the first time is wrong, too
                observed = self._observed(changed, mine[0], mine[-1])
            return Wrong(_and_then(_REMEMBERS, observed), REMEMBERS)
        if earlier := self._earlier(output, mine, right, place):
            observed = _and_then(
                observed,
                f"You returned the same {earlier}: does your code leave an argument out, "
                "or keep something from an earlier call?",
            )
        return Wrong(observed)

    def feedback(self, mistake: Mistake) -> str:
        """Return what is said of a mistake; the facts that it quotes are those of one draw."""
        with contextlib.suppress(KeyError):
            return mistake.feedback.format()  # it quotes nothing
        right, mine = self.run(self.right, 0), list(self.run_mistake(mistake, 0))
        place, output = self._first_difference(mine, right)
        wanted, here = (_at(place, cases, output) for cases in (right, mine))
        return mistake.feedback.format(**_facts(wanted, here))

    def run(self, answer: Any, seed: int) -> list[Case]:
        """Run an answer on what a seed draws, and return all its cases."""
        return list(self._run_ours(answer, seed))

    def run_mistake(self, mistake: Mistake, seed: int) -> Generator[Case]:
        """Run a mistake on what a seed draws, case by case."""
        return self._run_ours(mistake.made_of(self.right), seed)

    def _run_ours(self, answer: Any, seed: int) -> Generator[Case]:
        with sandbox(TORCH):
            torch.manual_seed(seed)
            yield from self._run(answer, seed)

    def _run(self, answer: Any, seed: int) -> Iterator[Case]:
        """Run an answer, and then its first case again."""
        state, first = random_state(), None
        for case in self._run_once(answer, seed):
            first = first or case
            yield case
        if first is None or first.elsewhere or first.outputs.keys() & {_RAISED, _REFUSED}:
            return
        set_random_state(state)
        with contextlib.closing(self._run_once(answer, seed)) as cases:
            with contextlib.redirect_stdout(io.StringIO()):  # it was printed the first time
                repeated = next(cases, None)
            if repeated is not None:
                yield replace(repeated, again=True)

    def _run_once(self, answer: Any, seed: int) -> Generator[Case]:
        try:
            yield from self.cases(answer, random.Random(seed))
        except Wrong as refused:  # it returned something of the wrong kind
            yield Case("", {_REFUSED: str(refused)})
        except Failed as failed:
            error = failed.__cause__
            assert error is not None
            yield Case(str(failed), {_RAISED: signature(error)}, {"error": error}, failed.evidence)
        except Exception as error:
            yield Case("", {_RAISED: signature(error)}, {"error": error})

    def _first_difference(self, mine: list[Case], right: list[Case]) -> tuple[int, str]:
        pairs = itertools.zip_longest(mine, right, fillvalue=Case("", {}))
        for place, (here, wanted) in enumerate(pairs):
            failed = [output for output in here.outputs if output in (_RAISED, _REFUSED)]
            for output in dict.fromkeys([*failed, *wanted.outputs, *here.outputs]):
                if not self._alike(here, wanted, output):
                    return place, output
        return 0, ""

    def _alike(self, one: Case, other: Case, output: str) -> bool:
        got, want = (case.outputs.get(output, MISSING) for case in (one, other))
        return alike(got, want, self.tolerance)

    def _earlier(self, output: str, mine: list[Case], right: list[Case], place: int) -> str:
        """Return an earlier case in which the answer gave the same and another result is right."""
        if not 0 < place < min(len(mine), len(right)):
            return ""
        if not _is_distinctive(mine[place].outputs.get(output, MISSING)):
            return ""
        for here, wanted in zip(mine[:place], right, strict=False):
            same = self._alike(here, mine[place], output)
            should_differ = not self._alike(wanted, right[place], output)
            # What a step does ("at step 2") may depend on those before.
            if same and should_differ and here.name.startswith(("for ", "with ")):
                return here.name
        return ""

    def _does_the_same(self, cases: Iterable[Case], mine: list[Case], names: list[str]) -> bool:
        """Return True if a mistake does what the answer did on every case,
        in the outputs `names` and in all evidence.
        """
        for here, other in itertools.zip_longest(mine, cases, fillvalue=Case("", {})):
            if not all(self._alike(here, other, name) for name in (*names, _RAISED, _REFUSED)):
                return False
            if not alike(here.evidence, other.evidence, self.tolerance):
                return False
        return True

    def _observed(self, output: str, wanted: Case, here: Case) -> str:
        """Say what happened, without guessing the cause."""
        if output == _REFUSED:
            return str(here.outputs[_REFUSED])
        if output == _RAISED:
            happened = f"This happened {here.name}" if here.name else ""
            return _and_then(explain(here.facts["error"]), happened)
        want, got = wanted.outputs.get(output, MISSING), here.outputs.get(output, MISSING)
        if output in self.messages:
            texts = {"want": self.show(want), "got": self.show(got)}
            return self.messages[output].format(**_facts(wanted, here), **texts)
        difference = describe(output, want, got, self.show, self.tolerance)
        return f"{wanted.name}, {difference}" if wanted.name else difference

    def _with_evidence(self, feedback: str, output: str, wanted: Case, here: Case) -> str:
        if output in (_REFUSED, _RAISED) or output in self.messages:
            return feedback
        return _and_then(feedback, self._observed(output, wanted, here))


def _is_distinctive(value: Any) -> bool:
    """Return True for a result that two cases are unlikely to share by chance."""
    if isinstance(value, torch.Tensor):
        return value.numel() > 1 and bool(value.isfinite().all()) and len(value.unique()) > 1
    if isinstance(value, (list, tuple)):
        return any(map(_is_distinctive, value))
    is_number = isinstance(value, float) and math.isfinite(value)
    return is_number and math.frexp(value)[0] not in (0.0, 0.5, -0.5)


def _once(cases: Iterable[Case]) -> Iterator[Case]:
    yield from (case for case in cases if not case.again)


def _at(place: int, cases: Sequence[Case], output: str) -> Case:
    return cases[place] if place < len(cases) else Case("", {output: MISSING})


def _facts(wanted: Case, here: Case) -> dict[str, Any]:
    """Return what a message may quote; the answer's facts override those of the right answer."""
    return {"case": here.name or wanted.name, **wanted.facts, **here.facts}


def _and_then(feedback: str, more: str) -> str:
    """Add a sentence to another, with a full stop between them if one is missing."""
    stop = "" if feedback.endswith((".", "?", "!")) else "."
    return f"{feedback}{stop} {more[0].upper()}{more[1:]}" if more else feedback
