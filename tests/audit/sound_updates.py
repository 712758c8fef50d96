"""Sound steps around the update of one model: clipping, fused kernels, schedulers, unusual models, chance."""

from __future__ import annotations

import functools
import math
import random
from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.audit.case import Case, Made
from tests.audit.sound_loops import classes, images, mlp, plain, register, texts

CASES: list[Case] = []
case = register(CASES)


# ---- clipping --------------------------------------------------------------------------------------------------------------


@case("clipping by value", "clipping", "The loss is passed although each large entry of the gradient is cut.")
def clip_value() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(model.parameters(), clip_value=0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case("clipping per group, groups with their own lr", "clipping")
def clip_groups() -> Made:
    model = nn.ModuleDict({"body": nn.Linear(8, 16), "head": nn.Linear(16, 3)})
    groups = [{"params": model["body"].parameters(), "lr": 0.05}, {"params": model["head"].parameters(), "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    limits = (0.2, 0.05)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model["head"](F.relu(model["body"](x))), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for group, limit in zip(optimizer.param_groups, limits, strict=True):
            torch.nn.utils.clip_grad_norm_(group["params"], limit)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("clipping per parameter", "clipping")
def clip_parameters() -> Made:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            if p.grad is not None:
                torch.nn.utils.clip_grad_norm_(p, 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


def unitwise_norm(x: Tensor) -> Tensor:
    return x.norm() if x.ndim <= 1 else x.norm(dim=tuple(range(1, x.ndim)), keepdim=True)


@case("adaptive gradient clipping (AGC)", "clipping", "What a gradient is cut to follows its weights.")
def clip_adaptive() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        with torch.no_grad():
            for p in model.parameters():
                max_norm = unitwise_norm(p).clamp(min=1e-3).mul(0.1)
                grad_norm = unitwise_norm(p.grad)
                clipped = p.grad * (max_norm / grad_norm.clamp(min=1e-6))
                p.grad.copy_(torch.where(grad_norm < max_norm, p.grad, clipped))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case(
    "scaled gradients clipped to max_norm * scale",
    "clipping",
    "The same as clipping unscaled ones; an inf becomes a NaN.",
)
def clip_scaled() -> Made:
    model, max_norm = mlp(), 0.4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        limit = max_norm * scaler.get_scale()
        total = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_((limit / (total + 1e-6)).clamp(max=1.0))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(), max_norm=max_norm, **parts)


@case(
    "fused AdamW, the gradients stay scaled until its kernel",
    "fused",
    "The kernel divides by the scale and skips an overflow.",
)
def fused_adamw() -> Made:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case("fused SGD, own foreach clipping", "fused")
def fused_clip() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (0.3 / (total + 1e-6)).clamp(max=1.0))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain, max_norm=0.3)


# ---- schedulers, overflows looked at by hand ------------------------------------------------------------------------------


@case("OneCycle, moved if the scale did not fall", "scheduler")
def onecycle() -> Made:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=1000, div_factor=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        x = x.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scale <= scaler.get_scale():
            scheduler.step()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loss=plain)
    return step, dict(batches=images(), **parts)


@case(
    "warmup from lr 0, moved if optimizer.step ran",
    "scheduler",
    "The first update's lr is 0: weights rest once, as meant.",
)
def warmup_flag() -> Made:
    model, ran = mlp(), False
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 5, 1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    original = optimizer.step

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        ran = True
        return original(*args, **kwargs)

    optimizer.step = noted  # as Accelerate patches it

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal ran
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        ran = False
        scaler.step(optimizer)
        scaler.update()
        if ran:
            scheduler.step()
        optimizer.zero_grad()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    return step, dict(batches=classes(), **parts)


@case("scheduler in the optimizer's post hook", "scheduler", "The hook runs inside scaler.step, and only if it steps.")
def scheduler_hook() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loss=plain)
    return step, dict(batches=classes(), **parts)


@case("scheduler gated by found_inf, once a group", "scheduler")
def scheduler_found_inf() -> Made:
    model, micro = mlp(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal micro
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        micro += 1
        if micro % 2:
            return
        scaler.unscale_(optimizer)
        skipped = sum(found.item() for found in scaler._found_inf_per_device(optimizer).values()) > 0
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not skipped:
            scheduler.step()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loss=plain)
    return step, dict(batches=classes(8), accumulate=2, max_norm=1.0, **parts)


@case(
    "the norm looked at by hand, scaler.step left out if it is bad",
    "scheduler",
    "unscale_ has told update() of the inf.",
)
def skip_by_hand() -> Made:
    model, skipped = mlp(), 0
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal skipped
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if torch.isfinite(norm):
            scaler.step(optimizer)
            scheduler.step()
        else:
            skipped += 1
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    return step, dict(batches=classes(), max_norm=0.5, **parts)


@case(
    "bf16 autocast, bad batches skipped, scheduler always",
    "scheduler",
    "No scaler: the scheduler follows the updates done.",
)
def bf16_skip() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=995)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[5])

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not norm.isfinite():
            return float("nan")
        optimizer.step()
        scheduler.step()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, loss=plain)
    return step, dict(batches=classes(), max_norm=1.0, **parts)


# ---- models ---------------------------------------------------------------------------------------------------------------


@case(
    "frozen half-precision base, fp32 head", "frozen", "The fp16 weights are not trained: the scaler never sees them."
)
def frozen_half_base() -> Made:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Sequential(nn.Linear(8, 32), nn.Tanh()).half().requires_grad_(False).eval()
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.base(x.to(self.base[0].weight.dtype))
            return self.head(features.float())

    model = Probe()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case("frozen base, thawed at the sixth call", "frozen", "The optimizer owns all: until then it passes over the base.")
