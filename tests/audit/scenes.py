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
