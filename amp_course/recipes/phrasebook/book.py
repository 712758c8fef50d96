"""Show what libraries call the same things, side by side, as HTML or text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from amp_course.kit.markup import inline_html
from amp_course.kit.toml_data import read_toml

_HERE = Path(__file__).parent
_LEGEND = "● seen in a run on a CPU, ○ read in the library's source."
_CELL = "text-align:left;padding:3px 8px 3px 0;vertical-align:top;white-space:normal;font-size:88%"


@dataclass(frozen=True)
class Library:
    """A library that has AMP.

    slug:    of its loop, `loops/<slug>_loop.py`
    version: that the phrasebook describes
    source:  the address of its documentation
    on_cpu:  requested precision → the dtype that its loop then computes in on a CPU
    not_run: why it is not run; "" if it is
    names:   those in the table that are looked up in the installed version
    """

    slug: str
    name: str
    version: str
    source: str
    on_cpu: dict[str, str] = field(default_factory=dict)
    not_run: str = ""
    names: tuple[str, ...] = ()

    @property
    def loop(self) -> str:
        """The source of its loop, to read or paste; "" if no code was published."""
        path = _HERE / "loops" / f"{self.slug}_loop.py"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@dataclass(frozen=True)
class Phrase:
    """A thing, and what each library calls it: all dicts are by the library's slug.

    words:   Markdown, with `code`
    sources: where it was read, if not in the library's documentation
    seen:    facts that a run showed: {"scheduler": "waits"}
    """

    thing: str
    words: dict[str, str]
    topic: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)

    def mark(self, slug: str) -> str:
        """Return "●" for a cell seen in a run, "○" for one read; "" if none of the row was seen."""
        return "●" if slug in self.seen else "○" if self.seen else ""

    def evidence(self, slug: str) -> str:
        """Return the source of a cell: what a run showed, or where it was read; "" if unknown."""
        facts = "; ".join(f"{fact}: {value}" for fact, value in self.seen.get(slug, {}).items())
        return f"seen: {facts}" if facts else self.sources.get(slug, "")


@dataclass(frozen=True, repr=False)
class Phrasebook:
    """Libraries side by side, a row for each thing; a tooltip says how a cell is known.

    Example: LOW_BIT.on("scaling").only("torchao", "microxcaling")
    """

    libraries: tuple[Library, ...]
    phrases: tuple[Phrase, ...]

    def only(self, *slugs: str) -> Phrasebook:
        """Return the book with these libraries alone. Raises ValueError for one not in it."""
        known = {library.slug: library for library in self.libraries}
        _require("library", slugs, known)
        return replace(self, libraries=tuple(known[slug] for slug in slugs))

    def on(self, *topics: str) -> Phrasebook:
        """Return the book with these topics alone. Raises ValueError for one not in it."""
        _require("topic", topics, dict.fromkeys(phrase.topic for phrase in self.phrases))
        return replace(self, phrases=tuple(one for one in self.phrases if one.topic in topics))

    def __repr__(self) -> str:
        width = max(len(library.name) for library in self.libraries)
        lines = []
        for phrase in self.phrases:
            lines.append(phrase.thing)
            for library in self.libraries:
                head = f"  {library.name:<{width}}  "
                words = f"{phrase.mark(library.slug)} {phrase.words[library.slug]}".strip()
                lines += textwrap.wrap(
                    words, 110, initial_indent=head, subsequent_indent=" " * len(head)
                )
        return "\n".join([*lines, *self._legend, *map(_describe, self.libraries)])

    @property
    def _legend(self) -> list[str]:
        return [_LEGEND] if any(phrase.seen for phrase in self.phrases) else []

    def _repr_html_(self) -> str:
        heads = "".join(
            f'<th style="{_CELL}"><a href="{escape(one.source)}">{escape(one.name)}</a><br>'
            f'<span style="font-weight:normal">{escape(one.version)}</span></th>'
            for one in self.libraries
        )
        rows = "".join(
            f'<tr><th style="{_CELL}">{escape(phrase.thing)}</th>'
            + "".join(_cell(phrase, one.slug) for one in self.libraries)
            + "</tr>"
            for phrase in self.phrases
        )
        lines = [*self._legend, *(_describe(one) for one in self.libraries if one.not_run)]
        notes = "".join(f"<div>{inline_html(line)}</div>" for line in lines)
        head = f"<thead><tr><th></th>{heads}</tr></thead>"
        return f"<table>{head}<tbody>{rows}</tbody></table>{notes}"


def read_book(file: str) -> Phrasebook:
    """Return the phrasebook in a TOML file next to this module."""
    data = read_toml(__file__, file)
    libraries = [Library(**one | {"names": tuple(one.get("names", ()))}) for one in data["library"]]
    phrases = [
        Phrase(
            one["thing"],
            {library.slug: one[library.slug] for library in libraries},
            one.get("topic", ""),
            one.get("in", {}),
            one.get("seen", {}),
        )
        for one in data["phrase"]
    ]
    return Phrasebook(tuple(libraries), tuple(phrases))


def _require(kind: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"no {kind} is called {name!r}: the phrasebook has {', '.join(known)}."
            )


def _cell(phrase: Phrase, slug: str) -> str:
    """Return a cell, whose code may break after a dot, bracket or underscore in narrow columns."""
    words = re.sub(
        "<code>.*?</code>",
        lambda code: re.sub(r"([.(_=])(?=\w)", r"\1<wbr>", code[0]),
        inline_html(phrase.words[slug]),
    )
    words = f"{phrase.mark(slug)} {words}".strip()
    evidence = phrase.evidence(slug)
    title = f' title="{escape(evidence)}"' if evidence else ""
    return f'<td style="{_CELL}"{title}>{words}</td>'


def _describe(library: Library) -> str:
    run = "run by `make test-phrasebook`"
    if library.not_run:
        run = f"not run, because {library.not_run}"
    return f"{library.name}, {library.version}: {run}. Source: {library.source}"
