"""What `explain` found: where a step's time goes, what AMP could buy, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_course.kit.measure import Timing, seconds_text
from amp_course.kit.report import Block, Numbered, Page, Table
from amp_course.speed.explain.findings import Advice


@dataclass(frozen=True, repr=False)
class Explanation(Page):
    """Where the time of one step goes; it prints as a page.

    timing:   of the step without recording
    busy:     why it shows nothing, or "". On a busy machine there is no ceiling and no advice, and
              the page shows no shares
    kinds:    kind → seconds, largest first; they add up to the median step
    recorded: seconds of a step under the profiler
    ceiling:  how many times faster than fp32 the step could be with 16-bit matmuls, by Amdahl's
              law; None without matmuls
    now:      how many times faster than fp32 it is now
    advice:   what to change, the largest gain first
    notes:    what else was noticed, and what could not be measured
    """

    timing: Timing
    kinds: dict[str, float]
    recorded: float
    ceiling: float | None
    now: float | None
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
    busy: str = ""

    @property
    def seconds(self) -> float:
        """The median step."""
        return self.timing.median

    def _table(self) -> Table:
        rows = [["where the time goes", "per step", "share"]]
        for kind, seconds in self.kinds.items():
            if seconds >= 0.0005 * self.seconds:
                rows.append([kind, seconds_text(seconds), f"{seconds / self.seconds:.0%}"])
        return Table(rows, right=rows[0][1:])

    columns = 100

    def blocks(self) -> Iterator[Block]:
        if self.busy:
            yield f"A step took {self.timing}."
            yield self.busy
        else:
            yield f"A step takes {self.timing}."
            if self.ceiling is not None and self.now is not None:
                yield (
                    f"With every matmul in 16 bits it could be {self.ceiling:.2f} times as fast as "
                    f"in fp32 here; now it is {self.now:.2f} times as fast."
                )
            yield self._table()
            if self.advice:
                yield Numbered([self._paragraph(one) for one in self.advice])
            else:
                yield "Nothing stands out: no change that is known here would save 3 % of the step."
        for note in self.notes:
            yield f"Note: {note}"

    def _paragraph(self, one: Advice) -> str:
        return (
            f"**{one.cause}**: up to {seconds_text(one.seconds)} of {seconds_text(self.seconds)}"
            f"{' (tried)' if one.measured else ''}. {one.evidence[0].upper()}{one.evidence[1:]}. "
            f"**Fix:** {one.fix}.{'' if one.chapter == '09' else f' (Chapter {one.chapter})'}"
        )
