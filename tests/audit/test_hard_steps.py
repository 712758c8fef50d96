"""Steps that once were accused, or left something changed: each is sound, and hard for a judge in its own way."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.audit import audit


class Parts:
    """A sound step in fp16, to be made unusual in one way."""

    def __init__(
        self, make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, width: int = 12, **scaler: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        self.optimizer = make(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, **scaler)
        self.batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return cross_entropy(self.model(x), y)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.forward(x, y)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def audit(self, step: Callable[..., Any] | None = None, **more: Any) -> Any:
        objects = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "batches": self.batches}
        return audit(step or self.step, **(objects | more))


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


class ClipsItself(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


def test_an_optimizer_that_calls_its_base_class_steps_once() -> None:
    torch.optim.Adam(nn.Linear(1, 1).parameters())  # torch hooks a class when its first optimizer is made
    assert Parts(ClipsItself).audit(loss=plain).names == ()


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_a_sample_of_a_large_models_gradient_accuses_nobody(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_course.watching.records._MOST", 64)
    parts = Parts(width=64)

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        parts.scaler.scale(parts.forward(x, y)).backward()
        parts.scaler.unscale_(parts.optimizer)
        nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0, norm_type=norm)
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()

    assert parts.audit(step, max_norm=1.0, loss=plain).names == ()


def test_a_scale_by_hand_is_measured_on_a_sample_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_course.watching.records._MOST", 64)
    parts = Parts(width=64)

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        (parts.forward(x, y) * 1024).backward()
        for p in parts.model.parameters():
            p.grad /= 1024
        parts.optimizer.step()

    report = parts.audit(step, scaler=None)
    assert report.names == () and any("scaled by hand" in one for one in report.observations), report


@pytest.mark.parametrize("own_mean", [True, False])
def test_whole_groups_prove_nothing_of_a_short_one(own_mean: bool) -> None:
    parts, losses = Parts(), []

    def step(x: Tensor, y: Tensor, last: bool = False) -> None:
        losses.append(1)
        parts.scaler.scale(parts.forward(x, y) / 2).backward()
        if last:
            if own_mean:
                for p in parts.model.parameters():
                    p.grad *= 2 / len(losses)
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
            parts.optimizer.zero_grad()
            losses.clear()

    loader = torch.utils.data.DataLoader(parts.batches, batch_size=None)
    whole = parts.audit(step, accumulate=2, loss=plain, batches=loader)
    assert whole.names == () and any("ended early" in one for one in whole.observations) is not own_mean, whole
    for batches in (parts.batches, parts.batches[:3]):  # a list is a sample of an epoch
        short = parts.audit(step, accumulate=2, loss=plain, batches=batches)
        assert short.names == (() if own_mean else ("last-group-mean",)), short


@pytest.mark.parametrize("factor", [1.001, 1.05, 2.0])
def test_a_scale_that_grows_by_little_is_no_other_gradient(factor: float) -> None:
    assert Parts(growth_factor=factor).audit(loss=plain).names == ()


def test_weights_that_the_step_freezes_are_left_out() -> None:
    parts, calls = Parts(), itertools.count()

    def step(x: Tensor, y: Tensor) -> None:
        parts.model[0].requires_grad_(next(calls) > 0)
        parts.step(x, y)

    assert parts.audit(step, loss=plain).names == ()


def test_a_loss_with_a_generator_of_its_own_does_not_make_the_step_unsteady() -> None:
    parts, generator = Parts(), torch.Generator()

    def noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x * (torch.rand(x.shape, generator=generator) > 0.5)), y)

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            value = noisy(parts.model, x, y)
        parts.scaler.scale(value).backward()
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()

    report = parts.audit(step, loss=noisy)
    assert report.names == () and {"loss scale", "gradient"} <= set(report.right), report


def test_noise_of_ones_own_generator_is_no_other_loss() -> None:
    parts, generator = Parts(), torch.Generator()

    def step(x: Tensor, y: Tensor) -> None:
        parts.step(x + torch.randn(x.shape, generator=generator), y)

    report = parts.audit(step, loss=plain)
    assert report.names == () and "random" in dict(report.not_checked)["gradient"], report


def test_a_mode_that_the_step_sets_and_sets_back_counts() -> None:
    parts = Parts()
    parts.model.insert(1, nn.BatchNorm1d(12))
    parts.optimizer = torch.optim.SGD(parts.model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> None:
        parts.model.train()
        parts.step(x, y)
        parts.model.eval()

    assert parts.audit(step, loss=plain).names == ()
    parts.model.eval()
    assert parts.audit(step, loss=plain).names == ()


def test_time_major_batches_do_not_tell_how_many_examples_they_hold() -> None:
    parts = Parts()
    parts.batches = [(torch.randn(length, 8, 6), torch.randint(0, 3, (8,))) for length in (4, 9, 4, 9)]

    def forward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x.mean(0)), y)

    def step(x: Tensor, y: Tensor, last: bool) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            value = forward(parts.model, x, y) / 2
        parts.scaler.scale(value).backward()
        if last:
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
            parts.optimizer.zero_grad()

    loader = torch.utils.data.DataLoader(parts.batches, batch_size=None)
    report = parts.audit(step, loss=forward, accumulate=2, batches=loader)
    assert report.names == () and "unequal micro-batches" not in report.right, report


def test_double_weights_that_move_by_little_do_move() -> None:
    parts = Parts()
    parts.model.double()
    parts.optimizer = torch.optim.SGD(parts.model.parameters(), lr=1e-10)
    parts.batches = [(x.double(), y) for x, y in parts.batches]

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        cross_entropy(parts.model(x), y).backward()
        parts.optimizer.step()

    assert parts.audit(step, scaler=None).names == ()


def test_an_optimizer_in_bf16_beside_one_in_fp16_needs_no_skipping() -> None:
    parts, other = Parts(), Parts()

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        other.optimizer.zero_grad()
        parts.scaler.scale(parts.forward(x, y)).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = cross_entropy(other.model(x), y)
        value.backward()
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
        other.optimizer.step()

    report = parts.audit(step, model=[parts.model, other.model], optimizer=[parts.optimizer, other.optimizer])
    assert report.names == (), report


def test_a_loader_without_a_length_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return itertools.cycle(parts.batches)

    assert parts.audit(batches=torch.utils.data.DataLoader(Endless(), batch_size=None)).names == ()


def test_modules_methods_of_lists_and_arrays_of_the_readers_are_put_back(tmp_path: Path) -> None:
    parts, losses, objects = Parts(), [], np.array([[]], dtype=object)
    objects = np.empty(1, dtype=object)
    objects[0] = []
    (tmp_path / "my_counters.py").write_text(
        "count, history = 0, []\n\ndef note():\n    global count\n    count += 1\n"
    )
    module = types.ModuleType("my_counters")
    module.__file__ = str(tmp_path / "my_counters.py")
    exec(compile((tmp_path / "my_counters.py").read_text(), module.__file__, "exec"), vars(module))
    sys.modules["my_counters"] = module
    record, pairs = losses.append, zip(list(range(100)), list(range(100)), strict=True)

    def step(x: Tensor, y: Tensor) -> None:
        parts.step(x, y)
        module.note()
        module.history.append(1)
        record(1)
        objects[0].append(1)
        next(pairs)

    try:
        report = parts.audit(step)
    finally:
        del sys.modules["my_counters"]
    assert report.names == () and report.not_put_back == (), report
    assert (module.count, module.history, losses, objects[0], next(pairs)) == (0, [], [], [], (0, 0))


def test_an_object_that_cannot_be_looked_into_is_named() -> None:
    class Settings:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("not for you")

    parts, settings = Parts(), Settings()

    def step(x: Tensor, y: Tensor) -> None:
        assert settings is not None
        parts.step(x, y)

    report = parts.audit(step)
    assert report.names == () and "settings" in dict(report.not_put_back), report


def test_what_changes_between_backward_and_step_is_no_other_loss() -> None:
    parts = Parts()

    def step(x: Tensor, y: Tensor) -> None:
        parts.optimizer.zero_grad()
        parts.scaler.scale(parts.forward(x, y)).backward()
        parts.scaler.unscale_(parts.optimizer)
        for p in parts.model.parameters():
            if p.dim() > 1:
                p.grad -= p.grad.mean(1, keepdim=True)  # gradient centralization
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()

    report = parts.audit(step, loss=plain)
    assert report.names == () and "backward()" in dict(report.not_checked)["gradient"], report
