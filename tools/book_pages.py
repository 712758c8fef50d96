"""The pages of the book that are no notebooks: the sheet, the mistakes, the benchmarks,
the machines and the public names.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from types import ModuleType

import nbformat

from amp_course.course import Chapter, available, hours
from amp_course.kit.markup import plain_text

ROOT = Path(__file__).resolve().parent.parent
FIVE = "## Five lines to remember"
SHEET_STYLE = """@page { size: A4; margin: 12mm } body { font: 9.2pt/1.3 sans-serif; column-count: 2; column-gap: 8mm }
h1 { font-size: 15pt; column-span: all; margin: 0 0 3mm } h2 { font-size: 10.5pt; margin: 3mm 0 1mm; break-after: avoid }
ol { margin: 0; padding-left: 5mm; break-inside: avoid } code { font-size: 90% }"""


def write_all(pages: Path, chapters: Sequence[Chapter]) -> None:
    """Write them into the folder of pages."""
    for name in ("notebooks", "exercises", "api", "more"):
        (pages / name).mkdir(exist_ok=True)
    index = pages / "index.md"
    text = index.read_text("utf-8").replace("CHAPTERS", chapter_table(chapters))
    for word, count in zip(("READING", "EXERCISES"), hours(), strict=True):
        text = text.replace(word, str(count))
    index.write_text(with_address(text), "utf-8")
    stems = [chapter.stem for chapter in chapters]
    worked = [stem for stem in stems if (pages / "exercises" / f"{stem}.ipynb").is_file()]
    written = {
        "notebooks/index": contents(
            "Chapters", "Read any of them on its own, though each builds on those before.", stems
        ),
        "exercises/index": contents(
            "Exercises",
            "To be solved in JupyterLab, where each answer is checked: `make lab`.",
            worked,
        ),
        "api/index": contents(
            "The package",
            "What each chapter's package exports: import from here, as the notebooks do.",
            [chapter.word for chapter in chapters],
        ),
        "more/index": contents(
            "More",
            "Pictures, setting up, teaching, the wall, and what was measured.",
            [
                "tour",
                "setup",
                "keyboard",
                "notebook-ci",
                "teaching",
                "sheet",
                "mistakes",
                "benchmarks",
                "machines",
                "elsewhere",
            ],
        ),
        "more/sheet": sheet_page(),
        "more/mistakes": mistakes_page(chapters),
        "more/benchmarks": outside_links(ROOT / "benchmarks" / "README.md"),
    }
    for name in ("tour", "setup", "keyboard", "notebook-ci", "teaching", "machines", "elsewhere"):
        written[f"more/{name}"] = outside_links(ROOT / "docs" / f"{name}.md")
    written |= {f"api/{chapter.word}": api_page(chapter) for chapter in chapters}
    for name, text in written.items():
        (pages / f"{name}.md").write_text(with_address(text), "utf-8")


def with_address(text: str) -> str:
    """Return a page with the repository's address where GitHub Actions, which publishes the book,
    names it.
    """
    name = os.environ.get("GITHUB_REPOSITORY")
    address = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    return text.replace("<the address of the repository>", address) if name else text


def contents(title: str, words: str, names: Sequence[str]) -> str:
    """Return a page that lists others of its folder."""
    listed = "\n".join(names)
    return f"# {title}\n\n{words}\n\n:::{{toctree}}\n:maxdepth: 1\n\n{listed}\n:::\n"


def chapter_table(chapters: Sequence[Chapter]) -> str:
    """Return the chapters with their questions and minutes, as a table in Markdown."""
    rows = [
        f"| {one.stem[:2]} | [{one.word}](notebooks/{one.stem}.ipynb) | {one.question} "
        f"| {one.minutes} + {one.exercise_minutes()} min |"
        for one in chapters
    ]
    head = ["| | chapter | the question | reading + exercises |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def five_lines() -> Iterator[tuple[Chapter, str]]:
    """Give each chapter with its last lines, in Markdown, as its notebook has them."""
    for chapter in available():
        book = nbformat.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb", as_version=4)
        for cell in book.cells:
            if FIVE in cell.source:
                yield chapter, last_lines(cell.source)


def last_lines(source: str) -> str:
    """Return the list under a cell's last heading, without what follows it."""
    paragraphs = source.split(FIVE)[1].strip().split("\n\n")
    return "\n".join(part for part in paragraphs if re.match(r"(\d\.|-) ", part))


