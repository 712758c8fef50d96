"""What a screen reader is told in the course's JupyterLab:
alt texts of stored and new figures, sliders by name and in words.
"""

import nbformat
from playwright.sync_api import expect

from tests.browser.notebook import errors, open_notebook, press, run_all, save

CELLS = [
    "from amp_course.kit.style import new_figure\nnew_figure(2, 1, alt='A line that rises & "
    '"falls".\')[0]',
    """from amp_course.kit.panel import Panel, Slider

class Which(Panel):
    title = "Which ones survive?"
    def update(self, control):
        pass

spread = Slider(4, range(13), "spread", "how wide")
rate = Slider(0.1, [("0.1", 0.1), ("0.01", 0.01)], "rate")
Which(spread, rate)""",
]


def test_figures_have_alt_texts_and_sliders_have_names(lab, page):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(book, lab.folder / "notebooks" / "accessible.ipynb")
    open_notebook(page, lab.url("notebooks/accessible.ipynb"))
    run_all(page)
    expect(errors(page)).to_have_count(0)
    picture = page.locator(".jp-OutputArea-output img")
    expect(picture).to_have_attribute("alt", 'A line that rises & "falls".')

    panel = page.get_by_role("group", name="Which ones survive?")
    spread = panel.get_by_role("slider", name="spread")
    expect(spread).to_have_attribute("aria-description", "how wide")
    press(page, spread, *["ArrowLeft"] * 3)
    expect(spread).to_have_attribute("aria-valuetext", "1")
    expect(page.get_by_role("textbox", name="spread")).to_have_text("1")
    rate = page.get_by_role("slider", name="rate")
    press(page, rate, "ArrowRight")
    expect(rate).to_have_attribute("aria-valuetext", "0.01")

    save(page)
    page.reload()  # stored outputs, no kernel needed
    expect(picture).to_have_attribute("alt", 'A line that rises & "falls".', timeout=60_000)
