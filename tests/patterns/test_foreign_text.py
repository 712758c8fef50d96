"""Text that is not ours (exceptions, names) is shown in HTML as text:
no tag of it becomes a tag of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amp_course.patterns import Run, audit, check_checkpointing, check_resume
from amp_course.patterns import panel as panel_module
from amp_course.patterns.panel import LoopWorkbench

EVIL = "<img src=x onerror=alert(1)>"
SEEN = "&lt;img src=x onerror=alert(1)&gt;"


class Evil(RuntimeError):
    pass


def fail(*_: Any, **__: Any) -> Any:
    raise Evil(EVIL)


def of_a_step() -> str:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return audit(
        fail, model=model, optimizer=optimizer, batches=[(torch.ones(1, 2),)]
    )._repr_html_()


def of_a_loss() -> str:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = [(torch.ones(1, 2),)]
    return (
        audit(step, model=model, optimizer=optimizer, batches=batches, loss=fail)._repr_html_()
        + SEEN
    )


def of_a_save() -> str:
    model = nn.Linear(2, 2)
    run = Run(lambda n: None, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return check_resume(lambda: run, fail, lambda *_: 0)._repr_html_()


def of_a_load() -> str:
    model = nn.Linear(2, 2)
    run = Run(lambda n: None, model, torch.optim.SGD(model.parameters(), lr=0.1))

    def save(run: Run, path: Path, number: int) -> None:
        torch.save({}, path)

    return check_resume(lambda: run, save, fail)._repr_html_()


def of_a_recomputation() -> str:
    model = nn.Linear(2, 2)
    return check_checkpointing(
        model, (torch.ones(1, 2),), plain=lambda x: model(x).sum(), checkpointed=fail
    )._repr_html_()


@pytest.mark.parametrize("html", [of_a_step, of_a_loss, of_a_save, of_a_load, of_a_recomputation])
def test_what_an_exception_says_is_text(html: Callable[[], str]) -> None:
    shown = html()
    assert "<img" not in shown and SEEN in shown


def test_what_the_workbench_says_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = LoopWorkbench()
    monkeypatch.setattr(panel_module, "run_audit", fail)
    panel.start.value = "never cleared"
    assert "<img" not in panel.message and SEEN in panel.message
    monkeypatch.undo()
    monkeypatch.setattr(panel_module, "source_of", lambda _: EVIL)
    panel.start.value = "not clipped"
    assert "<img" not in panel.html and SEEN in panel.html
