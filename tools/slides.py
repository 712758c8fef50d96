"""Make the talks of the course: for each chapter a deck of slides, from cells tagged for it.
Nothing is run.

`make slides` calls it; ARGS names chapters, or none for all. A deck is a page for reveal.js, of
which build/slides gets a copy, so nothing is asked of another host. CONTRIBUTING.md says how a cell
becomes a slide; slide_parts.py turns cells into HTML.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import nbformat
from book_pages import FIVE, last_lines
from nbformat import NotebookNode
from slide_parts import SlideError, blocks, plain, prose

from amp_course.checking import Exercise
from amp_course.course import CHAPTERS, Chapter, find
from amp_course.kit.errors import CourseError

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "slides"
STARTS, JOINS = (
    ("slide", "subslide"),
    ("fragment", "notes"),
)  # Jupyter's words: a new slide, and more of the one before
REVEAL = {  # what a deck needs of reveal.js, and the name that it gets
    "dist/reset.css": "reset.css",
    "dist/reveal.css": "reveal.css",
    "dist/reveal.js": "reveal.js",
    "plugin/notes/notes.js": "notes.js",
    "LICENSE": "LICENSE",
}


@dataclass
class Slide:
    """One slide: its heading, its body in HTML, what to say and for how long,
    and how long the class works afterwards.
    """

    title: str
    body: str
    minutes: float
    notes: str  # Markdown
    kind: str = "text"
    exercise_minutes: int = 0


@dataclass
class Deck:
    """A chapter's slides, in order."""

    chapter: Chapter
    title: str
    slides: list[Slide] = field(default_factory=list)

    @property
    def minutes(self) -> float:
        """The minutes of talk."""
        return sum(slide.minutes for slide in self.slides)

    @property
    def exercise_minutes(self) -> int:
        """The minutes of work."""
        return sum(slide.exercise_minutes for slide in self.slides)


def main(arguments: list[str] | None = None) -> int:
    """Make the decks that are asked for, and the index of all; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make slides ARGS=…", description="Make slides for a talk on each chapter."
    )
    parser.add_argument(
        "chapters", nargs="*", help="chapters by number or word, such as 5 or scaler (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="the folder of the decks (default: build/slides)"
    )
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        chapters = [find(name) for name in chosen.chapters] or list(CHAPTERS)
        decks = [deck_of(chapter) for chapter in CHAPTERS]
        if not chosen.chapters:
            shutil.rmtree(chosen.out, ignore_errors=True)
        copy_reveal(chosen.out / "reveal")
        shutil.copy(ROOT / "docs" / "slides" / "slides.css", chosen.out)
        for deck in decks:
            if deck.chapter in chapters:
                (chosen.out / f"{deck.chapter.stem}.html").write_text(deck_html(deck), "utf-8")
    except CourseError as error:
        print(f"make slides: {error}", file=sys.stderr)
        return 1
    (chosen.out / "index.html").write_text(index_html(decks, chosen.out), "utf-8")
    size = sum(file.stat().st_size for file in chosen.out.rglob("*") if file.is_file())
    print(
        f"{chosen.out / 'index.html'}: {size / 2**20:.1f} MiB, made in "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0


def copy_reveal(folder: Path) -> None:
    """Copy reveal.js with its licence from sphinx-revealjs, the package that brings it."""
    source = files("sphinx_revealjs") / "_static" / "revealjs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, short in REVEAL.items():
        (folder / short).write_bytes((source / name).read_bytes())


def deck_of(chapter: Chapter) -> Deck:
    """Collect a chapter's slides; a SlideError names the cell in which something is missing or too
    long.
    """
    book = nbformat.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb", as_version=4)
    _, _, heading = book.cells[0].source.splitlines()[0].partition(" · ")
    deck = Deck(chapter, heading or chapter.word.capitalize())
    for number, group in enumerate(tagged(book)):
        try:
            deck.slides.append(slide_of(group, chapter, opening=number == 0))
            deck.slides += [slide_of([cell], chapter) for cell in more_of(group[0])]
        except SlideError as error:
            raise SlideError(
                f"notebooks/{chapter.stem}.ipynb, cell {group[0].id}: {error}"
            ) from None
    if deck.slides:
        work = f" · exercises <b>{deck.exercise_minutes} min</b>" if deck.exercise_minutes else ""
        deck.slides[0].body += f'<p class="length">talk <b>{deck.minutes:g} min</b>{work}</p>'
    return deck


def tagged(book: NotebookNode) -> Iterator[list[NotebookNode]]:
    """Give the cells of each slide. A cell that has no slide type, or `skip`, is on none."""
    group: list[NotebookNode] = []
    for cell in book.cells:
        kind = cell.metadata.get("slideshow", {}).get("slide_type")
        if kind in STARTS:
            if group:
                yield group
            group = [cell]
        elif kind in JOINS and group:
            group.append(cell)
    if group:
        yield group


def more_of(cell: NotebookNode) -> Iterator[NotebookNode]:
    """Give the cell once more for each further slide that it is to make:
    metadata.amp_course.more lists what those say.
    """
    for said in cell.metadata.get("amp_course", {}).get("more", ()):
        again = deepcopy(cell)
        again.metadata["amp_course"] = said
        yield again


def slide_of(cells: Sequence[NotebookNode], chapter: Chapter, opening: bool = False) -> Slide:
    """Make a slide of its cells; the first of them says its title, its minutes and what to say."""
    said = cells[0].metadata.get("amp_course", {})
    notes = [said.get("notes", "")]
    notes += [cell.source for cell in cells[1:] if cell.metadata.slideshow.slide_type == "notes"]
    notes = [part for part in notes if part.strip()]
    if not notes or not said.get("minutes"):
        raise SlideError("a slide needs metadata.amp_course.notes and .minutes")
    shown = [cell for cell in cells if cell.metadata.slideshow.slide_type != "notes"]
    five = FIVE in cells[0].source and not {"slide", "exercises"} & said.keys()
    found = (
        [("text", prose(raised(last_lines(cells[0].source))))]
        if five
        else blocks(shown, chapter.word)
    )
    kinds = [kind for kind, _ in found]
    if "figure" in kinds and len(found) > 1:
        raise SlideError("a figure gets a slide of its own")
    body, title, work = "".join(html for _, html in found), said.get("title", ""), 0
    numbers = tuple(said.get("exercises", ()))
    if numbers:
        body += exercise_list(chapter, numbers)
        title = title or now_you(numbers)
        work = minutes_of(chapter, numbers)
    elif opening:
        title = title or chapter.question
    elif five:
        title = title or FIVE.removeprefix("## ")
    if not title:
        raise SlideError("a slide needs metadata.amp_course.title")
    kind = (
        "opening"
        if opening
        else "work"
        if numbers
        else "five"
        if five
        else kinds[0]
        if kinds
        else "text"
    )
    return Slide(title, body, said["minutes"], "\n\n".join(notes), kind, work)


def exercises_of(chapter: Chapter, numbers: Sequence[int]) -> list[Exercise]:
    """Return the chapter's exercises of these numbers; a SlideError if one does not exist."""
    chosen = [one for one in chapter.exercises() if one.number in numbers]
    if len(chosen) != len(numbers):
        raise SlideError(f"the chapter has no exercises {numbers}")
    return chosen


