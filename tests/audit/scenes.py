"""Training steps, right and wrong, on a tiny model: what `audit` is held against. Each maker takes a `Scene`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

Step = Callable[..., Any]


class Scene:
    """Two small models with all that a step may need; `audit(step, **scene.objects)`."""

    def __init__(
        self,
        dtype: torch.dtype | None = torch.float16,
        sizes: tuple[int, ...] = (8, 8, 8, 8),
        init_scale: float = 2.0**10,
    ) -> None:
        torch.manual_seed(3)
        self.dtype = dtype
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        self.other = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.second = torch.optim.Adam(self.other.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.batches = [(torch.randn(n, 16), torch.randint(0, 5, (n,))) for n in sizes]
        self.objects: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "batches": self.batches,
            "loss": loss_of,
        }

    def autocast(self) -> Any:
        return nullcontext() if self.dtype is None else torch.autocast("cpu", dtype=self.dtype)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast():
            return cross_entropy(self.model(x), y)

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def two_losses(models: list[nn.Module], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (model(x) for model in models)
    return cross_entropy(2 * a + 3 * b, y), cross_entropy(3 * a - 5 * b, y)


def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + torch.stack([g.square().sum() for g in gradients]).sum().sqrt()


# ---- right ----


def plain(s: Scene) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = s.loss(x, y)
        s.scaler.scale(loss).backward()
        s.finish()
        return loss.detach()

    return step


def clears_first(s: Scene) -> Step:
    def step(x: Tensor, y: Tensor) -> None:
        s.optimizer.zero_grad(set_to_none=False)
        s.scaler.scale(s.loss(x, y)).backward()
        s.scaler.step(s.optimizer)
        s.scaler.update()

    return step


def clips(s: Scene) -> Step:
    s.objects["max_norm"] = 1.0

    def step(x: Tensor, y: Tensor) -> None:
        s.scaler.scale(s.loss(x, y)).backward()
        s.scaler.unscale_(s.optimizer)
        s.clip()
        s.finish()

    return step


def clips_by_hand(s: Scene) -> Step:
    """Clipping of scaled gradients to a norm that is scaled too is the same thing."""
    s.objects["max_norm"] = 1.0

    def step(x: Tensor, y: Tensor) -> None:
        s.scaler.scale(s.loss(x, y)).backward()
        nn.utils.clip_grad_norm_(s.model.parameters(), s.scaler.get_scale())
        s.finish()

    return step


def accumulates(s: Scene) -> Step:
    s.objects |= {"accumulate": 2, "max_norm": 1.0}
    seen = 0

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal seen
        s.scaler.scale(s.loss(x, y) / 2).backward()
        seen += 1
        if seen % 2 == 0:
            s.scaler.unscale_(s.optimizer)
            s.clip()
            s.finish()

    return step


def divides_at_the_end(s: Scene) -> Step:
    """The sum over all examples, divided once by their number: right for micro-batches of any size and number."""
    s.objects["accumulate"] = 3
    examples = 0

    def step(x: Tensor, y: Tensor, *, last: bool) -> None:
        nonlocal examples
        with s.autocast():
            loss = cross_entropy(s.model(x), y, reduction="sum")
        s.scaler.scale(loss).backward()
        examples += len(x)
        if last:
            s.scaler.unscale_(s.optimizer)
            for p in s.model.parameters():
                assert p.grad is not None
                p.grad /= examples
            examples = 0
            s.finish()

    return step


def keeps_its_own_sum(s: Scene) -> Step:
    """Gradients put aside after each micro-batch, and given back for the step."""
    s.objects["accumulate"] = 2
    kept: list[list[Tensor]] = []

    def step(x: Tensor, y: Tensor, last: bool = False) -> None:
        parameters = list(s.model.parameters())
        s.scaler.scale(s.loss(x, y)).backward()
        kept.append([p.grad.clone() for p in parameters if p.grad is not None])
        s.optimizer.zero_grad()
        if last:
            for p, *parts in zip(parameters, *kept, strict=True):
                p.grad = torch.stack(parts).mean(0)
            kept.clear()
            s.finish()

    return step


def penalises(s: Scene) -> Step:
    s.objects["loss"] = penalised

    def step(x: Tensor, y: Tensor) -> None:
        parameters = list(s.model.parameters())
        loss = s.loss(x, y)
        scaled = torch.autograd.grad(s.scaler.scale(loss), parameters, create_graph=True)
        gradients = [g / s.scaler.get_scale() for g in scaled]
        with s.autocast():
            loss = loss + torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        s.scaler.scale(loss).backward()
        s.finish()

    return step


def two_of_each(s: Scene) -> Step:
    s.objects |= {"model": [s.model, s.other], "optimizer": [s.optimizer, s.second], "loss": two_losses}

    def step(x: Tensor, y: Tensor) -> None:
        with s.autocast():
            first, second = two_losses([s.model, s.other], x, y)
        s.scaler.scale(first).backward(retain_graph=True)
        s.scaler.scale(second).backward()
        s.scaler.unscale_(s.optimizer)
        s.scaler.step(s.optimizer)
        s.scaler.step(s.second)
        s.scaler.update()
        s.optimizer.zero_grad()
        s.second.zero_grad()

    return step


def schedule_waits(s: Scene) -> Step:
    s.objects["scheduler"] = s.scheduler

    def step(x: Tensor, y: Tensor) -> None:
        s.scaler.scale(s.loss(x, y)).backward()
        before = s.scaler.get_scale()
        s.finish()
        if s.scaler.get_scale() >= before:
            s.scheduler.step()

    return step


def fused(s: Scene) -> Step:
    s.objects["optimizer"] = optimizer = torch.optim.Adam(s.model.parameters(), lr=0.01, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        s.scaler.scale(s.loss(x, y)).backward()
        s.scaler.step(optimizer)
        s.scaler.update()
        optimizer.zero_grad()

    return step


def no_scaler(s: Scene) -> Step:
    s.objects["scaler"] = None

    def step(x: Tensor, y: Tensor) -> None:
        s.loss(x, y).backward()
        s.optimizer.step()
        s.optimizer.zero_grad()

    return step


def disabled_scaler(s: Scene) -> Step:
    s.scaler = s.objects["scaler"] = torch.amp.GradScaler("cpu", enabled=False)
    return plain(s)


def frozen_layer(s: Scene) -> Step:
    s.model[0].requires_grad_(False)
    s.optimizer = torch.optim.SGD([p for p in s.model.parameters() if p.requires_grad], lr=0.1)
    s.objects["optimizer"] = s.optimizer
    return plain(s)


def partly_frozen(s: Scene) -> Step:
    s.model[0].requires_grad_(False)  # the optimizer holds the frozen ones too, and one gradient is enough
    return plain(s)


def dropout_and_norm(s: Scene) -> Step:
    s.model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 5))
    s.optimizer = torch.optim.AdamW(s.model.parameters(), lr=0.01)
    s.objects |= {"model": s.model, "optimizer": s.optimizer}
    return plain(s)


def goes_to_training_mode(s: Scene) -> Step:
    inner = dropout_and_norm(s)

    def step(x: Tensor, y: Tensor) -> None:
        s.model.train()
        inner(x, y)

    return step


def checkpointed(s: Scene) -> Step:
    def step(x: Tensor, y: Tensor) -> None:
        with s.autocast():
            hidden = checkpoint(s.model[:2], x, use_reentrant=False)
            loss = cross_entropy(s.model[2](hidden), y)
        s.scaler.scale(loss).backward()
        s.finish()

    return step


def starts_too_high(s: Scene) -> Step:
    s.scaler = s.objects["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1)
    return plain(s)


def adversaries(s: Scene) -> Step:
    """A generator and a discriminator, each with a loss of its own, and no one fp32 loss to compare with."""
    maker, critic = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    makes, criticises = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    s.objects |= {"model": [maker, critic], "optimizer": [makes, criticises], "loss": None}
    score = nn.functional.binary_cross_entropy_with_logits

    def step(x: Tensor, y: Tensor) -> None:
        real, made = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        with s.autocast():
            fake = maker(torch.randn(len(x), 4))
            loss = score(critic(x), real) + score(critic(fake.detach()), made)
        criticises.zero_grad()
        s.scaler.scale(loss).backward()
        s.scaler.step(criticises)
        with s.autocast():
            loss = score(critic(fake), real)
        makes.zero_grad()
        s.scaler.scale(loss).backward()
        s.scaler.step(makes)
        s.scaler.update()

    return step


RIGHT: dict[str, Callable[[Scene], Step]] = {
    f.__name__: f
    for f in (
        plain, clears_first, clips, clips_by_hand, accumulates, divides_at_the_end, keeps_its_own_sum, penalises,
        two_of_each, schedule_waits, fused, no_scaler, disabled_scaler, frozen_layer, partly_frozen, dropout_and_norm,
        goes_to_training_mode, checkpointed, starts_too_high, adversaries,
    )
}  # fmt: skip


# ---- wrong: maker, and the finding ----


def _wrong(body: Callable[[Scene, Tensor, Tensor], None], **objects: Any) -> Callable[[Scene], Step]:
    def make(s: Scene) -> Step:
        s.objects |= objects
        return lambda x, y: body(s, x, y)

    return make


def _backward(s: Scene, x: Tensor, y: Tensor, share: float = 1.0) -> None:
    s.scaler.scale(s.loss(x, y) * share).backward()


def never_backward(s: Scene, x: Tensor, y: Tensor) -> None:
    s.loss(x, y)
    s.optimizer.step()
    s.optimizer.zero_grad()


def never_backward_scaled(s: Scene, x: Tensor, y: Tensor) -> None:
    s.scaler.scale(s.loss(x, y))
    s.finish()


def never_steps(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.optimizer.zero_grad()


def updates_without_step(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.update()
    s.optimizer.zero_grad()


def steps_twice(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.finish()


def steps_twice_by_hand(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.optimizer.step()
    s.scaler.update()
    s.optimizer.zero_grad()


def not_scaled(s: Scene, x: Tensor, y: Tensor) -> None:
    s.loss(x, y).backward()
    s.finish()


def not_scaled_after_start(s: Scene, x: Tensor, y: Tensor) -> None:
    s.scaler.scale(torch.ones(()))  # the scaler is awake, the loss is not scaled
    s.loss(x, y).backward()
    s.finish()


def scaled_twice(s: Scene, x: Tensor, y: Tensor) -> None:
    s.scaler.scale(s.scaler.scale(s.loss(x, y))).backward()
    s.finish()


def steps_by_hand(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.optimizer.step()
    s.optimizer.zero_grad()


def steps_and_updates_by_hand(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.optimizer.step()
    s.scaler.update()
    s.optimizer.zero_grad()


def clips_scaled(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.clip()
    s.finish()


def clips_not(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.finish()


def clips_after(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.clip()
    s.scaler.update()
    s.optimizer.zero_grad()


def clips_elsewhere(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.unscale_(s.optimizer)
    nn.utils.clip_grad_norm_(s.model.parameters(), 0.5)
    s.finish()


def update_missing(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.optimizer.zero_grad()


def updates_twice(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.scaler.update()
    s.scaler._per_optimizer_states[id(s.optimizer)]["found_inf_per_device"] = {torch.device("cpu"): torch.zeros(1)}
    s.scaler.update()
    s.optimizer.zero_grad()


def updates_if_taken(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.unscale_(s.optimizer)
    found = s.scaler._per_optimizer_states[id(s.optimizer)]["found_inf_per_device"]
    s.scaler.step(s.optimizer)
    if not sum(v.item() for v in found.values()):
        s.scaler.update()
    s.optimizer.zero_grad()


def unscales_twice(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.unscale_(s.optimizer)
    s.scaler.unscale_(s.optimizer)
    s.finish()


def clears_too_early(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.optimizer.zero_grad()
    s.scaler.step(s.optimizer)
    s.scaler.update()


def clears_to_zero_too_early(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.optimizer.zero_grad(set_to_none=False)
    s.scaler.step(s.optimizer)
    s.scaler.update()


def never_clears(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.step(s.optimizer)
    s.scaler.update()


def clears_if_taken(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    before = s.scaler.get_scale()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    if s.scaler.get_scale() >= before:
        s.optimizer.zero_grad()


def backward_inside(s: Scene, x: Tensor, y: Tensor) -> None:
    with s.autocast():
        _backward(s, x, y)
    s.finish()


def region_left_open(s: Scene, x: Tensor, y: Tensor) -> None:
    torch.autocast("cpu", dtype=torch.float16).__enter__()
    loss = cross_entropy(s.model(x), y)
    s.scaler.scale(loss).backward()
    s.finish()


def unscales_and_steps_by_hand(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scaler.unscale_(s.optimizer)
    s.optimizer.step()
    s.scaler.update()
    s.optimizer.zero_grad()


def penalty_of_scaled(s: Scene, x: Tensor, y: Tensor) -> None:
    loss = s.loss(x, y)
    gradients = torch.autograd.grad(s.scaler.scale(loss), list(s.model.parameters()), create_graph=True)
    s.scaler.scale(loss + torch.stack([g.square().sum() for g in gradients]).sum().sqrt()).backward()
    s.finish()


def penalty_detached(s: Scene, x: Tensor, y: Tensor) -> None:
    loss = s.loss(x, y)
    gradients = torch.autograd.grad(loss, list(s.model.parameters()), retain_graph=True)  # no create_graph
    s.scaler.scale(loss + torch.stack([g.square().sum() for g in gradients]).sum().sqrt()).backward()
    s.finish()


def smaller_loss(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y, 1 / 8)
    s.finish()


def raises(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x[:, :3], y)


def loss_is_nan(s: Scene, x: Tensor, y: Tensor) -> None:
    s.scaler.scale(s.loss(x, y) * float("nan")).backward()
    s.finish()


def runs_on(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.finish()
    s.scheduler.step()


def never_moves(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.finish()


def moves_first(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    s.scheduler.step()
    s.finish()


def moves_twice(s: Scene, x: Tensor, y: Tensor) -> None:
    _backward(s, x, y)
    before = s.scaler.get_scale()
    s.finish()
    if s.scaler.get_scale() >= before:
        s.scheduler.step()
        s.scheduler.step()


def _accumulating(
    each: Callable[[Scene], None] = lambda s: None,
    finish: Callable[[Scene], None] = Scene.finish,
    share: float = 0.5,
    **objects: Any,
) -> Callable[[Scene], Step]:
    """Make a step of two micro-batches with something wrong: `each` after every backward, `finish` after the second."""

    def make(s: Scene) -> Step:
        s.objects |= {"accumulate": 2, **objects}

        def step(x: Tensor, y: Tensor, *, last: bool) -> None:
            _backward(s, x, y, share)
            each(s)
            if last:
                finish(s)

        return step

    return make


def _clear_in_between(s: Scene) -> None:
    s.scaler.step(s.optimizer)
    s.scaler.update()


def _accumulate_uneven(s: Scene) -> Step:
    s.batches = s.objects["batches"] = [(torch.randn(n, 16), torch.randint(0, 5, (n,))) for n in (8, 2, 8, 2)]
    return _accumulating()(s)


def _clear_each(s: Scene) -> Step:
    s.objects["accumulate"] = 2

    def step(x: Tensor, y: Tensor, *, last: bool) -> None:
        s.optimizer.zero_grad()
        _backward(s, x, y, 0.5)
        if last:
            s.scaler.step(s.optimizer)
            s.scaler.update()

    return step


def _two(finish: Callable[[Scene], None]) -> Callable[[Scene], Step]:
    def make(s: Scene) -> Step:
        s.objects |= {"model": [s.model, s.other], "optimizer": [s.optimizer, s.second], "loss": two_losses}

        def step(x: Tensor, y: Tensor) -> None:
            with s.autocast():
                first, second = two_losses([s.model, s.other], x, y)
            s.scaler.scale(first).backward(retain_graph=True)
            s.scaler.scale(second).backward()
            finish(s)
            s.optimizer.zero_grad()
            s.second.zero_grad()

        return step

    return make


def _update_after_each(s: Scene) -> None:
    for optimizer in (s.optimizer, s.second):
        s.scaler.step(optimizer)
        s.scaler.update()


def _one_stepped(s: Scene) -> None:
    s.scaler.step(s.optimizer)
    s.scaler.update()


def _second_by_hand(s: Scene) -> None:
    s.scaler.unscale_(s.second)
    s.scaler.step(s.optimizer)
    s.second.step()
    s.scaler.update()


def _half(s: Scene) -> Step:
    s.model.half()
    return plain(s)


def _meta(s: Scene) -> Step:
    s.model[2].to("meta")
    return plain(s)


def _all_frozen(s: Scene) -> Step:
    s.model.requires_grad_(False)
    return plain(s)


def _unused(s: Scene) -> Step:
    """The second optimizer's model takes no part in the loss."""
    s.objects |= {"model": [s.model, s.other], "optimizer": [s.optimizer, s.second], "loss": None}

    def step(x: Tensor, y: Tensor) -> None:
        _backward(s, x, y)
        s.scaler.step(s.optimizer)
        s.scaler.step(s.second)
        s.scaler.update()
        s.optimizer.zero_grad()

    return step


