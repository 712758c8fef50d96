"""How Sphinx makes the book: run by tools/book.py on a folder of pages that it has prepared;
nothing is executed."""

import re
from pathlib import Path

project = "amp_course"
author = "the amp_course authors"
copyright = "the amp_course authors"

extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
add_module_names = False
autodoc_member_order = "bysource"
default_role = "code"
copybutton_exclude = ".linenos, .gp, .go"
exclude_patterns = ["downloads"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None)
]  # a panel shows its still
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_ipywidgets_js: dict[
    str, dict[str, str]
] = {}  # no widgets, and so no scripts of theirs from another host

html_theme = "pydata_sphinx_theme"
html_title = "Automatic mixed precision in PyTorch"
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css", "panel_page.css"]
html_js_files = ["panel.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "amp_course"},
    "navbar_end": ["theme-switcher"],
    "show_nav_level": 2,
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": False,
}
html_sidebars = {"index": []}


def describe(app, what, name, thing, options, lines: list[str]) -> None:
    """Turn a docstring of this project into one that napoleon reads.

    A block of "name: text" is about arguments or fields, an example is code, and nothing else is
    markup but code between backticks.
    """
    text = re.sub(r"\n(?=(?:Example|Raises|Source)\b)", "\n\n", "\n".join(lines))
    described: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if re.match(r"[\w*]+(, [\w*]+)*: ", block) and not re.match("Example|Source|Raises", block):
            described += ["Args:", *(f"    {line}" for line in _escape(block).split("\n")), ""]
        elif block.startswith("Example"):
            code = block.partition(":")[2].strip().split("\n")
            described += ["Example::", "", *(f"    {line}" for line in code), ""]
        else:
            described += [*(line.strip() for line in _escape(block).split("\n")), ""]
    lines[:] = described


def _escape(text: str) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(one if one[:1] == "`" else re.sub(r"([*_|\\])", r"\\\1", one) for one in pieces)


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", describe, priority=1)  # before napoleon
