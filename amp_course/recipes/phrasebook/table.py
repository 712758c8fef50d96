"""Show some libraries of the phrasebook side by side, as HTML in a notebook and as text elsewhere."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from html import escape

from amp_course.kit.markup import inline_html
from amp_course.recipes.phrasebook.libraries import LIBRARIES, Library
from amp_course.recipes.phrasebook.phrases import PHRASES

_CELL = "text-align:left;padding:3px 8px 3px 0;vertical-align:top;white-space:normal;font-size:88%"


class Phrasebook:
    """Show some libraries side by side: HTML in a notebook, text elsewhere.

    Raises ValueError for a library that is not there.
    Example: Phrasebook("torch_amp", "paddle")
    """

    def __init__(self, *slugs: str) -> None:
        """Take all libraries, or those named."""
        known = {library.slug: library for library in LIBRARIES}
        unknown = [slug for slug in slugs if slug not in known]
        if unknown:
            raise ValueError(f"no library is called {unknown[0]!r}: the phrasebook has {', '.join(known)}.")
        self.libraries: Sequence[Library] = [known[slug] for slug in slugs] if slugs else LIBRARIES

    def __repr__(self) -> str:
        width = max(len(library.name) for library in self.libraries)
        blocks = []
        for phrase in PHRASES:
            lines = [phrase.thing]
            for library in self.libraries:
                head = f"  {library.name:<{width}}  "
                lines += textwrap.wrap(
                    phrase.words[library.slug], 110, initial_indent=head, subsequent_indent=" " * len(head)
                )
            blocks.append("\n".join(lines))
        return "\n".join([*blocks, *(_about(library) for library in self.libraries)])

    def _repr_html_(self) -> str:
        heads = "".join(
            f'<th style="{_CELL}"><a href="{escape(one.source)}">{escape(one.name)}</a><br>'
            f'<span style="font-weight:normal">{escape(one.version)}</span></th>'
            for one in self.libraries
        )
        rows = "".join(
            f'<tr><th style="{_CELL}">{escape(phrase.thing)}</th>'
            + "".join(f'<td style="{_CELL}">{_code_that_wraps(phrase.words[one.slug])}</td>' for one in self.libraries)
            + "</tr>"
            for phrase in PHRASES
        )
        notes = "".join(f"<div>{inline_html(_about(one))}</div>" for one in self.libraries if one.not_run)
        return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def _code_that_wraps(words: str) -> str:
    """Return the HTML of a phrase whose code may break after a dot, a bracket, an underscore: columns are narrow."""

    def open_up(code: re.Match[str]) -> str:
        return re.sub(r"([.(_=])(?=\w)", r"\1<wbr>", code[0])

    return re.sub(r"<code>.*?</code>", open_up, inline_html(words))


def _about(library: Library) -> str:
    run = f"not run, because {library.not_run}" if library.not_run else "run by `make test-phrasebook`"
    return f"{library.name}, {library.version}: {run}. Source: {library.source}"
