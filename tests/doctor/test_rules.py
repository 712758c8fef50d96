"""The rules for scripts on a few records, made by hand."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_course.diagnosis.rules.training import advise_saving, advise_speed, check_modules, observe_reads
from amp_course.diagnosis.rules.updates import PairRules, check_summaries
from amp_course.watching.births import Line
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.modules import ModulesSeen
from amp_course.watching.process import Saved
from amp_course.watching.records import Training, Update
from amp_course.watching.script import Clip, Summary, Use


def clipped(norm: float, arrived: float) -> list[str]:
    """Names for three updates at a scale of 1024: gradients of norm `arrived` came, and had `norm` where they were clipped."""
    ours = frozenset({0})
    use = Use(0, 0.01, arrived, 1024.0, by_scaler=False, unscaled=False)
    clip = Clip(0, ours, 0.01, norm, ours)
    one = Summary(1, (1.0,), (1024.0,), (1024.0,), frozenset(), ours, (use,), (clip,), 0)
    return [found.name for found in check_summaries([one] * 3)]


def test_gradients_that_were_divided_by_hand_are_not_clipped_while_scaled() -> None:
    assert clipped(norm=2048.0, arrived=2048.0) == ["clipped-while-scaled"]
    assert clipped(norm=1000.0, arrived=2048.0) == ["clipped-while-scaled"]  # of half of the weights
    assert clipped(norm=2.0, arrived=2048.0) == []


def waits(file: str, source: str, device: str, folder: Path) -> tuple[list[str], list[str]]:
    """Fixes of the advice, and what is observed, of a line that reads in each of ten updates."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    watch = DoctorsWatch()
    watch.reads[Line(str(path), 1), device] = 10
    return [one.code for one in advise_speed(watch, None, 10)], [*observe_reads(watch, 10, ["AdamW"])]


def test_reads_are_told_of_own_lines_with_a_fix_that_fits(tmp_path: Path) -> None:
    assert waits("train.py", "scaler.step(optimizer)", "cuda", tmp_path)[0] == ["fused=True"]
    assert waits("a.py", "total += loss.item()", "cuda", tmp_path)[0] == ["total += loss.detach()"]
    assert waits("b.py", "if norm > 3:", "cuda", tmp_path)[0] == [""]
    hidden, (observed,) = waits("d.py", "policy = Categorical(probabilities)", "cpu", tmp_path)
    assert not hidden and "keeps the value on the device" in observed and "total" not in observed
    assert waits("site-packages/library.py", "loss.item()", "cuda", tmp_path) == ([], [])
    advice, (observed,) = waits("c.py", "print(loss.item())", "cpu", tmp_path)
    assert not advice and "line 1 of c.py" in observed


@pytest.mark.parametrize(("kind", "expected"), [("replaced", True), ("unused", False), ("copied", True)])
def test_old_weights_are_those_that_no_module_holds(kind: str, expected: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    spare = nn.Linear(2, 3)
    held = {"replaced": model, "unused": nn.ModuleList([model[1], spare]), "copied": copy.deepcopy(model)}[kind]
    optimizer = torch.optim.SGD(held.parameters(), lr=0.1)
    held = None  # type: ignore[assignment]
    if kind == "replaced":
        model[1] = nn.Linear(3, 4)
    seen, training = ModulesSeen(), Training(lambda: None, [], [optimizer], [], [])
    for _ in range(3):
        for one in model:
            seen.called(one)
        seen.end_update(Update([]), training)
    assert bool([*check_modules(seen)]) == expected


@pytest.mark.parametrize(("unused", "expected"), [(0, False), (2, True), (4, False)])
def test_micro_batches_that_no_step_used(unused: int, expected: bool) -> None:
    rules = PairRules()
    rules.groups = [(4, 0), (4 + unused, unused)] * 5 if unused < 4 else [(4, 4)] * 9
    assert bool([*rules.findings()]) == expected


@pytest.mark.parametrize(
    ("parts", "advised"),
    [
        (("model", "optimizer"), True),
        (("model", "optimizer", "scaler"), False),
        (("model",), False),
        (("nested",), True),
        (("both in a list",), False),
        (("objects",), False),
        (("trainer",), True),
    ],
)
def test_a_checkpoint_to_go_on_from_holds_the_scaler(parts: tuple[str, ...], advised: bool, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    trainer = type("Trainer", (), {})()
    trainer.model, trainer.state = model, {"optimizer": optimizer.state_dict()}
    known = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
        "nested": {"training": {"optimizers": [optimizer.state_dict()]}},
        "both in a list": [optimizer.state_dict(), scaler.state_dict()], "objects": (optimizer, scaler), "trainer": trainer,
    }  # fmt: skip
    saved, kept = Saved(), []
    assert saved.save(lambda *given: kept.append(given), {one: known[one] for one in parts}, tmp_path / "a.pt") is None
    assert len(kept) == 1 and kept[0][1] == tmp_path / "a.pt"
    found = list(advise_saving(saved.states, [scaler]))
    assert [one.name for one in found] == ["scaler-not-saved"] * advised
    assert not list(advise_saving(saved.states, [torch.amp.GradScaler("cpu", enabled=False)]))
    if advised:
        assert "test_rules.py" in found[0].place


def test_reads_are_counted_once_an_update() -> None:
    watch = DoctorsWatch()
    watch.counting = True
    loss = torch.ones(())
    with watch:
        for watch.step in range(1, 6):
            for _ in range(3 if watch.step == 2 else 0):  # as a log does, now and then
                loss.item()
            float(loss)
    seldom, each = sorted(watch.reads.values())
    assert (seldom, each) == (1, 5)
    (text,) = observe_reads(watch, 5, ["Adadelta"])
    assert "float(loss)" in text and "loss.item()" not in text
    assert not [*observe_reads(watch, 2, ["Adadelta"])]  # too few to tell
