"""Kinds of faults that were called right once, and what is observed of steps that may be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from amp_course.audit import audit

Made = tuple[Callable[..., Any], dict[str, Any]]


def net(width: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def batches(rows: int = 8, number: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(rows, 6), torch.randint(3, (rows,))) for _ in range(number)]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def of(model: nn.Module, step: Callable[..., Any], **more: Any) -> Made:
    return step, {"model": model, "batches": batches(), "loss": plain} | more


def head_clipped_while_scaled() -> Made:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = plain(model, x, y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model[2].parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    return of(model, step, optimizer=optimizer, scaler=scaler)


def infs_become_zero() -> Made:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = plain(model, x, y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.masked_fill_(~p.grad.isfinite(), 0)
        scaler.step(optimizer)
        scaler.update()

    return of(model, step, optimizer=optimizer, scaler=scaler)


def hooks_double() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient * 2)
    return of(model, stepping(model, optimizer), optimizer=optimizer)


def stepping(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        plain(model, x, y).backward()
        optimizer.step()

    return step


def ignored_labels_of_unequal_number() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = batches(12)
    for (_, y), valid in zip(found, (2, 12, 12, 3), strict=True):
        y[valid:] = -100

    def step(x: Tensor, y: Tensor, last: bool) -> None:
        (plain(model, x, y) / (2 if len(x) == 12 else 1)).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    loader = torch.utils.data.DataLoader(found, batch_size=None)
    return of(model, step, optimizer=optimizer, batches=loader, accumulate=2)


def half_weights_in_adam() -> Made:
    model = net().half()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        plain(model, x.half(), y).backward()
        optimizer.step()

    return of(model, step, optimizer=optimizer, loss=None)


def own_scale_halves_and_steps() -> Made:
    model, state = net(), [2.0**10]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = plain(model, x, y)
        (loss * state[0]).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad /= state[0]
        optimizer.step()
        if not norm.isfinite():
            state[0] /= 2

    return of(model, step, optimizer=optimizer)


def scalers_crossed() -> Made:
    one, two = net(), net(9)
    first, second = (torch.optim.SGD(m.parameters(), 0.1) for m in (one, two))
    a, b = (torch.amp.GradScaler("cpu", init_scale=2.0**n) for n in (10, 8))

    def step(x: Tensor, y: Tensor) -> None:
        for model, optimizer, scales, steps in ((one, first, a, a), (two, second, b, a)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = plain(model, x, y)
            scales.scale(loss).backward()
            steps.step(optimizer)
        a.update()
        b.scale(torch.zeros(()))

    more = {"optimizer": [first, second], "scaler": [a, b], "loss": None}
    return step, {"model": [one, two], "batches": batches(), **more}


def critic_keeps_what_the_maker_left() -> Made:
    maker, critic = nn.Linear(6, 6), nn.Linear(6, 1)
    first, second = (torch.optim.SGD(m.parameters(), 0.1) for m in (maker, critic))

    def losses(x: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        return critic(made).square().mean(), (critic(x) - 1).square().mean()

    def step(x: Tensor, y: Tensor) -> None:
        first.zero_grad()
        second.zero_grad()
        losses(x, maker(x))[0].backward()
        first.step()
        losses(x, x)[1].backward()
        second.step()

    each = [
        lambda models, x, y: models[1](models[0](x)).square().mean(),
        lambda models, x, y: (models[1](x) - 1).square().mean(),
    ]
    more = {"optimizer": [first, second], "batches": batches(), "loss": each}
    return step, {"model": [maker, critic], **more}


FAULTS = {
    head_clipped_while_scaled: {"clipped-while-scaled"},
    infs_become_zero: {"overflow-not-skipped"},
    hooks_double: {"wrong-factor"},
    ignored_labels_of_unequal_number: {"mean-of-means"},
    half_weights_in_adam: {"fp16-parameters"},
    own_scale_halves_and_steps: {"overflow-not-skipped"},
    scalers_crossed: {"depends-on-scale"},
    critic_keeps_what_the_maker_left: {"never-cleared"},
}


@pytest.mark.parametrize("make", FAULTS, ids=lambda make: make.__name__)
def test_a_fault_has_its_name(make: Callable[[], Made]) -> None:
    step, arguments = make()
    report = audit(step, **arguments)
    assert set(report.names) == FAULTS[make], report


def in_no_optimizer() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        plain(model, x, y).backward()
        optimizer.step()

    return of(model, step, optimizer=optimizer)


def without_gradient() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model[2](model[:2](x).detach()), y).backward()
        optimizer.step()

    return of(model, step, optimizer=optimizer, loss=None)


def teacher_in_the_optimizer() -> Made:
    model, teacher = net(), net(9)
    optimizer = torch.optim.SGD([*model.parameters(), *teacher.parameters()], 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        mse_loss(model(x), teacher(x)).backward()
        optimizer.step()

    return of(model, step, optimizer=optimizer, loss=None)


def rate_overwritten() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    inner = stepping(model, optimizer)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.param_groups[0]["lr"] = 0.1
        inner(x, y)
        scheduler.step()

    return of(model, step, optimizer=optimizer, scheduler=scheduler)


def weights_put_back() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inner = stepping(model, optimizer)

    def step(x: Tensor, y: Tensor) -> None:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        inner(x, y)
        model.load_state_dict(before)

    return of(model, step, optimizer=optimizer)


def left_in_eval() -> Made:
    model = nn.Sequential(*net(), nn.Dropout(0.2)).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return of(model, stepping(model, optimizer), optimizer=optimizer)


def in_two_optimizers() -> Made:
    model = net()
    first = torch.optim.SGD(model.parameters(), 0.1)
    second = torch.optim.SGD(model[2].parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        plain(model, x, y).backward()
        first.step()
        plain(model, x, y).backward()
        second.step()

    return of(model, step, optimizer=[first, second], loss=None)


def all_zero() -> Made:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        (plain(model, x, y) * 0).backward()
        optimizer.step()

    return of(model, step, optimizer=optimizer, loss=None)


OBSERVED = {
    in_no_optimizer: "2.weight, 2.bias",
    without_gradient: "0.weight, 0.bias",
    teacher_in_the_optimizer: "4 parameters of no model",
    rate_overwritten: "the rate of the step is 0.1, and the scheduler's is 0.05",
    weights_put_back: "0.0% is left",
    left_in_eval: "evaluation mode",
    in_two_optimizers: "more than one optimizer",
    all_zero: "is 0",
}


@pytest.mark.parametrize("make", OBSERVED, ids=lambda make: make.__name__)
def test_what_is_unusual_is_observed(make: Callable[[], Made]) -> None:
    step, arguments = make()
    report = audit(step, **arguments)
    assert any(OBSERVED[make] in one for one in report.observations), report
