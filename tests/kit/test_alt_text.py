"""Every figure of the course has an alt text: where it is drawn,
and in the notebooks as they are stored.
"""

import re
from pathlib import Path

import nbformat
import pytest

from amp_course.course import available
from amp_course.kit.style import new_figure

ROOT = Path(__file__).resolve().parents[2]
DRAWING = sorted(
    path for path in ROOT.glob("amp_course/*/*.py") if "new_figure(" in path.read_text("utf-8")
)
STORED = {
    chapter: sorted(
        path
        for folder in ("notebooks", "solutions")
        for path in (ROOT / folder).glob(f"*_{chapter}.ipynb")
    )
    for chapter in sorted(
        {path.parent.name for path in DRAWING} & {chapter.word for chapter in available()}
    )
}


def test_no_figure_is_made_without_one():
    with pytest.raises(TypeError, match="alt"):
        new_figure(2, 1)


def test_figures_are_made_in_one_place_only():
    """Else one could be drawn without `new_figure`, and so without an alt text."""
    calls = re.compile(r"Figure\(|import.*pyplot")
    makers = [
        path for path in ROOT.glob("amp_course/**/*.py") if calls.search(path.read_text("utf-8"))
    ]
    assert [path.name for path in makers] == ["style.py"]  # the class itself


@pytest.mark.parametrize("chapter", STORED)
def test_stored_pictures_have_one(chapter):
    assert STORED[chapter]
    for path in STORED[chapter]:
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if "image/png" in output.get("data", {}):
                    alt = output.metadata.get("image/png", {}).get("alt", "")
                    assert len(alt) > 30 and alt.endswith("."), (path.name, cell.source[:80], alt)


def test_the_alt_text_is_in_the_output_where_ipython_and_nbconvert_look_for_it():
    from IPython.core.interactiveshell import InteractiveShell

    figure, _ = new_figure(2, 1, alt="A line that rises.")
    data, metadata = InteractiveShell.instance().display_formatter.format(figure)
    assert "image/png" in data and metadata["image/png"]["alt"] == "A line that rises."
