"""Every notebook run whole and pictured, for people to look at: `make screenshots`."""

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.notebook import errors, open_notebook, restart_and_run_all
from tests.browser.server import ROOT

NOTEBOOKS = sorted(
    path.relative_to(ROOT)
    for folder in ("notebooks", "exercises")
    for path in ROOT.glob(f"{folder}/*.ipynb")
)


@pytest.mark.screenshots
@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_notebook_runs_whole(lab, page, portray, path):
    meant = [
        c
        for c in nbformat.read(ROOT / path, 4).cells
        if "raises-exception" in c.metadata.get("tags", [])
    ]
    open_notebook(page, lab.url(str(path)))
    print(f"{path}: Run All in {restart_and_run_all(page):.1f} s")
    expect(errors(page)).to_have_count(len(meant))
    portray(None, f"{path.stem}_{path.parent}")
