"""What `first_nonfinite` found, as objects and in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_course.kit.table import text_table
from amp_course.watching.births import MADE, Birth, Sink

if TYPE_CHECKING:
    from amp_course.watching.ops import Watch


COMPILED = (
    "Compiled parts ran uncompiled here. A compiled program fuses ops and rounds at other points, "
    "so it may overflow where this run did not."
)


@dataclass(frozen=True)
class Nonfinite:
    """Every op that made inf or NaN from finite numbers, in the order in which they ran.

    births:  these ops
    arrived: where something that is not finite was seen: (kind, name)
    given:   what held inf or NaN before the step began: a weight, a buffer, the data
    steps:   how many ran
    error:   what the step raised, if it did
    not_put_back: pairs of a name and what became of it: what the step changed and could not be put
                  back
    """

    births: tuple[Birth, ...]
    arrived: tuple[tuple[Sink, str], ...]
    given: tuple[str, ...]
    steps: int
    error: BaseException | None = None
    compiled: bool = False
    not_put_back: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, watch: Watch, error: BaseException | None) -> Nonfinite:
        """Make one from what a watch has seen."""
        return cls(
            tuple(watch.births),
            tuple(watch.arrived),
            tuple(watch.given),
            watch.step,
            error,
            watch.compiled(),
        )

    @property
    def first(self) -> Birth | None:
        """The op that made the first inf or NaN that did harm; None if none did."""
        return first_root(birth for birth in self.births if birth.harmful)

    def reached(self, birth: Birth) -> tuple[tuple[Sink, str], ...]:
        """Return where a birth arrived, or what came of it: (kind, name), in order."""
        places = [place for one in self.births if birth in one.roots() for place in one.reached]
        return tuple(dict.fromkeys(places))

    @property
    def caught(self) -> tuple[Birth, ...]:
        """Those that got no further than a GradScaler: normal while it looks for its scale."""
        return tuple(birth for birth in self.births if birth.reached and not birth.harmful)

    @property
    def buried(self) -> tuple[Birth, ...]:
        """Those that reached nothing: masked, clamped, discarded."""
        causes = {root.number for birth in self.births if birth.reached for root in birth.roots()}
        return tuple(
            one
            for one in self.births
            if not one.reached and not one.meant and one.number not in causes
        )

    def __bool__(self) -> bool:
        """True if an inf or NaN did harm."""
        return self.first is not None or bool(self.given)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        made = [name for name in self.given if name.startswith(MADE)]
        yield from (f"A{name[1:]}, holds inf or NaN." for name in made)
        if before := [name for name in self.given if name not in made]:
            yield f"There was inf or NaN before the step began, in {', '.join(before)}."
        first = self.first
        if first is not None:
            yield from _told(first, self.reached(first))
        elif not self.given:
            yield f"No inf or NaN did harm in {self.steps} step{'s' * (self.steps > 1)}."
        if self.caught:
            yield (
                f"{len(self.caught)} overflow{'s' * (len(self.caught) > 1)} went no further than "
                f"the GradScaler, which skips "
                "such a step and lowers its scale. That is normal while it looks for its scale."
            )
        if self.buried:
            yield (
                f"Made, but gone by the end: {'; '.join(map(str, self.buried[:3]))}. Masked on "
                f"purpose, or an overflow that "
                "became a wrong finite number, as x · rsqrt(inf) = 0 does: `compare_precisions` "
                "tells."
            )
        yield from (f"Not put back: `{name}` {why}." for name, why in self.not_put_back)
        if self.compiled:
            yield COMPILED


def first_root(births: Iterable[Birth]) -> Birth | None:
    """Return the first of the ops without which these would not have happened."""
    return min(
        (root for one in births for root in one.roots()), key=lambda root: root.number, default=None
    )


def _told(birth: Birth, reached: Sequence[tuple[Sink, str]]) -> Iterator[str]:
    yield f"Step {birth.step}, {birth.phase}: {birth}."
    if birth.line is not None:
        yield f"  It was called in {birth.line}."
    if birth.forward is not None:
        yield f"  Its forward op is in {birth.forward}."
    if birth.tensor:
        yield f"  It wrote to {birth.tensor}."
    if reached:
        where = [
            name
            if kind in ("loss", "output", "scaler")
            else f"the {kind} of {name}"
            if kind == "gradient"
            else f"the {kind} {name}"
            for kind, name in reached
        ]
        yield f"  It reached {', '.join(where[:4])}{' and more' if len(where) > 4 else ''}."
    if birth.before:
        rows = [["op", "in", "phase", "dtype", "largest"]]
        rows += [
            [f.op, f.module or "-", f.phase, f.dtype, f"{f.largest:.4g}"] for f in birth.before
        ]
        yield f"\nWhat ran before:\n{text_table(rows, right=['largest'])}"
