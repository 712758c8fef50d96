"""What steps are made of: models, batches, losses, wrappers. The steps in TOML use these names."""

# ruff: noqa: F401 - the steps use the imports, too

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.optim import SGD, Adam, AdamW, lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from amp_course.kit.models import CharGPT, DigitsResNet

softplus = F.softplus
bce = F.binary_cross_entropy_with_logits


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def finite(model: nn.Module) -> bool:
    return all(grad.isfinite().all() for grad in grads(model))


# ---- regression, which most broken steps train


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def rows(count: int = 8, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(count, size, 8, generator=torch.Generator().manual_seed(7))
    return list(zip(x, x[..., :3].sum(-1, keepdim=True), strict=True))


def dicts(count: int = 8, size: int = 8) -> list[dict[str, Tensor]]:
    return [{"x": x, "y": y} for x, y in rows(count, size)]


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def mse_of_dict(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return mse(model, **batch)


def mse_and_decay(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mse(model, x, y) + decay(model)


def decay(model: nn.Module) -> Any:
    return 0.05 * sum(p.square().sum() for p in model.parameters())


# ---- classification, which most sound steps train


def mlp(*, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))


def normed(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), *more, nn.Linear(16, 3))


def classes(count: int = 6, sizes: tuple[int, ...] = (8,)) -> list[tuple[Tensor, Tensor]]:
    """Return inputs and the classes that a fixed matrix gives them; batch sizes are cycled."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 3, generator=generator)
    inputs = [torch.randn(sizes[i % len(sizes)], 8, generator=generator) for i in range(count)]
    return [(x, (x @ weight).argmax(dim=1)) for x in inputs]


def images(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    labels = [torch.arange(4) % 2 for _ in range(count)]
    return [
        (torch.rand(4, 3, 8, 8, generator=generator) + y.view(-1, 1, 1, 1).float(), y)
        for y in labels
    ]


def texts(count: int = 6, length: int = 7) -> list[Tensor]:
    """Return token ids (4, length) in which each follows from the one before."""
    generator = torch.Generator().manual_seed(3)
    start = [torch.randint(12, (4, 1), generator=generator) for _ in range(count)]
    return [(first + 5 * torch.arange(length)) % 12 for first in start]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def any_dtype(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The plain loss, for a model that may be in 16 bits."""
    return F.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)


def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = plain(model, x, y)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + torch.cat([g.flatten() for g in gradients]).norm()


def two_losses(models: list[nn.Module], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (model(x) for model in models)
    return F.cross_entropy(2 * a + 3 * b, y), F.cross_entropy(3 * a - 5 * b, y)


# ---- two networks


def adversaries(lr: float = 1e-3) -> tuple[Any, ...]:
    """A generator, a discriminator and their optimizers; a batch is one tensor in a tuple."""
    torch.manual_seed(1)
    g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    d = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return g, d, *(torch.optim.Adam(net.parameters(), lr=lr, betas=(0.5, 0.999)) for net in (g, d))


def reals() -> list[tuple[Tensor]]:
    return [(x,) for x in torch.randn(6, 8, 6, generator=torch.Generator().manual_seed(3)) + 1]


def toggle(network: nn.Module, wanted: bool) -> None:
    for p in network.parameters():
        p.requires_grad = wanted


def wgan_gp(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    mixed = (0.3 * real + 0.7 * fake).requires_grad_()
    grad = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return (
        critic(fake).mean() - critic(real).mean() + 10 * (grad.norm(2, dim=1) - 1).square().mean()
    )


# ---- scales, masters and wrappers by hand


class DynamicScale:
    """A dynamic loss scale written by hand, as before PyTorch had one."""

    def __init__(self, has_overflow: Callable[[list[Any]], Any]) -> None:
        self.scale, self.good, self.has_overflow = 2.0**10, 0, has_overflow

    def step(self, optimizer: Any, params: list[Any]) -> None:
        if self.has_overflow(params):
            self.scale, self.good = self.scale / 2, 0
            return
        for p in params:
            p.grad.div_(self.scale)
        optimizer.step()
        self.good += 1
        if self.good % 1000 == 0:
            self.scale *= 2


class Wrapped:
    """An optimizer whose step() updates the scaler too."""

    def __init__(self, optimizer: Any, scaler: GradScaler) -> None:
        self.optimizer, self.scaler, self.zero_grad = optimizer, scaler, optimizer.zero_grad

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def copies_of(model: nn.Module) -> list[Any]:
    """The fp32 masters of a model in 16 bits."""
    return [p.detach().clone().float().requires_grad_() for p in model.parameters()]


def copy_back(model: nn.Module, masters: list[Any]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), masters)


class Accelerator:
    """Accelerate's way: backward(), and methods that do nothing while gradients are summed."""

    def __init__(
        self,
        optimizer: Any,
        scheduler: Any,
        every: int,
        scaler: GradScaler | None = None,
        divides: bool = True,
    ) -> None:
        self.optimizer, self.scheduler, self.calls = optimizer, scheduler, 0
        self.every, self.sync_gradients, self.skipped = every, False, False
        self.scaler, self.divides = scaler or GradScaler("cpu", init_scale=2.0**12), divides

    @contextmanager
    def accumulate(self) -> Any:
        self.calls += 1
        self.sync_gradients = self.calls % self.every == 0
        yield

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss / self.every if self.divides else loss).backward()

    def clip_grad_norm_(self, parameters: Any, max_norm: float) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        return clip_grad_norm_(parameters, max_norm)

    def step(self) -> None:
        if self.sync_gradients:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.skipped = self.scaler.get_scale() < before

    def schedule(self) -> None:
        if self.sync_gradients and not self.skipped:
            self.scheduler.step()

    def zero_grad(self) -> None:
        if self.sync_gradients:
            self.optimizer.zero_grad()


class TiedLM(nn.Module):
    """Embedding, a block, and an output layer that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(12, 16)
        self.block = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
        )
        self.lm_head = nn.Linear(16, 12, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.wte(ids)
        logits = self.lm_head(hidden + self.block(hidden))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.reentrant, self.stem, self.head = reentrant, nn.Linear(8, 16), nn.Linear(16, 3)
        block = [nn.Linear(16, 16), nn.SiLU(), nn.Dropout(dropout)]
        self.blocks = nn.ModuleList([nn.Sequential(*copy.deepcopy(block)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = (
                x + checkpoint(block, x, use_reentrant=self.reentrant)
                if self.training
                else x + block(x)
            )
        return self.head(x)


class SAM(torch.optim.Optimizer):
    """As in davda54/sam: an optimizer with a base optimizer inside."""

    def __init__(self, params: Any, base_optimizer: Any, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in params]), p=2)
        for p in params:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()

    def restore(self) -> None:
        for p in self.state:
            p.data = self.state[p]["old_p"]

    def second_step(self) -> None:
        self.restore()
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()
