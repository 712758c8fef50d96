"""What an experiment returns: its measurements, a sentence that they bear out,
and what others published about the same thing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from amp_course.kit.report import Block, Page
from amp_course.kit.toml_data import read_toml
from amp_course.speed.experiments.interleaved import Comparison


@dataclass(frozen=True)
class Published:
    """A figure that somebody measured elsewhere: one sentence, and where it is from."""

    what: str
    source: str

    def __str__(self) -> str:
        """Write both. Example: "On a T4 … (pytorch#1)." """
        return f"{self.what} ({self.source})."


PUBLISHED = {name: Published(**row) for name, row in read_toml(__file__, "published.toml").items()}


@dataclass(frozen=True, repr=False)  # a dataclass's own repr would be a page of raw times
class Finding(Page, ABC):
    """One experiment's outcome. Each experiment adds its own numbers and its own `claim`.

    comparison: the sides, timed in turn; None where this machine cannot run the experiment
    published:  the same thing measured elsewhere
    """

    comparison: Comparison | None
    published: tuple[Published, ...]

    title = ""  # what was tried, in a few words

    @property
    @abstractmethod
    def claim(self) -> str:
        """Say what the numbers show, and no more than that."""

    @property
    def busy(self) -> str:
        """Why nothing can be told from the times; "" on a quiet machine."""
        return self.comparison.busy if self.comparison else ""

    @property
    def sentence(self) -> str:
        """Say what the numbers show; on a busy machine, that they show nothing."""
        return self.busy or self.claim

    def blocks(self) -> Iterator[Block]:
        yield f"**{self.title}**"
        if self.comparison:
            yield from self.comparison.blocks()
        yield self.sentence
        for one in self.published:
            yield f"Elsewhere: {one}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        own = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        return {"title": self.title, "sentence": self.sentence, **own}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