def thawed() -> Made:
    model, calls = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)), 0
    model[:2].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        calls += 1
        if calls == 6:
            model.requires_grad_(True)
        model.train()
        model[1].train(model[1].weight.requires_grad)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base, self.scaling = base.requires_grad_(False), alpha / rank
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * F.linear(F.linear(x, self.lora_a), self.lora_b)


@case("LoRA on a frozen base", "frozen", "B starts at 0, so the gradient of A is 0 in the first update.")
def lora() -> Made:
    model = nn.Sequential(LoRA(nn.Linear(8, 16)), nn.ReLU(), LoRA(nn.Linear(16, 3)))
    optimizer = torch.optim.AdamW((p for n, p in model.named_parameters() if "lora_" in n), lr=5e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain, max_norm=1.0)


@case("sparse embedding, SparseAdam beside Adam", "sparse", "One scaler, two optimizers, one update().")
def sparse() -> Made:
    model = nn.Sequential(nn.Embedding(12, 8, sparse=True), nn.Flatten(), nn.Linear(56, 12))
    optimizers = [
        torch.optim.SparseAdam(model[0].parameters(), lr=2e-2),
        torch.optim.Adam(model[2].parameters(), lr=1e-2),
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(ids: Tensor, target: Tensor) -> float:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(ids), target)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss.item()

    batches = [(ids, (ids[:, 0] + ids[:, 1]) % 12) for ids in texts()]
    return step, dict(model=model, optimizer=optimizers, batches=batches, scaler=scaler, loss=plain)


@case(
    "parameters that are transposed, and a learned temperature",
    "layout",
    "Non-contiguous weights, and one of no dimension.",
)
def transposed() -> Made:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter((torch.randn(16, 8) / 3).t())
            self.second = nn.Parameter((torch.randn(3, 2, 16) / 4).permute(2, 0, 1)[..., 0])
            self.log_temperature = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.first) @ self.second * self.log_temperature.exp()

    model = Odd()
    optimizer = torch.optim.RAdam(model.parameters(), lr=3e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


def compiled(backend: str, *, pass_compiled: bool) -> Made:
    model = mlp()
    fast = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(fast(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    parts = dict(optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)
    return step, dict(model=fast if pass_compiled else model, **parts)


@case("torch.compile (eager), the plain model passed", "compile")
def compile_eager() -> Made:
    return compiled("eager", pass_compiled=False)


@case("torch.compile (aot_eager), the compiled model passed", "compile")
def compile_aot() -> Made:
    return compiled("aot_eager", pass_compiled=True)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.reentrant, self.stem, self.head = reentrant, nn.Linear(8, 16), nn.Linear(16, 3)
        block = lambda: nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Dropout(dropout))  # noqa: E731
        self.blocks = nn.ModuleList([block(), block()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant) if self.training else x + block(x)
        return self.head(x)


@case(
    "activation checkpointing, reentrant, with dropout",
    "checkpointing",
    "A backward pass runs inside the backward pass.",
)
def checkpoint_reentrant() -> Made:
    model = Checkpointed(reentrant=True, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("activation checkpointing, not reentrant, accumulation", "checkpointing")
def checkpoint_accumulated() -> Made:
    model, calls = Checkpointed(reentrant=False), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
            scaled = scaler.scale(loss) / 2  # divided after it was scaled: the same
        scaled.backward()
        calls += 1
        if calls % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(), accumulate=2, **parts)


# ---- chance, counters, batches changed in place ----------------------------------------------------------------------------


@case("gradient noise from an own generator", "chance", "The same batch gives another gradient each time, as meant.")
def gradient_noise() -> Made:
    model, generator, steps = mlp(), torch.Generator().manual_seed(7), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal steps
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        sigma = math.sqrt(0.01 / (1 + steps) ** 0.55)
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape, generator=generator), alpha=sigma)
        scaler.step(optimizer)
        scaler.update()
        steps += 1
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("mixup or noise by Python's random", "chance")
def mixup() -> Made:
    model, rng = mlp(), random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        lam, order = 1.0, torch.randperm(len(x))
        if rng.random() < 0.5:
            lam = rng.betavariate(0.4, 0.4)
            x = lam * x + (1 - lam) * x[order]
        else:
            x = x + 0.1 * torch.randn_like(x)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
            loss = lam * F.cross_entropy(output, y) + (1 - lam) * F.cross_entropy(output, y[order])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("dropout, and the loss passed", "chance", "The loss draws its own dropout: it can only agree where the draws do.")
def dropout() -> Made:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        model.train()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case("stochastic depth: blocks left out at random", "chance", "A block left out has no gradient in that step.")
def stochastic_depth() -> Made:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                if not self.training or torch.rand(()).item() > 0.5:
                    x = x + torch.relu(block(x))
            return self.head(x)

    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_((p for p in model.parameters() if p.grad is not None), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, max_norm=0.5)


@case(
    "batch normalised in place, gradient norms logged per layer",
    "batch in place",
    "The step changes its batch; a loader's are new.",
)
def in_place() -> Made:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    log: dict[str, list[float]] = defaultdict(list)

    def step(x: Tensor, y: Tensor) -> float:
        x.sub_(1.0).div_(0.25)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for name, p in model.named_parameters():
            log[name].append(p.grad.norm().item())
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    loss = lambda model, x, y: F.cross_entropy(model((x - 1.0) / 0.25), y)  # noqa: E731
    return step, dict(model=model, optimizer=optimizer, batches=images(), scaler=scaler, loss=loss)
