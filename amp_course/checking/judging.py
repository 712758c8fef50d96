"""Judge an answer by what it does: play it on a scene, the right answer next to it, and if the two differ, every known mistake.

A **play** runs any answer on cases and yields, turn by turn, the facets of what came of it. The first facet that differs from the
right answer's is the one to explain. A cause is named only if a mistake in the table does what the answer did, on every turn;
otherwise the message says what was seen: the case, what is right and what came.

At the end every answer plays the first case once more: what it keeps from call to call then shows
in another result.
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

Play = Callable[[Any, random.Random], Iterator["Turn"]]


@dataclass(frozen=True)
class Turn:
    """What an answer did in one case.

    case:   in words: "at step 2", "with a scale of 512"; "" where the facets tell
    facets: what has to be right → what it is, in the order in which it is explained: {"the norm": 3.5}
    facts:  what messages may quote in braces; {case} is there anyway
    clues:  what need not be right, and tells mistakes apart
    elsewhere: whether the answer ran in another process, which keeps nothing for the next call
    again:  whether this is the first case, played once more at the end
    """

    case: str
    facets: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    clues: dict[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    again: bool = False


class Failed(Exception):
    """An answer raised; the message is the case, `__cause__` is the answer's own exception, `clues` are those of the turn."""

    def __init__(self, case: str) -> None:
        super().__init__(case)
        self.clues: dict[str, Any] = {}


def call_answer(answer: Callable[..., Any], case: str, *arguments: Any, **named: Any) -> Any:
    """Return `answer(*arguments, **named)`. Whatever it raises comes as `Failed`, with the case in words: "for 0x0001"."""
    try:
        return answer(*arguments, **named)
    except Failed:  # of an inner call
        raise
    except Exception as error:
        raise Failed(case) from error


