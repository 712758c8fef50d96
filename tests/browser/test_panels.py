"""Every panel of the course, for readers without a mouse, without sight, without colours,
and with less motion.
"""

import itertools

import pytest
from playwright.sync_api import expect

from tests.browser.axe import pale, show_all, violations
from tests.browser.every_panel import PANELS
from tests.browser.notebook import code_cells, errors, open_notebook, run_all
from tests.browser.pictures import THEMES, use_theme

# The controls of a panel that Tab should reach, in the order of the page.
FIND = """[...panel.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0'], [contenteditable=true]")]
    .filter(one => one.checkVisibility() && !one.disabled)"""
CONTROLS = f"""panel => {FIND}.map(one => {{
    const box = one.getBoundingClientRect();
    return {{
        what: one.outerHTML.slice(0, 120),
        role: one.getAttribute("role") ?? one.tagName.toLowerCase(),
        label: one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent,
        value: one.getAttribute("aria-valuetext"),
        pressed: one.classList.contains("widget-toggle-button") ? one.getAttribute("aria-pressed") : "",
        x: box.x + box.width / 2, y: box.y + box.height / 2, width: box.width, height: box.height,
    }};
}})"""
FOCUSED = f"panel => {FIND}.indexOf(document.activeElement)"  # -1: the focus is outside the panel
FOCUS_FIRST = f"panel => {FIND}[0].focus()"
# The contrast of the texts in pictures with the panel's background, which axe leaves to people.
PALE_TEXTS = """panel => {
    const channel = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = colour => {
        const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number);
        return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    };
    const page = light(getComputedStyle(panel.closest(".jp-ThemedContainer"), null).getPropertyValue("background-color"));
    return [...panel.querySelectorAll("svg text")].filter(one => {
        const text = light(getComputedStyle(one).fill);
        return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05) < 4.5 && /\\w/.test(one.textContent);
    }).map(one => one.outerHTML);
}"""
# A click beside a slider's handle lets it glide there, which the class `noUi-state-tap` stands for.
MOVES = """panel => panel.querySelectorAll(".noUi-target").forEach(one => one.classList.add("noUi-state-tap"))
    ?? [panel, ...panel.querySelectorAll("*")].filter(one => {
    const style = getComputedStyle(one);
    return style.animationName !== "none" || style.transitionDuration.split(", ").some(time => time !== "0s");
}).map(one => one.outerHTML.slice(0, 120))"""


def open_all(lab, page):
    """Open a notebook with one panel in each cell, and return the panels by class."""
    cells = [f"{before}\n{line}" for before, line in PANELS.values()]
    open_notebook(page, lab.write("notebooks/every_panel.ipynb", *cells))
    run_all(page)
    expect(errors(page)).to_have_count(0)
    expect(page.locator(".amp-panel")).to_have_count(len(PANELS))
    return {name: page.locator(".amp-panel").nth(place) for place, name in enumerate(PANELS)}


# All that an exercise can say, one thing a cell, so that each is read out in its turn.
TOLD = [
    "from amp_course.start import exercises\nexercises.which_dtype",
    "exercises.which_dtype.check(...)",
    "import torch\nexercises.which_dtype.check(torch.float16)",
    "exercises.which_dtype.hint()",
    "exercises.which_dtype.solution()",
    "exercises.which_dtype.check(torch.float32)",
]
# What the chapters show as HTML: reports, tables, traces, the auditor's and the doctor's pages, as
# they are stored.
STORED = """
import nbformat, pathlib
from IPython.display import display
pages = [
    output.data["text/html"]
    for path in sorted(pathlib.Path().glob("[0-9]*.ipynb"))
    for cell in nbformat.read(path, 4).cells
    for output in cell.get("outputs", [])
    if "text/html" in output.get("data", {})
]
half = len(pages) // 2"""
HALVES = [
    f"for page in pages[{half}]:\n    display({{'text/html': page}}, raw=True)"
    for half in (":half", "half:")
]


@pytest.mark.slow
def test_what_cells_show_is_for_everyone(lab, quick_page):
    page = quick_page
    open_notebook(page, lab.write("notebooks/every_output.ipynb", *TOLD, STORED, *HALVES))
    told = page.locator(".amp-announcer")
    cells = code_cells(page)
    said = ("", "Not attempted", "Not quite", "", "", "Correct.", "", "", "")
    for place, words in enumerate(said):
        page.locator(".jp-Notebook .jp-Cell.jp-mod-active").press("Shift+Enter")
        expect(cells.locator(".jp-InputPrompt").nth(place)).to_have_text(f"[{place + 1}]:")
        if words:
            expect(told).to_contain_text(words)
    expect(errors(page)).to_have_count(0)
    found = []
    for theme in THEMES:
        use_theme(page, f"JupyterLab {theme}")
        show_all(page)
        # what the exercise said, then half the pages and the other half
        for shown in (range(6), [7], [8]):
            cells.nth(shown[0]).evaluate("cell => cell.scrollIntoView()")
            places = ", ".join(f"[data-windowed-list-index='{place}']" for place in shown)
            faint = pale(page, f":is({places}) .jp-OutputArea-output")
            found += [f"{theme}: pale: {html}" for html in faint]
        page.set_viewport_size({"width": 1500, "height": 1000})
    found += violations(page)
    assert not found, "\n".join(found)


