"""Write rows of text as a table, in plain text or in HTML. The first row is the head."""

import html
from collections.abc import Collection, Sequence


def text_table(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return the rows with two spaces between columns; those whose heads are in `right` are
    right-aligned.

    Example: [["a", "b"], ["10", "2"]] → "a   b\\n10  2"
    """
    columns = []
    for head, *cells in zip(*rows, strict=True):
        width = max(map(len, [head, *cells]))
        align = str.rjust if head in right else str.ljust
        columns.append([align(cell, width) for cell in (head, *cells)])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


# ten columns fit a page 1000 pixels wide
_CELL = 'style="text-align:left;padding:3px 4px;font-size:84%"'


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as a <table>, their text escaped."""
    head, *body = rows
    top = "".join(f"<th {_CELL}>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in body
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"
