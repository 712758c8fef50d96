"""What `first_nonfinite` found, as objects and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_course.kit.table import text_table
from amp_course.watching.origins import MADE, NonfiniteOrigin, Sink

if TYPE_CHECKING:
    from amp_course.watching.ops import Watch


COMPILED = (
    "Compiled parts ran uncompiled here. A compiled program fuses ops and rounds at other points, "
    "so it may overflow where this run did not."
)


@dataclass(frozen=True)
class Nonfinite:
    """Every op that made inf or NaN from finite numbers, in the order in which they ran.

    arrived: (kind, name) of what was not finite
    preexisting: what held inf or NaN before the step began: a weight, a buffer, the data
    steps:   how many ran
    error:   what the step raised, or None
    not_put_back: (name, what became of it) of what the step changed and could not be restored
    """

    origins: tuple[NonfiniteOrigin, ...]
    arrived: tuple[tuple[Sink, str], ...]
    preexisting: tuple[str, ...]
    steps: int
    error: BaseException | None = None
    compiled: bool = False
    not_put_back: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, watch: Watch, error: BaseException | None) -> Nonfinite:
        """Make one of what a watch has recorded."""
        found = tuple(watch.origins), tuple(watch.arrived), tuple(watch.preexisting)
        return cls(*found, watch.step, error, watch.compiled())

    @property
    def first(self) -> NonfiniteOrigin | None:
        """The op that made the first inf or NaN that did harm; None if none did."""
        return first_root(origin for origin in self.origins if origin.harmful)

    def reached(self, origin: NonfiniteOrigin) -> tuple[tuple[Sink, str], ...]:
        """Return where an origin arrived, or what came of it: (kind, name), in order."""
        places = [place for one in self.origins if origin in one.roots() for place in one.reached]
        return tuple(dict.fromkeys(places))

    @property
    def caught(self) -> tuple[NonfiniteOrigin, ...]:
        """The origins that reached only a GradScaler: normal while it searches for its scale."""
        return tuple(origin for origin in self.origins if origin.reached and not origin.harmful)

    @property
    def vanished(self) -> tuple[NonfiniteOrigin, ...]:
        """The origins that reached nothing: masked, clamped, discarded."""
        causes = {root.number for one in self.origins if one.reached for root in one.roots()}
        gone = (one for one in self.origins if not one.reached and not one.meant)
        return tuple(one for one in gone if one.number not in causes)

    def __bool__(self) -> bool:
        """True if an inf or NaN did harm."""
        return self.first is not None or bool(self.preexisting)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        made = [name for name in self.preexisting if name.startswith(MADE)]
        yield from (f"A{name[1:]}, holds inf or NaN." for name in made)
        if before := [name for name in self.preexisting if name not in made]:
            yield f"There was inf or NaN before the step began, in {', '.join(before)}."
        first = self.first
        if first is not None:
            yield from _describe(first, self.reached(first))
        elif not self.preexisting:
            yield f"No inf or NaN did harm in {self.steps} step{'s' * (self.steps > 1)}."
        if self.caught:
            yield (
                f"{len(self.caught)} overflow{'s' * (len(self.caught) > 1)} went no further than "
                "the GradScaler, which skips such a step and lowers its scale. That is normal "
                "while it looks for its scale."
            )
        if self.vanished:
            yield (
                f"Made, but gone by the end: {'; '.join(map(str, self.vanished[:3]))}. Masked on "
                "purpose, or an overflow that became a wrong finite number, as x · rsqrt(inf) = 0 "
                "does: `compare_precisions` tells."
            )
        yield from (f"Not put back: `{name}` {why}." for name, why in self.not_put_back)
        if self.compiled:
            yield COMPILED


def first_root(origins: Iterable[NonfiniteOrigin]) -> NonfiniteOrigin | None:
    """Return the first of the ops without which these would not have happened."""
    roots = (root for one in origins for root in one.roots())
    return min(roots, key=lambda root: root.number, default=None)


def _describe(origin: NonfiniteOrigin, reached: Sequence[tuple[Sink, str]]) -> Iterator[str]:
    yield f"Step {origin.step}, {origin.phase}: {origin}."
    if origin.line is not None:
        yield f"  It was called in {origin.line}."
    if origin.forward is not None:
        yield f"  Its forward op is in {origin.forward}."
    if origin.tensor:
        yield f"  It wrote to {origin.tensor}."
    if reached:
        kinds = {"gradient": "the gradient of ", "weight": "the weight ", "buffer": "the buffer "}
        where = [kinds.get(kind, "") + name for kind, name in reached]
        yield f"  It reached {', '.join(where[:4])}{' and more' if len(where) > 4 else ''}."
    if origin.before:
        rows = [["op", "in", "phase", "dtype", "largest"]]
        for frame in origin.before:
            place = frame.module or "-", frame.phase
            rows.append([frame.op, *place, frame.dtype, f"{frame.largest:.4g}"])
        yield f"\nWhat ran before:\n{text_table(rows, right=['largest'])}"
