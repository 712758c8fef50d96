"""Sound steps with a precision made by hand: 16-bit weights, masters, own loss scales, optimizers in backward, chapter 08."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_course.recipes import ALL
from tests.audit.case import Case, Made
from tests.audit.sound_loops import classes, mlp, plain, register

CASES: list[Case] = []
case = register(CASES)


def any_dtype(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The plain loss, for a model that may be in 16 bits."""
    return F.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)


# ---- masters ---------------------------------------------------------------------------------------------------------------


@case(
    "fp16 model, fp32 masters, GradScaler on the masters",
    "masters",
    "The optimizer owns copies, which are copied back.",
)
def masters_fp16() -> Made:
    model = mlp().half()
    model_params = list(model.parameters())
    master_params = [p.detach().clone().float().requires_grad_() for p in model_params]
    optimizer = torch.optim.SGD(master_params, lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(x: Tensor, y: Tensor) -> float:
        model.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        scaler.scale(loss).backward()
        for master, p in zip(master_params, model_params, strict=True):
            master.grad = p.grad.float()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for p, master in zip(model_params, master_params, strict=True):
                p.copy_(master)
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=any_dtype)


@case(
    "Megatron: bf16 model, gradients summed in fp32 by hooks",
    "masters",
    "p.grad is emptied by a hook; main_grad holds the sum.",
)
def masters_main_grad() -> Made:
    model, micro = mlp(width=32).bfloat16(), 0
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)

    def accumulate(p: Any) -> None:
        p.main_grad.add_(p.grad.float())
        p.grad = None

    for p in model.parameters():
        p.main_grad = torch.zeros(p.shape)  # type: ignore[attr-defined]
        p.register_post_accumulate_grad_hook(accumulate)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal micro
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        (loss / 2).backward()
        micro += 1
        if micro % 2 == 0:
            for p, master in zip(model.parameters(), masters, strict=True):
                master.grad = p.main_grad.clone()
                p.main_grad.zero_()
            nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(list(model.parameters()), masters)
        return loss.item()

    parts = dict(model=model, optimizer=optimizer, loss=any_dtype, max_norm=1.0)
    return step, dict(batches=classes(), accumulate=2, **parts)


@case(
    "bf16 weights, fp32 masters that are clipped in every update",
    "masters",
    "The norm is always above max_norm: the gradient at the step is shorter than the loss's, on purpose.",
)
def masters_clipped() -> Made:
    model = mlp().bfloat16()
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=5e-3)

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad, p.grad = p.grad.float(), None
        nn.utils.clip_grad_norm_(masters, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters()), masters)
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=any_dtype)