def sheet_page() -> str:
    """Return the sheet as a page."""
    parts = [
        f"## [{chapter.stem[:2]} {chapter.word}](../notebooks/{chapter.stem}.ipynb)\n\n{lines}"
        for chapter, lines in five_lines()
    ]
    return "# The course on a sheet\n\n" + "\n\n".join(parts) + "\n"


def sheet_html() -> str:
    """Return the sheet as a page of its own, for print."""
    parts = []
    for chapter, lines in five_lines():
        items = re.split(r"^(?:\d+\.|-) ", lines, flags=re.MULTILINE)[1:]
        rows = "".join(f"<li>{_inline(' '.join(item.split()))}</li>" for item in items)
        parts.append(
            f"<h2>{chapter.stem[:2]} · {escape(chapter.word)}: "
            f"{escape(chapter.question)}</h2><ol>{rows}</ol>"
        )
    title = "Automatic mixed precision in PyTorch: the course on a sheet"
    return (
        f'<!doctype html><html lang="en"><meta '
        f'charset="utf-8"><title>{title}</title><style>{SHEET_STYLE}</style>'
        f"<h1>{title}</h1>{''.join(parts)}</html>"
    )


def _inline(text: str) -> str:
    """Turn the little Markdown that those lines use into HTML."""
    text = escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*(.+?)\*", r"<i>\1</i>", text)
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def mistakes_page(chapters: Sequence[Chapter]) -> str:
    """Return the mistakes that the checks explain, by chapter and exercise."""
    parts = [
        "# Mistakes\n\nWhat people get wrong, and what the checks tell them, for instructors who "
        "ask what to teach next. It gives answers away.\n"
    ]
    for chapter in chapters:
        exercises = chapter.exercises()
        if exercises:
            parts.append(f"## {chapter.stem[:2]} {chapter.word}\n")
        for exercise in exercises:
            parts.append(f"### {exercise.number}. {exercise.title}\n")
            for one in exercise.mistakes:
                parts.append(f"- **{_plain(one.name)}**: {_plain(plain_text(one.feedback))}")
            parts.append("")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Keep words that are not ours from being read as Markdown; code stays code."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_\[\]<>#$~|])", r"\\\1", piece)
        for piece in pieces
    )


def outside_links(source: Path) -> str:
    """Return a page of the repository, its links to other files of the repository turned into plain
    words.
    """
    text = source.read_text("utf-8")
    images = re.sub(
        r"!\[([^]]*)\]\((?:\.\./docs/|docs/)?images/([^)]+)\)", r"![\1](../images/\2)", text
    )
    return re.sub(r"(?<!!)\[([^]]+)\]\((?!https?:|#)[^)]+\)", r"\1", images)


def api_page(chapter: Chapter) -> str:
    """Return what a chapter's package exports: signatures and docstrings, as they are written."""
    package = importlib.import_module(f"amp_course.{chapter.word}")
    parts = [f"# amp_course.{chapter.word}\n\n{(inspect.getdoc(package) or '').strip()}\n"]
    for owner, name in public_names(package):
        thing = getattr(owner, name)
        where = "" if owner is package else f" ({owner.__name__})"
        parts.append(f"## {_plain(name)}{where}\n\n{_literal(f'{name}{_signature(thing)}')}\n")
        document = (
            inspect.getdoc(thing) if inspect.isroutine(thing) or inspect.isclass(thing) else None
        )
        if document:
            first, _, rest = document.partition("\n\n")
            parts.append(_plain(first) + "\n" + (f"\n{_literal(rest)}\n" if rest.strip() else ""))
    return "\n".join(parts)


def public_names(package: ModuleType) -> list[tuple[ModuleType, str]]:
    """Return what `__all__` lists, in its order."""
    return [(package, name) for name in getattr(package, "__all__", ())]


def _signature(thing: object) -> str:
    if not callable(thing):
        return f" = {thing!r}" if len(repr(thing)) < 80 else ""
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""


def _literal(text: str) -> str:
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=2) + 1)
    fence = fence if len(fence) > 2 else "```"
    return f"{fence}text\n{text}\n{fence}"
