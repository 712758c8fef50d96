"""The rules for scripts on a few records, made by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from amp_course.diagnosis.rules.calls import check_precision
from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.diagnosis.rules.micro_batches import MicroBatches
from amp_course.diagnosis.rules.training import (
    advise_16_bits,
    advise_ratio,
    advise_saving,
    advise_speed,
    check_modules,
    observe_reads,
)
from amp_course.doctor.examiner import Examiner
from amp_course.watching import taps
from amp_course.watching.counting import CountingWatch
from amp_course.watching.fp32_shadow import Twin
from amp_course.watching.modules import CalledModules
from amp_course.watching.origins import Line
from amp_course.watching.process import CreatedObjects, SavedStates
from amp_course.watching.records import Backward, Call, Region, Training, Update


def test_an_update_that_is_missing_once_is_not_called_missing_for_ever() -> None:
    training = Training(lambda: None, [], [torch.optim.SGD([torch.zeros(1)])], [], [])
    before = Update([1.0], [Call(0, "unscale", 0, 0), Call(0, "scaler.step", 0, 0)])
    error = RuntimeError("unscale_() is being called after step().")
    last = Update([1.0], [Call(0, "unscale", 0, 0)], error=error)
    found = check_error([before, last], training, 1)
    assert found.name == "update-missing" and "never" not in found.cause


def micro_batch(scaler: torch.amp.GradScaler, last: bool) -> None:
    if last:
        scaler.step(torch.optim.SGD([torch.zeros(1)]))
    scaler.update()


def forgotten_step(scaler: torch.amp.GradScaler, last: bool) -> None:
    # scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(
    ("step", "name"), [(micro_batch, "update-before-step"), (forgotten_step, "never-stepped")]
)
def test_an_update_without_a_step(step: Callable[..., None], name: str) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError) as raised:
        step(scaler, last=False)
    update = Update([1.0], [Call(0, "update", scaler=0)], error=raised.value)
    training = Training(lambda: None, [], [torch.optim.SGD([torch.zeros(1)])], [], [])
    assert check_error([update], training, 1).name == name


@pytest.mark.parametrize(
    ("known", "end"), [(0, "never moved."), (2, "never moved: `p`, `p` and more.")]
)
def test_parameters_without_a_gradient_are_named_if_they_have_names(known: int, end: str) -> None:
    weights = [torch.zeros(1, requires_grad=True) for _ in range(6)]
    training = Training(lambda: None, [], [torch.optim.SGD(weights)], [], [])
    names = {p: ("weight", "p") for p in weights[:known]}
    modules = SimpleNamespace(names=names)
    watchers = SimpleNamespace(watch=SimpleNamespace(modules=modules), training=training)
    examiner = SimpleNamespace(watchers=watchers, with_gradient={id(weights[-1])})
    (text,) = Examiner._without_gradient(cast(Any, examiner), [0])
    assert text.endswith(end)


def waits(file: str, source: str, device: str, folder: Path) -> tuple[list[str], list[str]]:
    """The advised code, and the observations, for a line that reads in each of ten updates."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    watch = CountingWatch()
    watch.reads[Line(str(path), 1), device] = 10
    advice = [one.code for one in advise_speed(watch, None, 10)]
    return advice, [*observe_reads(watch, 10, ["AdamW"])]


def test_reads_in_own_lines_get_a_fix_that_fits(tmp_path: Path) -> None:
    assert waits("train.py", "scaler.step(optimizer)", "cuda", tmp_path)[0] == ["fused=True"]
    assert waits("a.py", "total += loss.item()", "cuda", tmp_path)[0] == ["total += loss.detach()"]
    assert waits("b.py", "if norm > 3:", "cuda", tmp_path)[0] == [""]
    hidden, (observed,) = waits("d.py", "picked = choose(probabilities)", "cpu", tmp_path)
    assert not hidden and "keeps the value on the device" in observed and "total" not in observed
    assert waits("site-packages/library.py", "loss.item()", "cuda", tmp_path) == ([], [])
    advice, (observed,) = waits("c.py", "print(loss.item())", "cpu", tmp_path)
    assert not advice and "line 1 of c.py" in observed


