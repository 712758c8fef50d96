"""The pages of the book that are no notebooks: the sheet, the mistakes, the benchmarks,
the machines and the public names.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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


def write_all(pages: Path, chapters: Sequence[Chapter], live: Mapping[str, str]) -> None:
    """Write them into the folder of pages; live: a panel's name → its HTML."""
    for name in ("notebooks", "exercises", "api", "more"):
        (pages / name).mkdir(exist_ok=True)
    index = pages / "index.md"
    text = index.read_text("utf-8").replace("CHAPTERS", chapter_table(chapters))
    text = text.replace("BITEXPLORER", live["BitExplorer"])
    exercises = [one for chapter in chapters for one in chapter.exercises()]
    reading, working = hours()
    for word, said in {
        "EXERCISES_COUNT": len(exercises),
        "MISTAKES_COUNT": f"{sum(len(one.mistakes) for one in exercises):,}",
        "READING": reading,
        "EXERCISES": working,
        "SITE": f"{site()}_static/",
    }.items():
        text = text.replace(word, str(said))
    index.write_text(with_address(text), "utf-8")
    scorer = pages / "scorer.js"
    questions = {f"notebooks/{one.stem}": f"{one.question} {one.word}" for one in chapters}
    script = scorer.read_text("utf-8").replace("CHAPTER_QUESTIONS", json.dumps(questions))
    scorer.write_text(script, "utf-8")
    stems = [f"{one.stem[:2]} · {one.word.capitalize()} <{one.stem}>" for one in chapters]
    worked = [
        name
        for name, one in zip(stems, chapters, strict=True)
        if (pages / "exercises" / f"{one.stem}.ipynb").is_file()
    ]
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
                "tools",
                "setup",
                "keyboard",
                "notebook-ci",
                "teaching",
                "workshop",
                "slides",
                "sheet",
                "mistakes",
                "benchmarks",
                "machines",
                "elsewhere",
            ],
        ),
        "more/sheet": sheet_page(),
        "more/slides": slides_page(chapters),
        "more/mistakes": mistakes_page(chapters),
        "more/benchmarks": outside_links(ROOT / "benchmarks" / "README.md"),
    }
    docs = "tour tools setup keyboard notebook-ci teaching workshop machines elsewhere"
    for name in docs.split():
        written[f"more/{name}"] = outside_links(ROOT / "docs" / f"{name}.md")
    written |= {f"api/{chapter.word}": api_page(chapter) for chapter in chapters}
    for name, text in written.items():
        (pages / f"{name}.md").write_text(with_address(text), "utf-8")


def address() -> str:
    """Return where the repository is on the web, as GitHub Actions or git's own remote names it; ""
    if neither does.
    """
    name = os.environ.get("GITHUB_REPOSITORY")
    if name:
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    asked = subprocess.run(
        ["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True
    )
    found = re.fullmatch(
        r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", asked.stdout.strip()
    )
    return f"https://{found[1]}/{found[2]}" if found else ""


def site() -> str:
    """Return where GitHub Pages has the book, which a picture for sharing needs; "" if unknown."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/(.+)", address())
    return f"https://{found[1]}.github.io/{found[2]}/" if found else ""


def with_address(text: str) -> str:
    """Return a page with the repository's address, where that is known."""
    return text.replace("<the address of the repository>", address()) if address() else text


def chapter_links(chapter: Chapter) -> str:
    """Return the line under a chapter's title: from reading to doing."""
    stem, home = chapter.stem, address()
    links = [
        f"[Exercises](../exercises/{stem}.ipynb)",
        f'<a href="../slides/{stem}.html">Slides</a>',
        f"{{download}}`Download the notebook <../downloads/{stem}.ipynb>`",
    ]
    if home:
        path = f"blob/main/notebooks/{stem}.ipynb"
        links.append(f"[Open it on {home.split('/')[2]}]({home}/{path})")
    if home.startswith("https://github.com/"):
        github = home.removeprefix("https://github.com/")
        links.append(
            f"[Colab](https://colab.research.google.com/github/{github}/{path}) and "
            f"[Kaggle](https://kaggle.com/kernels/welcome?src={home}/{path}), neither tried: run "
            f"`%pip install git+{home}` there first"
        )
    return " · ".join(links)


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


def slides_page(chapters: Sequence[Chapter]) -> str:
    """Return the page that leads to the talks."""
    rows = [
        f'| {one.stem[:2]} | <a href="../slides/{one.stem}.html">{one.word}</a> | {one.question} |'
        for one in chapters
    ]
    head = "# Slides\n\nA talk on each chapter, with the places where the class works. The arrow "
    head += "keys turn the pages, `S` opens the speaker's notes, `?` lists the keys.\n\n"
    table = ["| | talk | the question |", "|---|---|---|", *rows]
    last = '\n\n<a href="../slides/index.html">All talks with their minutes</a>\n'
    return head + "\n".join(table) + last


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
    """Return what a chapter's package exports, for autodoc to describe."""
    package = importlib.import_module(f"amp_course.{chapter.word}")
    parts = [f"# amp_course.{chapter.word}\n\n{(inspect.getdoc(package) or '').strip()}\n"]
    for owner, name in public_names(package):
        thing = getattr(owner, name)
        parts.append(f"## {_plain(name)}\n")
        if inspect.isclass(thing) or inspect.isroutine(thing):
            kind = "class" if inspect.isclass(thing) else "function"
            members = "   :members:\n" if kind == "class" else ""
            parts.append(
                f"```{{eval-rst}}\n.. auto{kind}:: {owner.__name__}.{name}\n   :no-index:\n"
                f"{members}```\n"
            )
        else:
            value = repr(thing)
            if len(value) > 80 and hasattr(thing, "__len__"):
                value = f"{type(thing).__name__} of {len(thing)}"
            parts.append(f"`{value}`\n")
    return "\n".join(parts)


def public_names(package: ModuleType) -> list[tuple[ModuleType, str]]:
    """Return what `__all__` lists, in its order."""
    return [(package, name) for name in getattr(package, "__all__", ())]
