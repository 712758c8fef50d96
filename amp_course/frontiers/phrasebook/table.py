"""Show phrases and libraries side by side, as HTML in a notebook and as text elsewhere."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from html import escape

from amp_course.frontiers.phrasebook.libraries import LowBitLibrary
from amp_course.frontiers.phrasebook.phrase import LowBitPhrase
from amp_course.kit.markup import inline_html
from amp_course.kit.table import text_table
from amp_course.recipes.phrasebook.table import _CELL, _about, _code_that_wraps


@dataclass(frozen=True, repr=False)
class LowBitPhrasebook:
    """Libraries side by side, a row for each thing; in a notebook, a cell's tooltip says where it was read.

    Example: LOW_BIT.on("scaling").only("torchao", "microxcaling")
    """

    libraries: tuple[LowBitLibrary, ...]
    phrases: tuple[LowBitPhrase, ...]

    def only(self, *slugs: str) -> LowBitPhrasebook:
        """Return the book with these libraries alone. Raises ValueError for one that is not there."""
        known = {library.slug: library for library in self.libraries}
        unknown = [slug for slug in slugs if slug not in known]
        if unknown:
            raise ValueError(f"no library is called {unknown[0]!r}: the phrasebook has {', '.join(known)}.")
        return replace(self, libraries=tuple(known[slug] for slug in slugs))

    def on(self, *topics: str) -> LowBitPhrasebook:
        """Return the book with these topics alone. Raises ValueError for one that is not there."""
        known = dict.fromkeys(phrase.topic for phrase in self.phrases)
        unknown = [topic for topic in topics if topic not in known]
        if unknown:
            raise ValueError(f"no topic is called {unknown[0]!r}: the phrasebook has {', '.join(known)}.")
        return replace(self, phrases=tuple(phrase for phrase in self.phrases if phrase.topic in topics))

    @property
    def sources(self) -> str:
        """Where each cell was read, as a table of text."""
        rows = [["", *(library.name for library in self.libraries)]]
        rows += [[one.thing, *(one.sources[library.slug] for library in self.libraries)] for one in self.phrases]
        return text_table(rows)

    def __repr__(self) -> str:
        width = max((len(library.name) for library in self.libraries), default=0)
        lines = []
        for phrase in self.phrases:
            lines.append(phrase.thing)
            for library in self.libraries:
                head = f"  {library.name:<{width}}  "
                words = phrase.words[library.slug]
                lines += textwrap.wrap(words, 110, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join([*lines, *map(_about, self.libraries)])

    def _repr_html_(self) -> str:
        heads = "".join(
            f'<th style="{_CELL}"><a href="{escape(one.source)}">{escape(one.name)}</a><br>'
            f'<span style="font-weight:normal">{escape(one.version)}</span></th>'
            for one in self.libraries
        )
        rows = "".join(
            f'<tr><th style="{_CELL}">{escape(phrase.thing)}</th>'
            + "".join(
                f'<td style="{_CELL}" title="{escape(phrase.sources[one.slug])}">'
                f"{_code_that_wraps(phrase.words[one.slug])}</td>"
                for one in self.libraries
            )
            + "</tr>"
            for phrase in self.phrases
        )
        notes = "".join(f"<div>{inline_html(_about(one))}</div>" for one in self.libraries if one.not_run)
        return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>{notes}"