def _replaced(s: Scene) -> Step:
    s.objects["model"] = s.model = nn.Linear(16, 5)
    return plain(s)


def _spoilt(s: Scene) -> Step:
    with torch.no_grad():
        s.model[0].weight[0, 0] = torch.nan
    return plain(s)


def _no_batches(s: Scene) -> Step:
    s.objects["batches"] = []
    return plain(s)


def _accumulate_zero(s: Scene) -> Step:
    s.objects["accumulate"] = 0
    return plain(s)


def _bfloat16_weights(s: Scene) -> Step:
    """An update far below the spacing of bf16 weights."""
    s.dtype = None
    s.model.bfloat16()
    with torch.no_grad():
        for p in s.model.parameters():
            p.copy_(torch.where(p == 0, torch.ones_like(p), p))
    s.optimizer = torch.optim.SGD(s.model.parameters(), lr=1e-9)
    s.batches = [(x.bfloat16(), y) for x, y in s.batches]
    s.objects |= {"optimizer": s.optimizer, "batches": s.batches}
    return plain(s)


def _counts_wrong_at_the_end(s: Scene) -> Step:
    s.batches = s.objects["batches"] = s.batches * 2
    return _accumulating(share=1 / 3, accumulate=3)(s)


# The maker, and the finding; two of them where one mistake really is two.
WRONG: dict[str, tuple[Callable[[Scene], Step], str]] = {
    "never backward": (_wrong(never_backward), "no-backward"),
    "never backward, scaled": (_wrong(never_backward_scaled), "no-backward"),
    "never steps": (_wrong(never_steps), "never-stepped"),
    "updates without step": (_wrong(updates_without_step), "never-stepped"),
    "steps twice": (_wrong(steps_twice), "stepped-twice"),
    "steps twice by hand": (_wrong(steps_twice_by_hand), "stepped-twice"),
    "not scaled": (_wrong(not_scaled), "loss-not-scaled"),
    "not scaled, scaler awake": (_wrong(not_scaled_after_start), "loss-not-scaled"),
    "scaled twice": (_wrong(scaled_twice), "scaled-twice"),
    "steps by hand": (_wrong(steps_by_hand), "still-scaled"),
    "steps by hand and updates": (_wrong(steps_and_updates_by_hand), "still-scaled"),
    "clips scaled": (_wrong(clips_scaled, max_norm=1.0), "clipped-while-scaled"),
    "clips not": (_wrong(clips_not, max_norm=1.0), "not-clipped"),
    "clips after the step": (_wrong(clips_after, max_norm=1.0), "not-clipped"),
    "clips to another norm": (_wrong(clips_elsewhere, max_norm=1.0), "clipped-wrong"),
    "update missing": (_wrong(update_missing), "update-missing"),
    "updates twice": (_wrong(updates_twice), "updated-twice"),
    "updates only if taken": (_wrong(updates_if_taken), "no-update-after-skip"),
    "unscales twice": (_wrong(unscales_twice), "unscaled-twice"),
    "clears too early": (_wrong(clears_too_early), "cleared-before-step"),
    "clears to zero too early": (_wrong(clears_to_zero_too_early), "cleared-before-step"),
    "never clears": (_wrong(never_clears), "never-cleared"),
    "clears only if taken": (_wrong(clears_if_taken), "kept-after-skip"),
    "backward inside": (_wrong(backward_inside), "backward-in-autocast"),
    "region left open": (_wrong(region_left_open), "autocast-left-open"),
    "unscales, steps by hand": (_wrong(unscales_and_steps_by_hand), "overflow-not-skipped"),
    "penalty of scaled": (_wrong(penalty_of_scaled, loss=penalised), "depends-on-scale"),
    "penalty detached": (_wrong(penalty_detached, loss=penalised), "gradient-differs"),
    "smaller loss": (_wrong(smaller_loss), "wrong-factor"),
    "raises": (_wrong(raises), "step-raises"),
    "loss is NaN": (_wrong(loss_is_nan), "not-finite"),
    "scheduler runs on": (lambda s: _wrong(runs_on, scheduler=s.scheduler)(s), "scheduler-ran-on"),
    "scheduler never moves": (lambda s: _wrong(never_moves, scheduler=s.scheduler)(s), "scheduler-never-moved"),
    "scheduler first": (lambda s: _wrong(moves_first, scheduler=s.scheduler)(s), "scheduler-before-optimizer"),
    "scheduler twice": (lambda s: _wrong(moves_twice, scheduler=s.scheduler)(s), "scheduler-moved-twice"),
    "scheduler in micro-batches": (
        lambda s: _accumulating(each=lambda s: s.scheduler.step(), scheduler=s.scheduler)(s),
        "scheduler-every-micro-batch",
    ),
    "steps in micro-batches": (_accumulating(each=Scene.finish, finish=lambda s: None), "stepped-every-micro-batch"),
    "updates in micro-batches": (
        _accumulating(each=lambda s: s.scaler.update(), finish=lambda s: s.scaler.step(s.optimizer)),
        "update-every-micro-batch",
    ),
    "unscales in micro-batches": (
        _accumulating(each=lambda s: s.scaler.unscale_(s.optimizer)),
        "unscaled-every-micro-batch",
    ),
    "sum": (_accumulating(share=1.0), "sum-not-mean"),
    "mean of means": (_accumulate_uneven, "mean-of-means"),
    "clears in micro-batches": (_clear_each, "cleared-every-micro-batch"),
    "clips micro-batches": (
        _accumulating(each=Scene.clip, max_norm=1.0),
        "clipped-every-micro-batch clipped-while-scaled",
    ),
    "clears never, accumulating": (_accumulating(finish=_clear_in_between), "never-cleared"),
    "short last group": (_counts_wrong_at_the_end, "last-group-mean"),
    "two updates": (_two(_update_after_each), "update-per-optimizer"),
    "one of two stepped": (_two(_one_stepped), "optimizer-not-stepped"),
    "one of two by hand": (_two(_second_by_hand), "overflow-not-skipped"),
    "fp16 parameters": (_half, "fp16-parameters"),
    "two devices": (_meta, "two-devices"),
    "all frozen": (_all_frozen, "frozen-optimizer"),
    "optimizer without a gradient": (_unused, "frozen-optimizer"),
    "model replaced": (_replaced, "foreign-parameters"),
    "weights are NaN": (_spoilt, "weights-not-finite"),
    "no batches": (_no_batches, "no-batches"),
    "accumulate 0": (_accumulate_zero, "accumulate-below-one"),
    "updates too small for bf16": (_bfloat16_weights, "weights-unchanged"),
}
