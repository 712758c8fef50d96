"""A stored notebook shows a photograph of each panel, with words for those who cannot see it."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from PIL import Image

from amp_course.authoring.photographs import WIDGET, words_of
from amp_course.bits.panel import BitExplorer
from amp_course.kit.panel_page import page_of

# Chromium by Playwright, in a process of its own: a process has one Playwright only.
_TAKE = """
import json, sys, nbformat
from amp_course.authoring.photographs import photograph_panels
book = nbformat.from_dict(json.load(sys.stdin))
photograph_panels(book)
print(json.dumps(book))
"""


def stored(panel: Any) -> nbformat.NotebookNode:
    """A notebook with a panel's output, as a kernel for authors sends it."""
    data = {WIDGET: {"model_id": "x"}, "text/plain": repr(panel), "text/html": page_of(panel)}
    output = nbformat.v4.new_output("execute_result", data=data)
    other = nbformat.v4.new_output("display_data", data={"text/html": "<b>no panel</b>"})
    cell = nbformat.v4.new_code_cell("panel", outputs=[other, output])
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A"), cell])


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")  # or it is skipped
def test_a_panel_becomes_a_picture_and_other_pages_stay() -> None:
    panel = BitExplorer()
    panel.text.value = "2049"
    book = json.dumps(stored(panel))
    done = subprocess.run(
        [sys.executable, "-c", _TAKE], input=book, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    other, output = json.loads(done.stdout)["cells"][1]["outputs"]
    assert other["data"] == {"text/html": "<b>no panel</b>"} and not other["metadata"]
    assert set(output["data"]) == {WIDGET, "text/plain", "image/png"}
    shown = output["metadata"]["image/png"]
    assert "2048 between 2047 and 2050" in shown["alt"]
    with Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"]))) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors()}
        assert picture.size == (shown["width"], shown["height"]) and len(colours) > 20
        assert picture.height > 400


def test_its_words_are_its_title_and_its_pictures() -> None:
    words = words_of(page_of(BitExplorer()))
    assert words == (
        "BitExplorer: what do these bits say? "
        "0.0999755859375 between 0.09991455078125 and 0.10003662109375."
    )