@dataclass(frozen=True)
class Judge:
    """All there is to know to judge one exercise.

    right:     the right answer; the edits of mistakes are edits of its source
    play:      runs an answer
    mistakes:  wrong answers that people write
    tolerance: relative, for numbers and tensors; 0 means to the last bit
    show:      writes a value into a message
    said:      facet → what is said if no mistake explains it, with {got}, {want} and the turn's facts in braces
    """

    right: Any
    play: Play
    mistakes: Sequence[Mistake]
    tolerance: float = 0.0
    show: Show = show_value
    said: dict[str, str] = field(default_factory=dict)

    def __call__(self, answer: Any, left: Sandbox | None = None, seconds: float = 10.0) -> None:
        """Return if the answer is right, else raise `Wrong`, or `TimeUp` if it runs for more than `seconds`.

        What the answer leaves changed is added to `left`.
        """
        seed = secrets.randbits(31)
        right = self.turns(self.right, seed)
        with sandbox(TORCH):
            torch.manual_seed(seed)  # outside the inner sandbox, which would take it for the answer's doing
            with workplace(), sandbox() as found:
                mine = within(seconds, lambda: list(self._turns(answer, seed)), PATIENCE)
        if left is not None:
            left.leaks += found.leaks
            left.remarks += found.remarks
        # A leak is named already, and the next call works in what this one left changed.
        turns: Any = _once if found.leaks else iter
        played = functools.partial(self.turns_of_mistake, seed=seed)
        wrong = self.explain([*turns(mine)], [*turns(right)], lambda one: turns(played(one)))
        if wrong is not None:
            raise wrong

    def explain(
        self, mine: list[Turn], right: list[Turn], played: Callable[[Mistake], Generator[Turn]]
    ) -> Wrong | None:
        """Return the diagnosis for an answer's turns, None for those of a right one; `played` gives a mistake's turns."""
        for turn in right:
            if {_RAISED, _REFUSED} & turn.facets.keys():
                error = turn.facts.get("error")
                raise RuntimeError(f"the course's own answer fails: {turn.facets}") from error
        place, facet = self._first_difference(mine, right)
        if not facet:
            return None
        names = list(dict.fromkeys(name for turn in right for name in turn.facets))
        if facet in names:
            names = names[: names.index(facet) + 1]
        here = mine[place] if place < len(mine) else Turn("", {facet: MISSING})
        wanted = right[place] if place < len(right) else Turn("", {facet: MISSING})
        for mistake in self.mistakes:
            with contextlib.closing(played(mistake)) as turns:
                same = self._does_the_same(turns, mine, names)
            if same:
                told = mistake.told.format(**_facts(wanted, here))
                return Wrong(self._with_evidence(told, facet, wanted, here), mistake.name)
        seen = self._seen(facet, wanted, here)
        if mine[-1].again and (other := self._first_difference(mine[-1:], mine[:1])[1]):
            if place:  # else the first time is wrong, too
                seen = self._seen(other, mine[0], mine[-1])
            return Wrong(_and_then(_REMEMBERS, f"{seen[:1].upper()}{seen[1:]}"), REMEMBERS)
        earlier = self._earlier(facet, mine, right, place)
        if earlier:
            seen = _and_then(
                seen,
                f"You returned the same {earlier}: does your code leave an argument out, "
                "or keep something from an earlier call?",
            )
        return Wrong(seen)

    def turns(self, answer: Any, seed: int) -> list[Turn]:
        """Play an answer on what a seed draws, and return all its turns."""
        return list(self._turns_of_ours(answer, seed))

    def turns_of_mistake(self, mistake: Mistake, seed: int) -> Generator[Turn]:
        """Play a mistake on what a seed draws, turn by turn."""
        return self._turns_of_ours(mistake.made_of(self.right), seed)

    def _turns_of_ours(self, answer: Any, seed: int) -> Generator[Turn]:
        with sandbox(TORCH):
            torch.manual_seed(seed)
            yield from self._turns(answer, seed)

    def _turns(self, answer: Any, seed: int) -> Iterator[Turn]:
        """Play an answer, and then its first turn once more."""
        drawn, first = random_state(), None
        for turn in self._turns_once(answer, seed):
            first = first or turn
            yield turn
        if first is None or first.elsewhere or first.facets.keys() & {_RAISED, _REFUSED}:
            return
        set_random_state(drawn)
        with contextlib.closing(self._turns_once(answer, seed)) as turns:
            with contextlib.redirect_stdout(io.StringIO()):  # what it prints was printed before
                replayed = next(turns, None)
            if replayed is not None:
                yield replace(replayed, again=True)

    def _turns_once(self, answer: Any, seed: int) -> Generator[Turn]:
        try:
            yield from self.play(answer, random.Random(seed))
        except Wrong as refused:  # it gave something that is no answer at all
            yield Turn("", {_REFUSED: str(refused)})
        except Failed as failed:
            error = failed.__cause__
            assert error is not None
            yield Turn(str(failed), {_RAISED: signature(error)}, {"error": error}, failed.clues)
        except Exception as error:
            yield Turn("", {_RAISED: signature(error)}, {"error": error})

    def _first_difference(self, mine: list[Turn], right: list[Turn]) -> tuple[int, str]:
        for place, (one, other) in enumerate(itertools.zip_longest(mine, right, fillvalue=Turn("", {}))):
            for facet in dict.fromkeys(
                [*(f for f in one.facets if f in (_RAISED, _REFUSED)), *other.facets, *one.facets]
            ):
                if not alike(one.facets.get(facet, MISSING), other.facets.get(facet, MISSING), self.tolerance):
                    return place, facet
        return 0, ""

    def _earlier(self, facet: str, mine: list[Turn], right: list[Turn], place: int) -> str:
        """Return an earlier case in which the answer gave the same and another result is right."""
        if not 0 < place < min(len(mine), len(right)):
            return ""
        got, want = (turns[place].facets.get(facet, MISSING) for turns in (mine, right))
        for one, other in zip(mine[:place], right, strict=False):
            same = alike(one.facets.get(facet, MISSING), got, self.tolerance)
            apart = not alike(other.facets.get(facet, MISSING), want, self.tolerance)
            # What a step does ("at step 2") may depend on those before.
            if same and apart and _is_telling(got) and one.case.startswith(("for ", "with ")):
                return one.case
        return ""

    def _does_the_same(self, turns: Iterable[Turn], mine: list[Turn], names: list[str]) -> bool:
        """Tell whether a mistake does what the answer did on every turn, in the facets `names` and in all clues."""
        for one, other in itertools.zip_longest(mine, turns, fillvalue=Turn("", {})):
            for name in (*names, _RAISED, _REFUSED):
                if not alike(one.facets.get(name, MISSING), other.facets.get(name, MISSING), self.tolerance):
                    return False
            if not alike(one.clues, other.clues, self.tolerance):
                return False
        return True

    def _seen(self, facet: str, wanted: Turn, here: Turn) -> str:
        """Say what was seen, with no guess at the cause."""
        if facet == _REFUSED:
            return str(here.facets[_REFUSED])
        if facet == _RAISED:
            return _and_then(explain(here.facts["error"]), f"This happened {here.case}" if here.case else "")
        want, got = wanted.facets.get(facet, MISSING), here.facets.get(facet, MISSING)
        if facet in self.said:
            return self.said[facet].format(**_facts(wanted, here), want=self.show(want), got=self.show(got))
        told = describe(facet, want, got, self.show, self.tolerance)
        return f"{wanted.case}, {told}" if wanted.case else told

    def _with_evidence(self, told: str, facet: str, wanted: Turn, here: Turn) -> str:
        if facet in (_REFUSED, _RAISED) or facet in self.said:
            return told
        seen = self._seen(facet, wanted, here)
        return _and_then(told, f"{seen[0].upper()}{seen[1:]}")


def _is_telling(value: Any) -> bool:
    """Return True for a result that two cases hardly have in common by chance."""
    if isinstance(value, torch.Tensor):
        return value.numel() > 1 and bool(value.isfinite().all()) and len(value.unique()) > 1
    if isinstance(value, (list, tuple)):
        return any(map(_is_telling, value))
    return isinstance(value, float) and math.isfinite(value) and math.frexp(value)[0] not in (0.0, 0.5, -0.5)


def _once(turns: Iterable[Turn]) -> Iterator[Turn]:
    yield from (turn for turn in turns if not turn.again)


def _facts(wanted: Turn, here: Turn) -> dict[str, Any]:
    """Return what a message may quote; what the answer did comes before what is right."""
    return {"case": here.case or wanted.case, **wanted.facts, **here.facts}


def _and_then(told: str, more: str) -> str:
    """Add a sentence to another, whichever way that ends."""
    return f"{told}{'' if told.endswith(('.', '?', '!')) else '.'} {more}" if more else told
