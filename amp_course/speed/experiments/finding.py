"""What an experiment returns: its measurements, what they show, and what others have published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_course.kit.report import Block, Page
from amp_course.kit.toml_data import read_toml
from amp_course.speed.experiments.interleaved import Comparison

# what somebody measured elsewhere: name → a sentence with its source
PUBLISHED = {
    name: f"{row['what']} ({row['source']})."
    for name, row in read_toml(__file__, "published.toml").items()
}


@dataclass(frozen=True, repr=False)
class Finding(Page):
    """One experiment's outcome.

    title:      what was tried, in a few words
    comparison: the sides, timed in turn; None where this machine cannot run the experiment
    claim:      what the numbers show
    published:  names in PUBLISHED of measurements of the same thing
    """

    title: str
    comparison: Comparison | None
    claim: str
    published: tuple[str, ...] = ()

    @property
    def busy(self) -> str:
        """Why the times show nothing; "" on a quiet machine."""
        return self.comparison.busy if self.comparison else ""

    @property
    def sentence(self) -> str:
        """What the numbers show; on a busy machine, that they show nothing."""
        return self.busy or self.claim

    def blocks(self) -> Iterator[Block]:
        yield f"**{self.title}**"
        if self.comparison:
            yield from self.comparison.blocks()
        yield self.sentence
        for name in self.published:
            yield f"Elsewhere: {PUBLISHED[name]}"
