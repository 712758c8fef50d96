"""Turn the little Markdown that messages use into HTML: `code` and **bold**, everything else escaped.

A whole Markdown library would take the underscores of `__init__` and the stars of a formula for emphasis.
"""

import html
import re


def inline_html(text: str) -> str:
    """Return a line as HTML. Example: "`a<b` is **not** c" → "<code>a&lt;b</code> is <b>not</b> c" """
    parts = re.split(r"`([^`]+)`", html.escape(text, quote=False))
    return "".join(
        f"<code>{part}</code>" if is_code else re.sub(r"\*\*(\S|\S.*?\S)\*\*", r"<b>\1</b>", part)
        for part, is_code in zip(parts, [False, True] * len(parts), strict=False)
    )