@pytest.mark.parametrize(
    ("kind", "expected"), [("replaced", True), ("unused", False), ("copied", True)]
)
def test_old_weights_are_those_that_no_module_holds(kind: str, expected: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    spare = nn.Linear(2, 3)
    optimized = {
        "replaced": lambda: model,
        "unused": lambda: nn.ModuleList([model[1], spare]),
        "copied": lambda: copy.deepcopy(model),
    }[kind]()
    optimizer = torch.optim.SGD(optimized.parameters(), lr=0.1)
    del optimized
    if kind == "replaced":
        model[1] = nn.Linear(3, 4)
    modules, training = CalledModules(), Training(lambda: None, [], [optimizer], [], [])
    for _ in range(3):
        for one in model:
            modules.called(one)
        modules.end_update(Update([]), training)
    assert bool([*check_modules(modules)]) == expected


@pytest.mark.parametrize(("unused", "expected"), [(0, False), (2, True), (4, False)])
def test_micro_batches_that_no_step_used(unused: int, expected: bool) -> None:
    rules = MicroBatches()
    rules.groups = [(4, 0), (4 + unused, unused)] * 5 if unused < 4 else [(4, 4)] * 9
    assert bool([*rules.findings()]) == expected


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (["model"], []),
        (["model", "optimizer"], ["scaler-not-saved", "schedule-not-saved"]),
        (["optimizer", "scaler"], ["schedule-not-saved"]),
        (["optimizer", "schedule"], ["scaler-not-saved"]),
        (["optimizer", "scaler", "schedule"], []),
        (["schedule"], ["optimizer-not-saved"]),
        (["nested", "scaler"], ["schedule-not-saved"]),
        (["in a list", "schedule"], []),
        (["objects"], []),
        (["trainer", "schedule"], ["scaler-not-saved"]),
    ],
)
@pytest.mark.parametrize("resumed", ["", "by its argument", "by its attribute"])
def test_a_checkpoint_to_go_on_from_is_complete(
    saved: list[str], expected: list[str], resumed: str
) -> None:
    model, keep = nn.Linear(2, 2), SavedStates()
    made = CreatedObjects(CountingWatch(), lambda: None)
    with taps.listening({"new_scheduler": made.new_scheduler}):
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
        if resumed == "by its argument":  # the name of it counts
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, last_epoch=-1)
        else:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    if resumed == "by its attribute":
        schedule.last_epoch = 5
    made.optimizers, made.scalers = [optimizer], [scaler]
    states = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "schedule": schedule.state_dict(),
        "nested": {"training": {"optimizers": [optimizer.state_dict()]}},
        "in a list": [optimizer.state_dict(), scaler.state_dict()],
        "objects": (optimizer, scaler, schedule),
        "trainer": SimpleNamespace(model=model, state={"optimizer": optimizer.state_dict()}),
    }
    keep.save(lambda *_: None, {one: states[one] for one in saved})
    found = [*advise_saving(keep.states, made)]
    wanted = [name for name in expected if not (resumed and name == "schedule-not-saved")]
    assert [one.name for one in found] == wanted
    assert all("test_rules.py" in one.place for one in found)
    made.scalers = [torch.amp.GradScaler("cpu", enabled=False)]
    names = [one.name for one in advise_saving(keep.states, made)]
    assert names == [name for name in wanted if name != "scaler-not-saved"]


BF16, FP32 = {torch.bfloat16}, {torch.float32}


@pytest.mark.parametrize(
    ("ratios", "old", "new", "expected"),
    [
        ([2e-3] * 8, BF16, FP32, True),
        ([1e-7, 2e-3] * 4, BF16, FP32, False),  # 1 while the policy is the old one
        ([2e-3] * 8, BF16, BF16, False),
        ([2e-3] * 8, BF16 | FP32, FP32, False),  # evaluated without autocast, too
        ([0.9] * 8, BF16, FP32, False),  # some other exponential
        ([], BF16, FP32, False),
    ],
)
def test_a_ratio_that_is_never_1_is_of_two_precisions(ratios, old, new, expected) -> None:
    assert bool([*advise_ratio(ratios, [{False: old, True: new}])]) == expected


@pytest.mark.parametrize(
    ("groups", "share", "expected"),
    [
        ([(4, 0)] * 7 + [(6, 0)], 0.25, ["last-group-mean"]),
        ([(4, 0)] * 7 + [(2, 0)], 0.25, ["last-group-mean"]),
        ([(4, 0)] * 8, 0.25, []),
        ([(4, 0)] * 7 + [(6, 0)], 0.5, []),  # a factor of the loss's own
        ([(1, 0)] * 7 + [(2, 0)], 1.0, []),
        ([(2, 0), (4, 0), (3, 0)], 0.25, []),  # none is the usual number
    ],
)
def test_groups_of_other_sizes_under_one_divisor(groups, share: float, expected: list[str]) -> None:
    rules = MicroBatches()
    rules.groups, rules.shares = groups, [share] * sum(passes for passes, _ in groups)
    assert [one.name for one in rules.findings()] == expected


def test_weights_and_state_in_16_bits_have_nothing_in_fp32() -> None:
    def plain(optimizer: torch.optim.Optimizer) -> bool:
        twin = Twin(optimizer)
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        optimizer.step()
        lost = twin.lost()
        assert lost is not None
        advised = advise_16_bits([replace(lost, steps=8, moved=1.0, wanted=1.0)])
        assert bool([*advised]) == lost.plain
        return lost.plain

    class Own(torch.optim.AdamW):  # which may round at random
        pass

    assert plain(torch.optim.AdamW(nn.Linear(2, 2).bfloat16().parameters()))
    assert not plain(Own(nn.Linear(2, 2).bfloat16().parameters()))
    mixed = nn.Linear(2, 2).bfloat16()
    mixed.bias = nn.Parameter(mixed.bias.float())
    assert not plain(torch.optim.AdamW(mixed.parameters()))


def island(
    device: str, *, enabled: bool = False, inside: bool = True, casts: bool = True
) -> list[str]:
    """Names for a region that was entered in an update of a training on the CPU."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(lambda: None, [model], [optimizer], [], [])
    model(torch.ones(1, 2)).sum().backward()
    region = Region(0, device, enabled, torch.bfloat16, inside, casts)
    update = Update([], [region, Backward(0, arrived={0: training.slots[0].current()})])
    return [one.name for one in check_precision(update, None, training)]


def test_an_island_is_for_the_device_of_the_parameters() -> None:
    assert island("cuda") == ["island-of-another-device"]
    assert not island("cpu")
    assert not island("cuda", inside=False) and not island("cuda", enabled=True)
    assert not island("cuda", casts=False)  # sums and products of fp32 tensors, say


def test_reads_of_one_statement_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = Categorical(probs)\n\nprint(loss.item(),\n    norm.item())\n")
    watch = CountingWatch()
    for number in (1, 3, 4):
        watch.reads[Line(str(path), number), "cpu"] = 10
    (text,) = observe_reads(watch, 10, ["SGD"])
    assert "lines 3 to 4 of train.py, `print(loss.item(),` and line 1 of train.py" in text
    assert "set_default_validate_args(False)" in text and "total += loss.detach()" in text


def test_reads_are_counted_once_an_update() -> None:
    watch = CountingWatch()
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
