"""What the broken cases share: a decorator that makes a Case of a function, and small models, batches and trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler

from tests.audit.case import Case, Made

Make = Callable[[], Made]


def collector(cases: list[Case]) -> Callable[..., Callable[[Make], Make]]:
    """A decorator `case(style, *faults)`; the case's name is the function's, its `why` the docstring."""

    def case(style: str, *faults: str) -> Callable[[Make], Make]:
        def add(make: Make) -> Make:
            cases.append(
                Case(make.__name__.replace("_", " "), style, make, faults, " ".join((make.__doc__ or "").split()))
            )
            return make

        return add

    return case


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
    return F.mse_loss(model(batch["x"]), batch["y"])


def parts(optimizer: Any = torch.optim.SGD, lr: float = 0.1, init_scale: float = 2.0**12, **options: Any) -> tuple:
    model = net()
    return model, optimizer(model.parameters(), lr=lr, **options), GradScaler("cpu", init_scale=init_scale)


def given(model: Any, optimizer: Any, scaler: Any = None, **more: Any) -> dict[str, Any]:
    return {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": rows(), **more}


class Trainer:
    """What most trainers hold; the cases add the method that trains."""

    def __init__(
        self, optimizer: Any = torch.optim.AdamW, lr: float = 1e-3, init_scale: float = 2.0**12, **options: Any
    ):
        self.model, self.optimizer, self.scaler = parts(optimizer, lr, init_scale, **options)
        self.micro = 0

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            return F.mse_loss(self.model(x), y)

    def given(self, **more: Any) -> dict[str, Any]:
        return given(self.model, self.optimizer, self.scaler, **more)


class Gan:
    """Two small networks and what trains them; a batch is one tensor in a tuple."""

    def __init__(self, lr: float = 1e-3):
        torch.manual_seed(1)
        self.G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.D = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.opt_G = torch.optim.Adam(self.G.parameters(), lr=lr, betas=(0.5, 0.999))
        self.opt_D = torch.optim.Adam(self.D.parameters(), lr=lr, betas=(0.5, 0.999))
        self.scaler = GradScaler("cpu", init_scale=2.0**12)

    def given(self, **more: Any) -> dict[str, Any]:
        reals = [(x,) for x in torch.randn(6, 8, 6, generator=torch.Generator().manual_seed(3)) + 1]
        return given([self.G, self.D], [self.opt_G, self.opt_D], self.scaler, batches=reals, **more)