def test_every_panel_is_for_everyone(lab, quick_page):
    page = quick_page
    panels = open_all(lab, page)
    found = []
    for theme in THEMES:
        use_theme(page, f"JupyterLab {theme}")
        show_all(page)
        found += [f"{theme}: pale: {html}" for html in pale(page, ".amp-panel")]
        for name, panel in panels.items():
            faint = panel.evaluate(PALE_TEXTS)
            found += [f"{theme}: {name}: pale in a picture: {html}" for html in faint]
        page.set_viewport_size({"width": 1500, "height": 1000})
        for name, panel in panels.items():
            found += [f"{theme}: {name}: {fault}" for fault in ill_shaped(panel, theme)]
    found += violations(page)
    use_theme(page, "JupyterLab Light")
    page.emulate_media(reduced_motion="reduce")
    for name, panel in panels.items():
        faults = [*faults_of(panel.evaluate(CONTROLS)), *walk_again(page, panel)]
        faults += [f"moves: {html}" for html in panel.evaluate(MOVES)]
        found += [f"{name}: {fault}" for fault in faults]
    assert not found, "\n".join(found)

    # What a control changes is told by the one live region that stays, when the slider has come to
    # rest.
    told = page.locator(".amp-announcer")
    centre = panels["RangeExplorer"].get_by_role("slider", name="centre, 2 to the")
    centre.press("ArrowLeft")
    expect(told).to_contain_text("lost")
    expect(panels["RangeExplorer"].get_by_role("status")).to_have_attribute("aria-live", "off")
    explorer = panels["BitExplorer"]
    bit, number = explorer.locator(".amp-bit").first, explorer.get_by_role("textbox").first
    expect(bit).to_have_attribute("aria-pressed", "false")
    bit.press("Space")
    expect(bit).to_have_attribute("aria-pressed", "true")
    expect(explorer.locator(".amp-value")).to_have_text("−0.0999755859375")
    for typed, words in (("2049", "rounded to 2048"), ("1,5", "Nothing changed.")):
        number.fill(typed)
        number.press("Enter")
        expect(explorer.locator(".amp-message")).to_contain_text(words)
        expect(explorer.locator(".amp-value")).to_have_text("2048")


def ill_shaped(panel, theme):
    """Yield how a panel wastes the page or leaves the screen,
    and a menu whose arrow is dark on dark.
    """
    size = panel.bounding_box()
    room = panel.evaluate("one => one.closest('.jp-OutputArea-output').clientWidth")
    if size["height"] > 760 or size["width"] < min(room, 1092) - 8:
        yield f"{size['width']:.0f} × {size['height']:.0f}, where {room} × 760 are seen at once"
    for arrow in panel.locator("select").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundImage)"
    ):
        if ("%23ddd" in arrow) != (theme == "Dark"):
            yield f"a menu with the arrow {arrow[:60]}"


def faults_of(controls):
    """Yield what is wrong with a panel's controls."""
    for one in controls:
        if not one["label"].strip() or "null" in one["label"]:
            yield f"no name: {one['what']}"
        if one["pressed"] is None:
            yield f"no state: {one['what']}"
        if one["role"] == "slider" and not is_short(one["value"]):
            yield f"no short value: {one['what']}"
        size = min(one["width"], one["height"])
        if size < 23.99:  # a slider's handle may lie between two pixels
            yield f"{size} pixels, which is under 24: {one['what']}"


def is_short(value):
    return value is not None and 0 < len(value) <= 12


def walk_again(page, panel):
    """Walk through a panel, and once more if that goes wrong:
    a busy JupyterLab can take the focus on the way.
    """
    return [*walk(page, panel)] and [*walk(page, panel)]


def walk(page, panel):
    """Go through a panel by Tab, and out at both ends; yield what is wrong with the way."""
    controls = panel.evaluate(CONTROLS)
    panel.evaluate(FOCUS_FIRST)
    way = [panel.evaluate(FOCUSED)]
    while way[-1] >= 0 and len(way) <= len(controls):
        page.keyboard.press("Tab")
        way.append(panel.evaluate(FOCUSED))
    if way != [*range(len(controls)), -1]:
        yield f"Tab goes {way}"
    for here, following in itertools.pairwise(controls):
        same_row = abs(following["y"] - here["y"]) < 14
        if following["x"] <= here["x"] if same_row else following["y"] < here["y"]:
            yield f"{following['what']} comes after {here['what']}, and is before it on the page"
    panel.evaluate(FOCUS_FIRST)
    page.keyboard.press("Shift+Tab")
    if panel.evaluate(FOCUSED) != -1:
        yield "Shift+Tab does not leave the panel"
