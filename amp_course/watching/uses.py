"""Follow gradients from the backward passes that made them to the step that used them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from amp_course.watching.records import Backward, Event, Step


@dataclass(eq=False)
class Used:
    """A step with the backward passes whose gradients it used.

    stale:   those among them that an earlier step had used already
    cleared: those since the step before whose gradients were cleared before this one
    """

    step: Step
    parts: list[Backward]
    stale: list[Backward] = field(default_factory=list)
    cleared: list[Backward] = field(default_factory=list)


def steps_of(events: Sequence[Event], number: int) -> list[Used]:
    """Follow the gradients of one optimizer from backward pass to step."""
    used: list[Used] = []
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
            used.append(
                Used(event, list(parts), [one for one in parts if id(one) in taken], cleared)
            )
            taken |= {id(one) for one in parts}
            cleared = []
    return used
