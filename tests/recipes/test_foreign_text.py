"""Text that is not ours (exceptions, names of recipes) is shown in HTML as text:
no tag of it becomes a tag of the page.
"""

from dataclasses import replace

import torch
from torch import nn

from amp_course.recipes import O0, RecipeTable, measure
from amp_course.recipes import panel as panel_module
from amp_course.recipes.panel import RecipeExplorer
from amp_course.recipes.panel_html import recipe_view
from amp_course.recipes.phrasebook import AMP, Phrasebook

EVIL = "<img src=x onerror=alert(1)>"
SEEN = "&lt;img src=x onerror=alert(1)&gt;"


def test_what_the_explorer_says_is_text(monkeypatch):
    panel = RecipeExplorer()

    def fail(*_, **__):
        raise RuntimeError(EVIL)

    monkeypatch.setattr(panel_module, "measure", fail)
    panel.recipe.value = "o3"
    assert "<img" not in panel.message and SEEN in panel.message
    reached = panel.reach
    row = replace(panel.measured, label=EVIL, scaling=EVIL, weights={EVIL: 4}, batch_norm={EVIL: 4})
    shown = recipe_view((row, reached), (row, reached), 10**9, EVIL)
    assert "<img" not in shown and shown.count(SEEN) > 4


def test_tables_and_the_phrasebook(monkeypatch):
    row = measure(O0(), nn.Linear(2, 2), torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    table = RecipeTable((replace(row, label=EVIL, scaling=EVIL, weights={EVIL: 4}),))._repr_html_()
    assert "<img" not in table and table.count(SEEN) == 3
    library = replace(
        AMP.libraries[0], name=EVIL, version=EVIL, source=f'"{EVIL}', on_cpu={}, not_run=EVIL
    )
    phrase = replace(AMP.phrases[0], thing=EVIL, words={library.slug: f"`{EVIL}` {EVIL}"})
    shown = Phrasebook((library,), (phrase,))._repr_html_()
    assert "<img" not in shown and 'href="&quot;' in shown
