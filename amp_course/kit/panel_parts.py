"""The parts that several panels' views are made of: HTML in, HTML out, with nothing escaped."""

from __future__ import annotations

from collections.abc import Iterable

from amp_course.kit.svg import GRID, INK


def view(*parts: str) -> str:
    """Return a panel's view: its parts below one another, in the theme's colour."""
    return f'<div style="color:{INK};line-height:1.5">{"".join(parts)}</div>'


def status(html: str, style: str = "") -> str:
    """Return a line that a screen reader reads out whenever it changes."""
    look = f' style="{style}"' if style else ""
    return f'<div role="status" aria-live="polite"{look}>{html}</div>'


def in_row(items: Iterable[str], gap: str, between: str = "") -> str:
    """Return items next to one another, `gap` apart; a row that is too long wraps between them."""
    style = f"margin-right:{gap};white-space:nowrap"
    return between.join(f'<span style="{style}">{item}</span>' for item in items)


def cells(contents: Iterable[str], style: str) -> str:
    """Return cells of a table's row."""
    return "".join(f'<td style="{style}">{content}</td>' for content in contents)


def table(
    label: str, head: Iterable[str], rows: Iterable[str], style: str, *, ruled: bool = True
) -> str:
    """Return a table; label is for screen readers.

    rows:  each as `cells` returns it
    style: of the head's cells
    ruled: draw a line under the head
    """
    line = f' style="border-bottom:1px solid {GRID}"' if ruled else ""
    heads = "".join(f'<th scope="col" style="{style}">{name}</th>' for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table aria-label="{label}" style="border-collapse:collapse;margin:4px 0">'
        f"<thead><tr{line}>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def scrolling(html: str, style: str = "") -> str:
    """Return what scrolls sideways on a page that is too narrow for it."""
    return f'<div style="overflow-x:auto{style}">{html}</div>'
