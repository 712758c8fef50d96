"""Hold a phrase of the phrasebook below 16 bits: what each library calls a thing, and the file where that was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amp_course.frontiers.phrasebook.libraries import LIBRARIES
from amp_course.recipes.phrasebook import Phrase

Topic = Literal["layer", "scaling", "formats", "rounding", "memory"]
Cell = tuple[str, str]  # the words, their source

FOLDERS = {
    "transformer_engine": "transformer_engine/",
    "torchao": "torchao/",
    "deepseek_v3": "section ",
    "microxcaling": "mx/",
}


@dataclass(frozen=True)
class LowBitPhrase(Phrase):
    """A thing, what each library calls it, and where that was read; by the library's slug.

    words:   `code` is in backquotes; "none" where a library has no such thing
    sources: a file in the library's repository, in the version of `LIBRARIES`, or a section of the report; for "none" the place
             where it would be
    """

    topic: Topic
    sources: dict[str, str]


def phrase(
    topic: Topic, thing: str, transformer_engine: Cell, torchao: Cell, deepseek_v3: Cell, microxcaling: Cell
) -> LowBitPhrase:
    """Return a row from its cells; a source leaves out the folder that a repository's package is in."""
    slugs = [library.slug for library in LIBRARIES]
    cells = dict(zip(slugs, (transformer_engine, torchao, deepseek_v3, microxcaling), strict=True))
    words = {slug: words for slug, (words, _) in cells.items()}
    sources = {slug: FOLDERS[slug] + source for slug, (_, source) in cells.items()}
    return LowBitPhrase(thing, words, topic, sources)
