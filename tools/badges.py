"""Draw the README's badges as SVG from what the project says of itself: `python tools/badges.py`.
A test holds them to it.
"""

import re
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
_WIDTH = 6.4  # pixels of a character, on average; `textLength` makes it exact


def badges() -> dict[str, str]:
    """Return file name → SVG."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    torch = next(line for line in project["dependencies"] if line.startswith("torch"))
    said = {
        "python": ("python", project["requires-python"].replace(">=", "≥ ")),
        "torch": ("torch", re.sub(r"torch\s*>=\s*", "≥ ", torch)),
        "gpu": ("GPU", "not needed"),
        "licence": ("licence", project["license"]),
    }
    return {f"badge-{name}.svg": _draw(*words) for name, words in said.items()}


def _draw(label: str, value: str) -> str:
    left, right = (round(len(words) * _WIDTH) + 14 for words in (label, value))
    width = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}">'
        f'<rect width="{width}" height="20" rx="3" fill="#3d4653"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z" fill="#1c5c9c"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="7" y="14" textLength="{left - 14}">{escape(label)}</text>'
        f'<text x="{left + 7}" y="14" textLength="{right - 14}">{escape(value)}</text></g></svg>\n'
    )


if __name__ == "__main__":
    for name, svg in badges().items():
        (IMAGES / name).write_text(svg, "utf-8")
        print(IMAGES / name)
    sys.exit(0)
