"""Run axe over a page of JupyterLab, for the rules of WCAG 2.2 A and AA."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.notebook import settle

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
OURS = (
    "xpath=ancestor-or-self::*[contains(@class, 'jp-OutputArea-output')]"  # what a cell has put out
)
TALLEST = 12_000  # pixels; Chromium cannot draw windows of any height

# What axe finds in JupyterLab 4 and its editor whatever a notebook holds: rule → where
JUPYTERLAB = {
    "aria-allowed-attr": "jp-button",  # custom elements without a role, which tell a pressed state
    "aria-input-field-name": ".cm-content",  # a cell's editor is a text box without a name
    # the notebook is a feed, and its cells are no articles
    "aria-required-children": ".jp-WindowedPanel-viewport",
}


def show_all(page: Page) -> None:
    """Make the window as tall as the notebook, so that axe sees all of it.

    JupyterLab's body has no height and hides what overflows it: axe takes the whole page for
    hidden, and looks at no colours.
    """
    page.evaluate("document.body.style.height = '100vh'")
    settle(page)
    height = page.locator(".jp-WindowedPanel-viewport").evaluate("element => element.offsetHeight")
    page.set_viewport_size({"width": 1500, "height": min(int(height) + 200, TALLEST)})
    settle(page)


def violations(page: Page) -> list[str]:
    """Return the rule and the HTML of each element of what is wrong on the page,
    but for colours and for what is JupyterLab's.
    """
    found = _run(page, None, {"runOnly": WCAG, "rules": {"color-contrast": {"enabled": False}}})
    told = [(rule["id"], node["html"]) for rule in found["violations"] for node in rule["nodes"]]
    told = [one for one in told if not _is_jupyterlabs(page, *one)]
    unsure = [(rule["id"], node) for rule in found["incomplete"] for node in rule["nodes"]]
    ours = [
        (rule, node["html"])
        for rule, node in unsure
        if page.locator(node["target"][0]).locator(OURS).count()
    ]
    return [f"{rule}: {html}" for rule, html in [*told, *ours]]


def pale(page: Page, within: str) -> list[str]:
    """Return the HTML of elements whose contrast is too low; within: a selector.
    axe cannot judge texts in pictures.
    """
    context = {"include": [[within]], "exclude": [[f"{within} svg"]]}
    found = _run(page, context, {"runOnly": {"type": "rule", "values": ["color-contrast"]}})
    compared = sum(len(rule["nodes"]) for rule in found["passes"] + found["violations"])
    assert compared >= 10, "axe compared no colours: is the page hidden from it?"
    return [node["html"] for rule in found["violations"] for node in rule["nodes"]]


def _run(page: Page, context: Any, options: Any) -> Any:
    return Axe().run(page, context=context, options=options).response


def _is_jupyterlabs(page: Page, rule: str, html: str) -> bool:
    """Return True if the element with this opening tag is one of `JUPYTERLAB`."""
    matches = """([html, selector]) => {
        const box = document.createElement("template");
        box.innerHTML = html;
        return box.content.firstElementChild.matches(selector);
    }"""
    return rule in JUPYTERLAB and page.evaluate(matches, [html, JUPYTERLAB[rule]])
