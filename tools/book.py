"""Build the course as a book: a site of static pages, from the outputs that the notebooks have
stored. No notebook is run.

`make book` calls it. It prepares a folder of pages (book_pages.py makes those that are no
notebooks), and lets Sphinx with myst-nb turn them into HTML, every warning an error. The pages ask
no other host for anything.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import book_pages
import live_panels
import nbformat
import slides
from sphinx.cmd.build import main as sphinx

from amp_course.authoring.photographs import WIDGET, find_chromium
from amp_course.course import CHAPTERS, Chapter, available

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "book"
PLAY = """:::{{tip}}
This is a picture: the panel {why}, which a page cannot. In JupyterLab its controls move, by mouse
and by keyboard: `make lab`, then open `notebooks/{stem}.ipynb`.
:::"""
WHY = {"StepExplorer": "times your own machine"}  # what a page cannot do for a panel


def main(arguments: list[str] | None = None) -> int:
    """Build the book; return 0, or Sphinx's exit code."""
    parser = argparse.ArgumentParser(description="Build the course as a book of static pages.")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="the folder of the site (default: build/book)"
    )
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pages, caches = Path(folder) / "pages", Path(folder) / "caches"
        prepare(pages)
        shutil.rmtree(chosen.out, ignore_errors=True)
        code = sphinx(
            [
                "-q",
                "-W",
                "--keep-going",
                "-b",
                "html",
                "-d",
                str(caches),
                str(pages),
                str(chosen.out),
            ]
        )
    code = code or slides.main(["--out", str(chosen.out / "slides")])
    if code:
        return int(code)
    for file in chosen.out.rglob("*.map"):  # of scripts and sheets, for their developers
        file.unlink()
    size = sum(file.stat().st_size for file in chosen.out.rglob("*") if file.is_file())
    print(
        f"{chosen.out / 'index.html'}: {size / 2**20:.1f} MiB, built in "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0


def prepare(pages: Path) -> None:
    """Write the folder that Sphinx reads: notebooks, exercises and generated pages."""
    shutil.copytree(
        ROOT / "docs" / "book", pages, ignore=shutil.ignore_patterns("live.py", "__pycache__")
    )
    live = live_panels.write(pages / "_static")
    shutil.copytree(ROOT / "docs" / "images", pages / "images")
    for name in ("notebooks", "exercises", "downloads"):
        (pages / name).mkdir()
    chapters = available()
    for chapter in chapters:
        nbformat.write(emptied(chapter), pages / "downloads" / f"{chapter.stem}.ipynb")
        nbformat.write(chapter_page(chapter, live), pages / "notebooks" / f"{chapter.stem}.ipynb")
        if (ROOT / "exercises" / f"{chapter.stem}.ipynb").is_file():
            nbformat.write(exercise_page(chapter), pages / "exercises" / f"{chapter.stem}.ipynb")
    book_pages.write_all(pages, chapters, live)
    make_pdf(pages)


def read(folder: str, chapter: Chapter) -> nbformat.NotebookNode:
    """Read a chapter's notebook from one of the three folders."""
    return nbformat.read(ROOT / folder / f"{chapter.stem}.ipynb", as_version=4)


def chapter_page(chapter: Chapter, live: Mapping[str, str]) -> nbformat.NotebookNode:
    """Return a chapter with its links turned to pages of the book, and its panels live, or with a
    line on how to play.

    live: a panel's name → its HTML
    """
    book = read("notebooks", chapter)
    cells = []
    for place, cell in enumerate(book.cells):
        cells.append(keep_alt(turn_links(cell)))
        if place == 0:
            cells.append(nbformat.v4.new_markdown_cell(book_pages.chapter_links(chapter)))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if WIDGET not in data:
                continue
            name = data["text/plain"].rstrip("()")
            if name in live:
                output.data = nbformat.from_dict({"text/html": live[name]})
            else:
                play = PLAY.format(why=WHY[name], stem=chapter.stem)
                cells.append(nbformat.v4.new_markdown_cell(play))
    book.cells = cells
    return book


def emptied(chapter: Chapter) -> nbformat.NotebookNode:
    """Return a chapter's notebook without its outputs, to be downloaded and run."""
    book = read("notebooks", chapter)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return book


def exercise_page(chapter: Chapter) -> nbformat.NotebookNode:
    """Return a chapter's exercises with their cards, which only the solutions have stored,
    and with their blanks.
    """
    book = read("exercises", chapter)
    stored = {
        cell.source: cell for cell in read("solutions", chapter).cells if cell.cell_type == "code"
    }
    for cell in map(turn_links, book.cells):
        if cell.cell_type == "code" and cell.source in stored:
            cell.outputs = stored[cell.source].outputs
            cell.execution_count = None
            keep_alt(cell)
    return book


def turn_links(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Let links to the reader's own copies lead to the book's exercises,
    and links in outputs to pages and not to notebooks.
    """
    stems = "|".join(chapter.stem for chapter in CHAPTERS)
    if cell.cell_type == "markdown":
        cell.source = re.sub(
            rf"\(\.\./my_work/({stems})\.ipynb\)", r"(../exercises/\1.ipynb)", cell.source
        )
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "text/html" in data:
            html = re.sub(r'href="\.\./my_work/', 'href="../exercises/', data["text/html"])
            data["text/html"] = re.sub(
                rf'href="((?:\.\./\w+/)?(?:{stems}))\.ipynb"', r'href="\1.html"', html
            )
    return cell


def keep_alt(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Give myst-nb the words for a cell's picture where it looks for them;
    it drops those of the output.
    """
    for output in cell.get("outputs", ()):
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            cell.metadata["mystnb"] = {"image": {"alt": alt}}
    return cell


def make_pdf(pages: Path) -> None:
    """Print the sheet of five lines a chapter by Chromium, if there is one;
    the page links to it only then.
    """
    browser = find_chromium()
    sheet = pages / "more" / "sheet.pdf"
    if browser is None:
        print("no Chromium: the sheet is made without its PDF", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as profile:
        page = Path(profile) / "sheet.html"
        page.write_text(book_pages.sheet_html(), "utf-8")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
        ]
        subprocess.run(
            [browser, *flags, f"--print-to-pdf={sheet}", page.as_uri()],
            check=True,
            capture_output=True,
            timeout=60,
        )
    (pages / "more" / "sheet.md").write_text(
        (pages / "more" / "sheet.md").read_text("utf-8")
        + "\n{download}`As a PDF, for the wall <sheet.pdf>`\n",
        "utf-8",
    )


if __name__ == "__main__":
    sys.exit(main())