class FP16Optimizer:
    """fairseq's: flat fp32 masters, a dynamic scale of its own, gradients divided by it as late as can be."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.params = list(model.parameters())
        flat = torch.cat([p.detach().float().flatten() for p in self.params])
        self.fp32_params = nn.Parameter(flat)
        self.optimizer = torch.optim.Adam([self.fp32_params], lr=lr)
        self.loss_scale, self.window, self.since = 2.0**10, 8, 0

    def backward(self, loss: Tensor) -> None:
        (loss * self.loss_scale).backward()

    def clip_and_step(self, max_norm: float) -> bool:
        gradient = torch.cat([p.grad.float().flatten() for p in self.params if p.grad is not None]) / self.loss_scale
        norm = gradient.norm().item()
        self.since += 1
        if not math.isfinite(norm):
            self.loss_scale, self.since = self.loss_scale / 2, 0
            return False
        self.fp32_params.grad = gradient * min(1.0, max_norm / (norm + 1e-6))
        self.optimizer.step()
        with torch.no_grad():
            for p, new in zip(self.params, self.fp32_params.split([p.numel() for p in self.params]), strict=True):
                p.copy_(new.view_as(p))
        if self.since % self.window == 0:
            self.loss_scale *= 2
        return True


@case("fairseq: flat masters, own dynamic loss scale", "masters", "The optimizer owns one flat parameter.")
def masters_flat() -> Made:
    model = mlp().half()
    optimizer = FP16Optimizer(model, lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        for p in model.parameters():
            p.grad = None
        loss = F.cross_entropy(model(x.half()).float(), y)
        optimizer.backward(loss)
        stepped = optimizer.clip_and_step(max_norm=2.0)
        return {"loss": loss.item(), "stepped": stepped}

    parts = dict(model=model, optimizer=optimizer.optimizer, loss=any_dtype, max_norm=2.0)
    return step, dict(batches=classes(), **parts)


# ---- own loss scales -------------------------------------------------------------------------------------------------------


@case("static loss scale by hand, overflows skipped", "own scale")
def static_scale() -> Made:
    model, loss_scale = mlp(), 1024.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        (loss * loss_scale).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_mul_(grads, 1.0 / loss_scale)
        if all(torch.isfinite(grad).all() for grad in grads):
            optimizer.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=plain)


@case("own dynamic scale that looks at the loss and at the gradients", "own scale", "Either is reason enough to skip.")
def looks_at_both() -> Made:
    model, state = mlp(), {"scale": 2.0**12}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if not math.isfinite(loss.item()):
            return loss.item()
        (loss * state["scale"]).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm() / state["scale"]
        if not norm.isfinite():
            state["scale"] /= 2
            return loss.item()
        for p in model.parameters():
            p.grad /= state["scale"]  # type: ignore[operator]
        optimizer.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=plain)


@case(
    "hand-written loss outside the region, from logits in fp32",
    "function",
    "Outside the region, and still in fp32: `.float()` comes first; what runs in 16 bits before that is the model's.",
)
def focal_loss_in_fp32() -> Made:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def focal(logits: Tensor, y: Tensor) -> Tensor:
        p = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
        return (-((1 - p) ** 2) * p.log()).mean()

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = focal(logits.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(
        model=model, optimizer=optimizer, scaler=scaler, batches=classes(), loss=lambda model, x, y: focal(model(x), y)
    )


@case(
    "Apex style: with scale_loss(loss, optimizer) as scaled_loss",
    "own scale",
    "After an overflow, step() is a no-op once.",
)
def apex_style() -> Made:
    model, state = mlp(), {"scale": 2.0**12, "unskipped": 0}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    @contextmanager
    def scale_loss(loss: Tensor, optimizer: Any) -> Iterator[Tensor]:
        yield loss.float() * state["scale"]
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        overflow = not all(p.grad.sum().isfinite() for p in params)
        for p in params:
            p.grad.div_(state["scale"])
        state["unskipped"] = 0 if overflow else state["unskipped"] + 1
        if overflow:
            state["scale"] /= 2
            real_step = optimizer.step

            def skip_step(closure: Any = None) -> None:
                optimizer.step = real_step

            optimizer.step = skip_step
        elif state["unskipped"] % 20 == 0:
            state["scale"] *= 2

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes())


@case("bf16 autocast with a scaler that it does not need", "bf16")
def bf16_scaler() -> Made:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain, max_norm=1.0)


# ---- 16-bit weights without masters ----------------------------------------------------------------------------------------


@case(
    "pure bf16, the gradients too",
    "bf16",
    "Small updates are lost to rounding: worse than masters, but what was chosen.",
)
def pure_bf16() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, betas=(0.9, 0.95))

    def step(x: Tensor, y: Tensor) -> float:
        logits = model(x.to(torch.bfloat16))
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=any_dtype)


def stochastic_round_(target: Tensor, source: Tensor, generator: torch.Generator) -> None:
    """Copy fp32 `source` into bf16 `target`, up or down by chance: random low bits are added, then cut off."""
    noise = torch.randint(0, 1 << 16, source.shape, dtype=torch.int32, generator=generator)
    target.copy_(((source.view(torch.int32) + noise) & -65536).view(torch.float32))


class StochasticSGD(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, momentum: float) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    buffer = state.setdefault("momentum", torch.zeros_like(p, dtype=torch.float32))
                    buffer.mul_(group["momentum"]).add_(p.grad.float())
                    stochastic_round_(p, p.float().sub_(buffer, alpha=group["lr"]), self.generator)


@case("pure bf16 with stochastic rounding", "bf16", "The same gradient gives other weights each time, as meant.")
def stochastic_rounding() -> Made:
    model = mlp().bfloat16()
    optimizer = StochasticSGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x.bfloat16()), y)  # in bf16 as well
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes())


@case("pure bf16 with Kahan sums", "bf16")
def kahan() -> Made:
    class KahanSGD(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                compensation = self.state[p].setdefault("compensation", torch.zeros_like(p))
                compensation.sub_(self.param_groups[0]["lr"] * p.grad)
                before = p.clone()
                p.add_(compensation)
                compensation.add_(before.sub_(p))

    model = mlp().bfloat16()
    optimizer = KahanSGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=any_dtype)


# ---- optimizers inside the backward pass ----------------------------------------------------------------------------------


@case("optimizer in backward, bf16, one a parameter", "optimizer in backward", "After backward() no gradient is left.")
def optimizer_in_backward() -> Made:
    model = mlp().bfloat16()
    optimizers = {p: torch.optim.AdamW([p], lr=1e-2, foreach=False) for p in model.parameters()}

    def hook(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        return loss.item()

    return step, dict(model=model, optimizer=list(optimizers.values()), batches=classes(), loss=any_dtype)


@case(
    "optimizer in backward: bf16 autocast, gradients clipped in the hook",
    "optimizer in backward",
    "LOMO's way: per parameter.",
)
def fused_backward() -> Made:
    class FusedTrainer:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.optimizers, self.calls = model, [], 0  # type: ignore[var-annotated]
            for p in model.parameters():
                optimizer = torch.optim.SGD([p], lr=0.2)
                self.optimizers.append(optimizer)
                p.register_post_accumulate_grad_hook(functools.partial(self._update, optimizer))

        @staticmethod
        def _update(optimizer: torch.optim.Optimizer, p: Tensor) -> None:
            assert p.grad is not None
            norm = p.grad.norm()
            if norm.isfinite():
                p.grad.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
                optimizer.step()
            p.grad = None

        def train_batch(self, x: Tensor, y: Tensor) -> float:
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = 0.2 * 0.99**self.calls
            self.calls += 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            return loss.item()

    trainer = FusedTrainer(mlp())
    return trainer.train_batch, dict(model=trainer.model, optimizer=trainer.optimizers, batches=classes())


# ---- the recipes of chapter 08 ---------------------------------------------------------------------------------------------


def recipe_case(index: int) -> Case:
    recipe = ALL[index]

    def make() -> Made:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        session = recipe.prepare(model, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), F.cross_entropy)
        scaler = session.scaler if isinstance(session.scaler, torch.amp.GradScaler) else None
        loss = plain if recipe.name in ("o0", "o1", "amp_bf16") else any_dtype if recipe.name == "o2" else None
        return session.step, dict(model=model, optimizer=session.optimizer, batches=classes(), scaler=scaler, loss=loss)

    return Case(f"chapter 08: {recipe.label}", "recipe", make, (), "Each recipe is sound in what it promises.")


CASES += [recipe_case(index) for index in range(len(ALL))]
