"""Render the little Markdown that messages use, `code` and **bold**: as HTML, and as plain text.

A Markdown library would take the underscores of `__init__` and the stars of a formula for emphasis.
"""

import html
import itertools
import re
from collections.abc import Iterator

_BOLD = re.compile(r"\*\*(\S|\S.*?\S)\*\*")
_CODES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_=>])")


def inline_html(text: str) -> str:
    """Return a line as HTML: "`a<b` is **not** c" → "<code>a&lt;b</code> is <b>not</b> c"."""
    return "".join(
        f"<code>{part}</code>" if is_code else _BOLD.sub(r"<b>\1</b>", part)
        for part, is_code in _parts(html.escape(text, quote=False))
    )


def plain_text(text: str) -> str:
    """Return a text without the stars of **bold**; backticks stay, for they mark code."""
    return "".join(
        f"`{part}`" if is_code else _BOLD.sub(r"\1", part) for part, is_code in _parts(text)
    )


def without_codes(text: str) -> str:
    """Return a text without a terminal's colour codes: "\\x1b[31mred\\x1b[0m" → "red"."""
    return _CODES.sub("", text)


def counted(number: int, what: str) -> str:
    """Write a number of things: 2, "minute" → "2 minutes"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def percent(share: float) -> str:
    """Return a share as a percentage, 0 or 100 only if it is exactly that: 0.00001 → "< 0.1 %"."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a text into prose and code, in turn."""
    parts = re.split(r"`([^`]+)`", text)
    return zip(parts, itertools.cycle([False, True]), strict=False)
