from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from amp_course.patterns import Run, check_resume
from tests.patterns.checkpoints.runs import build

PARTS = ("model", "optimizer", "scaler", "scheduler")


def save(run: Run, path: Path, number: int, leave_out: str = "") -> None:
    state: dict[str, Any] = {
        part: getattr(run, part).state_dict() for part in PARTS if part != leave_out
    }
    state["grads"] = None if leave_out == "grads" else [p.grad for p in run.model.parameters()]
    state["rng"] = torch.get_rng_state()
    torch.save({**state, "next": number}, path)


def load(run: Run, path: Path, leave_out: str = "") -> int:
    state = torch.load(path, weights_only=True)
    for part in PARTS:
        if part in state:
            getattr(run, part).load_state_dict(state[part])
    for p, grad in zip(run.model.parameters(), state["grads"] or [None] * 6, strict=True):
        p.grad = grad
    if leave_out != "rng":
        torch.set_rng_state(state["rng"])
    return state["next"]


def test_a_pair_that_keeps_everything_passes() -> None:
    before = torch.get_rng_state()
    report = check_resume(lambda: build(2), save, load, steps=7, stop=3)
    assert report and "weights" in report.checked
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        # the rate lives in the optimizer's groups
        ("optimizer", {"optimizer-not-restored", "scheduler-not-restored"}),
        ("scaler", {"scaler-not-restored"}),
        ("scheduler", {"scheduler-not-restored"}),
        ("grads", {"gradients-not-restored"}),
        ("model", {"weights-not-restored", "buffers-not-restored"}),
        ("rng", {"random-not-restored"}),
    ],
)
def test_what_was_left_out_is_named(left_out: str, expected: set[str]) -> None:
    report = check_resume(
        lambda: build(2),
        lambda run, path, n: save(run, path, n, left_out),
        lambda run, path: load(run, path, left_out),
        steps=9,
        stop=5,
    )
    assert set(report.names) == expected


def test_buffers_alone() -> None:
    def load_parameters(run: Run, path: Path) -> int:
        buffers = {name: b.clone() for name, b in run.model.named_buffers()}
        number = load(run, path)
        run.model.load_state_dict(buffers, strict=False)
        return number

    assert check_resume(build, save, load_parameters).names == ("buffers-not-restored",)


def test_position_counters_and_errors() -> None:
    for other_save, other_load, name in (
        (save, lambda run, path: load(run, path) + 1, "position-not-restored"),
        (save, lambda run, path: 1 / 0, "load-raises"),
        (lambda run, path, n: 1 / 0, load, "save-raises"),
        (lambda run, path, n: None, load, "nothing-saved"),
    ):
        assert check_resume(build, other_save, other_load).names == (name,)

    def counting() -> Run:
        run, count = build(), [0]
        inner = run.step

        def step(number: int) -> None:
            count[0] += 1
            inner(count[0])  # its own counter, which begins anew

        return Run(step, run.model, run.optimizer, run.scaler, run.scheduler)

    report = check_resume(counting, save, load)
    assert report.names == ("run-differs",)
    with pytest.raises(ValueError, match="1 to 3"):
        check_resume(build, save, load, steps=4, stop=4)
