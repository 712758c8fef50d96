"""Write rows of text as a table: in plain text for a terminal, in HTML for a notebook.
The first row is the head.
"""

import html
from collections.abc import Collection, Sequence


def text_table(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return the rows in columns, two spaces apart; the columns whose heads are in `right` are
    aligned at their ends.

    Example: [["a", "b"], ["10", "2"]] → "a   b\\n10  2"
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = [str.rjust if head in right else str.ljust for head in rows[0]]
    return "\n".join(
        "  ".join(
            align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


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
