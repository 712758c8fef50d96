"""Follow gradients from the backward passes that made them to the step that used them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amp_course.watching.records import Backward, Event, Step


@dataclass(eq=False)
class StepUse:
    """A step and the backward passes, `parts`, whose gradients it used.

    stale:   those of them that an earlier step had already used
    cleared: passes since the previous step whose gradients were cleared before this one
    """

    step: Step
    parts: list[Backward]
    stale: list[Backward]
    cleared: list[Backward]


def steps_of(events: Sequence[Event], number: int) -> list[StepUse]:
    """Follow the gradients of one optimizer from backward pass to step."""
    steps: list[StepUse] = []
    parts: list[Backward] = []
    cleared: list[Backward] = []
    taken: set[int] = set()
    for event in events:
        if isinstance(event, Backward):
            if event.before[number].empty:
                cleared += [one for one in parts if id(one) not in taken]
                parts = []
            if number in event.arrived or not event.complete:
                parts = [*parts, event]
        elif isinstance(event, Step) and event.number == number:
            stale = [one for one in parts if id(one) in taken]
            steps.append(StepUse(event, parts, stale, cleared))
            taken |= {id(one) for one in parts}
            cleared = []
    return steps
