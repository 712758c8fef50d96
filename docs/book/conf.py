"""How Sphinx makes the book: run by tools/book.py on a folder of pages that it has prepared;
nothing is executed."""

project = "amp_course"
author = "the amp_course authors"
copyright = "the amp_course authors"

extensions = ["myst_nb"]
exclude_patterns: list[str] = []

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
html_static_path = ["_static"]
html_css_files = ["book.css"]
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
