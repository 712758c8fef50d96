"""Show paragraphs, tables and lists: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from amp_course.kit.markup import inline_html, plain_text
from amp_course.kit.table import html_table, text_table


@dataclass(frozen=True)
class Table:
    """Rows of text, the head first; in plain text, columns whose heads are in `right` are
    right-aligned.
    """

    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()


@dataclass(frozen=True)
class Numbered:
    """A numbered list; each item in the Markdown of a paragraph."""

    items: Sequence[str]


Block = str | Table | Numbered  # a str is a paragraph: `code`, **bold**


class Page:
    """Something that shows itself: a subclass returns its content, once for all forms, in `blocks`.

    A dataclass that is a page needs `repr=False`.
    """

    columns: ClassVar[int] = 10**6  # the width of the text

    def blocks(self) -> Iterable[Block]:
        """Return what to show, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(_text(block, self.columns) for block in self.blocks())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:60em">{"".join(map(_html, self.blocks()))}</div>'


def _text(block: Block, columns: int) -> str:
    if isinstance(block, Table):
        return text_table(block.rows, block.right)
    if isinstance(block, Numbered):
        numbered = [f"{number}. {item}" for number, item in enumerate(block.items, 1)]
        return "\n\n".join(_wrapped(item, columns, "   ") for item in numbered)
    return _wrapped(block, columns)


def _wrapped(text: str, columns: int, hang: str = "") -> str:
    return textwrap.fill(plain_text(text), columns, subsequent_indent=hang, break_long_words=False)


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return html_table(block.rows)
    if isinstance(block, Numbered):
        return f"<ol>{''.join(f'<li>{inline_html(item)}</li>' for item in block.items)}</ol>"
    return f"<p>{inline_html(block)}</p>"
