"""Turn tagged cells into the HTML of a slide: prose, code, printed output, tables and figures, each
as large as it can be.

Sizes are those of a font, in pixels of a slide of 1920 × 1080. The last row sits eight screen
heights away. An eye of normal sight reads capitals of 5 minutes of arc; we ask for 6, which is a
font of 20.7 pixels, or 1.9 % of the slide's height. Raised exponents may have 4.9, which is 16.9
pixels. tests/slides/ measures both in a browser.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from collections.abc import Iterator, Sequence
from html import escape

from figure_text import has_exponents, smallest_text
from markdown_it import MarkdownIt
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from amp_course.authoring.photographs import WIDGET
from amp_course.kit.errors import CourseError

LEAST = 22  # of code and output
MOST = 44
ROOM = (1630, 800)  # for code and output, inside their frame
ASPECT, LEADING = (
    0.61,
    1.36,
)  # a letter's width in the widest of the fonts, and a line's height, in sizes of the font
SHOWN = 110  # pixels per inch of a figure in a notebook, as stored with it; as in kit.style
KINDS = {"code", "output"}


class SlideError(CourseError):
    """A cell cannot be a slide as it is."""


def _highlighted(code: str, language: str, _: str) -> str:
    inside = _coloured(code) if language == "python" else escape(code, quote=False)
    return f'<pre style="font-size:{size_of([code])}px"><code>{inside}</code></pre>'


_markdown = MarkdownIt("commonmark", {"html": True, "highlight": _highlighted}).enable("table")


def prose(text: str, inline: bool = False) -> str:
    """Return Markdown as HTML, its links as plain words: nobody clicks from the last row."""
    text = re.sub(r"(?<!!)\[([^]]+)\]\([^)]+\)", r"\1", text)
    return _markdown.renderInline(text) if inline else _markdown.render(text)


def plain(text: str) -> str:
    """Return a line of Markdown as plain words."""
    return re.sub(r"<[^>]+>|[`*]", "", text)


def blocks(cells: Sequence[NotebookNode], chapter: str) -> list[tuple[str, str]]:
    """Return what a slide of this chapter shows, as (kind, HTML):
    "text", "code", "output", "table" or "figure".
    """
    found: list[tuple[str, str]] = []
    for cell in cells:
        made = list(_block(cell, chapter))
        if cell.metadata.slideshow.slide_type == "fragment":
            made = [(kind, f'<div class="fragment">{html}</div>') for kind, html in made]
        found += made
    size = size_of(
        [html for kind, html in found if kind in KINDS],
        [html for kind, html in found if kind == "text"],
    )
    return [(kind, _mono(kind, html, size) if kind in KINDS else html) for kind, html in found]


def size_of(texts: Sequence[str], above: Sequence[str] = ()) -> int:
    """Return the largest size, in pixels, at which all of these lines of code or output fit on one
    slide.
    """
    if not texts:
        return MOST
    lines = [text.rstrip("\n").split("\n") for text in texts]
    columns, rows = max(len(line) for one in lines for line in one), sum(map(len, lines))
    words = sum(len(plain(text)) for text in above)
    height = ROOM[1] - 70 * len(texts) - (56 * (words // 80 + 2) if words else 0)
    size = int(min(MOST, ROOM[0] / ASPECT / columns, height / LEADING / rows))
    if size < LEAST:
        raise SlideError(
            f"{rows} lines of up to {columns} characters could not be read from the last row: "
            f"choose a few by "
            "metadata.amp_course.lines, or give the slide a text of its own"
        )
    return size


def _block(cell: NotebookNode, chapter: str) -> Iterator[tuple[str, str]]:
    """Give what a cell shows: its slide's own text if there is one, else its source,
    or its outputs.
    """
    said = cell.metadata.get("amp_course", {})
    if said.get("slide"):
        yield "text", prose(said["slide"])
    elif cell.cell_type == "markdown" and "exercises" not in said and "slide" not in said:
        yield "text", prose(re.sub(r"\A#+ .*\n", "", cell.source))
    if cell.cell_type != "code":
        return
    has_figure = any("image/png" in output.get("data", {}) for output in cell.outputs)
    show = said.get("show", [] if "slide" in said else ["figure"] if has_figure else ["output"])
    if "code" in show:
        yield "code", _chosen(cell.source, said.get("lines"))
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            if "figure" in show:
                yield "figure", _figure(cell, output, chapter)
        elif "output" in show:
            yield _output(output, said.get("output_lines"))


def _output(output: NotebookNode, lines: str | None) -> tuple[str, str]:
    data = output.get("data", {})
    if output.output_type == "stream":
        return "output", _chosen(output.text, lines)
    if output.output_type == "error":
        return "output", f"{output.ename}: {output.evalue}"
    if "text/html" in data:
        return "table", f'<div class="html">{data["text/html"]}</div>'
    if "text/markdown" in data:
        return "text", prose(data["text/markdown"])
    return "output", _chosen(data["text/plain"], lines)


def _chosen(text: str, lines: str | None) -> str:
    """Return some lines of a text: "2-4" are its second to fourth, "1,3-4" leaves out the second;
    without the common indent.
    """
    text = text.rstrip("\n")
    if not lines:
        return text
    every, kept = text.split("\n"), []
    for part in lines.split(","):
        first, _, last = part.partition("-")
        kept += every[int(first) - 1 : int(last or first)]
    indent = min((len(line) - len(line.lstrip()) for line in kept if line.strip()), default=0)
    return "\n".join(line[indent:] for line in kept)


def _mono(kind: str, text: str, size: int) -> str:
    """Return code or output at this size; a fragment keeps its frame."""
    frame = re.fullmatch(r'(<div class="fragment">)(.*)(</div>)', text, re.DOTALL)
    before, inside, after = frame.groups() if frame else ("", text, "")
    inside = _coloured(inside) if kind == "code" else escape(inside, quote=False)
    return (
        f'{before}<pre class="{kind}" style="font-size:{size}px"><code>{inside}</code></pre>{after}'
    )


def _coloured(code: str) -> str:
    return highlight(
        code.rstrip("\n"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    ).rstrip("\n")


def _figure(cell: NotebookNode, output: NotebookNode, chapter: str) -> str:
    """Return a figure that fills its slide, with its words,
    its width in inches and the size of its smallest text in points.
    """
    data = output.data["image/png"].replace("\n", "")
    about = output.metadata.get("image/png", {})
    if not about.get("alt"):
        raise SlideError("its figure has no words for those who cannot see it")
    drawn = cell.source, chapter
    width, height = struct.unpack(">II", b64decode(data)[16:24])
    inches = about["width"] / SHOWN
    exponents = " data-exponents" if has_exponents(*drawn) else ""
    # A panel's photograph is to be recognized, and not to be read: the speaker opens the panel.
    exponents += " data-panel" if WIDGET in output.data else ""
    return (
        f'<img alt="{escape(about["alt"])}" width="{width}" height="{height}" '
        f'data-inches="{inches:.2f}" data-points="{smallest_text(*drawn):g}"{exponents} '
        f'src="data:image/png;base64,{data}">'
    )