def minutes_of(chapter: Chapter, numbers: Sequence[int]) -> int:
    """Return how long these exercises take together, as their cards say."""
    return sum(one.minutes for one in exercises_of(chapter, numbers))


def exercise_list(chapter: Chapter, numbers: Sequence[int]) -> str:
    """Return these exercises with their minutes, in HTML."""
    rows = "".join(
        f"<li><b>{one.number}</b><span>{escape(one.title)}</span><i>{one.minutes} min</i></li>"
        for one in exercises_of(chapter, numbers)
    )
    return f'<ul class="exercises">{rows}</ul>'


def now_you(numbers: Sequence[int]) -> str:
    """Return the title of the slide that sends the class to work:
    (1, 2) → "Now you: exercises 1 and 2".
    """
    return f"Now you: {'exercise' if len(numbers) == 1 else 'exercises'} {listed(numbers)}"


def raised(text: str) -> str:
    """Write a power as people do: "2^(M + 1)" → "2<sup>M + 1</sup>"."""
    return re.sub(r"\^\(([^)]+)\)", r"<sup>\1</sup>", text)


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as people say them: (1, 2, 3) → "1 to 3", (1, 3) → "1 and 3", (5,) → "5"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(last)]))


def deck_html(deck: Deck) -> str:
    """Return the page of a deck."""
    template = Template((ROOT / "docs" / "slides" / "deck.html").read_text("utf-8"))
    sections = [section(slide, deck, number) for number, slide in enumerate(deck.slides, 1)]
    title = f"{deck.chapter.stem[:2]} · {deck.title}"
    return template.substitute(title=escape(title), slides="\n".join(sections))


def section(slide: Slide, deck: Deck, number: int) -> str:
    """Return a slide as reveal.js reads it, with its place in the deck and with its notes."""
    name = f"{deck.chapter.stem[:2]} · {deck.title}"
    place = f"<span>{escape(name)}</span><span>slide {number} of {len(deck.slides)}</span>"
    heading = f"<h2>{prose(slide.title, inline=True)}</h2>"
    if slide.kind == "opening":
        heading = (
            f'<h1><span class="name">{escape(name)}</span> {prose(slide.title, inline=True)}</h1>'
        )
    length = f"{slide.minutes:g} {'minute' if slide.minutes == 1 else 'minutes'}"
    if slide.exercise_minutes:
        length += f", then {slide.exercise_minutes} for the exercises"
    seconds = round(60 * (slide.minutes + slide.exercise_minutes))
    return (
        f'<section data-timing="{seconds}" aria-label="{escape(plain(slide.title))}"><div '
        f'class="page {slide.kind}"><header>{heading}</header><div '
        f'class="body">{slide.body}</div><footer>{place}</footer></div><aside '
        f'class="notes"><p><b>{length}.</b></p>{prose(slide.notes)}</aside></section>'
    )


def index_html(decks: Sequence[Deck], folder: Path) -> str:
    """Return the page that lists the decks; a deck that was not made yet is listed without a
    link.
    """
    rows = []
    for deck in decks:
        chapter, question = deck.chapter, escape(deck.chapter.question)
        if (folder / f"{chapter.stem}.html").is_file():
            question = f'<a href="{chapter.stem}.html">{question}</a>'
        numbers = (len(deck.slides), f"{deck.minutes:g}", deck.exercise_minutes)
        cells = "".join(f"<td>{number}</td>" for number in numbers)
        rows.append(
            f"<tr><th "
            f'scope="row">{chapter.stem[:2]}</th><td>{escape(deck.title)}</td><td>{question}</td>{cells}</tr>'
        )
    sums = (
        sum(len(deck.slides) for deck in decks),
        f"{sum(deck.minutes for deck in decks):g}",
        sum(deck.exercise_minutes for deck in decks),
    )
    template = Template((ROOT / "docs" / "slides" / "index.html").read_text("utf-8"))
    return template.substitute(
        rows="\n".join(rows), sums="".join(f"<td>{number}</td>" for number in sums)
    )


if __name__ == "__main__":
    sys.exit(main())
