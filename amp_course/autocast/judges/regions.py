"""Judge where a region ends: a training loop with the backward pass outside, and an fp32 island inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amp_course.autocast.judges.kernels import KernelLog
from amp_course.checking import Wrong
from amp_course.checking.stepping import about_passes, about_step
from amp_course.checking.values import dtype_name, fresh, tensor_like
from amp_course.checking.witness import Scene, drawn_seed

EPS = 1e-6  # of the router's mean of squares

_STEPS = 6
_STALE = (
    "From the second step on the forward pass used the weights of the first: the copies that autocast makes of them live until "
    "the outermost region ends, so the optimizer's steps have no effect. Open a region for each step, inside the `for` loop"
)


def judge_loop(answer: Callable[..., Any]) -> None:
    """`train(model, batches, loss_fn, optimizer)` → the losses; bf16 forward and loss, backward outside, fresh weights."""
    seed = drawn_seed()
    scene = Scene(seed, _STEPS)
    got = answer(scene.model, list(scene.batches), scene.loss_fn, scene.optimizer)
    stale, _ = _train(Scene(seed, _STEPS), stale=True)
    try:
        about_passes(scene, _STEPS, torch.bfloat16)
    except Wrong as wrong:
        if any(scene.notes.backward_in_autocast) and _close(_losses(got), stale):
            raise Wrong(f"{wrong}. Then there is a second fault: one region spans all steps. {_STALE}") from wrong
        raise
    about_step(scene, _STEPS)
    losses = _losses(got)
    wanted, weights = _train(Scene(seed, _STEPS), stale=False)
    if _close(losses, wanted) and _same(weights, scene.weights()):
        return
    if _close(losses, stale):
        raise Wrong(f"one region spans all steps (a region that is switched off counts as well). {_STALE}")
    if _close(losses, wanted):
        raise Wrong("the losses are right, and the weights after the last step are not: is there a step too many?")
    first = int((~torch.isclose(losses, wanted, rtol=2e-3, atol=1e-4)).nonzero()[0])
    raise Wrong(
        f"the loss of step {first} is {losses[first]:.5g}, and {wanted[first]:.5g} in the right loop: forward and loss under "
        "autocast, then backward, step and zero_grad, batch after batch in order"
    )


def _losses(got: Any) -> Tensor:
    if got is None:
        raise Wrong("your function returned None: end it with `return losses`")
    try:
        losses = torch.tensor([float(loss) for loss in got])
    except (TypeError, ValueError, RuntimeError):
        raise Wrong("your function has to return the losses, one number for each batch") from None
    if losses.shape != (_STEPS,):
        raise Wrong(f"your function returned {len(losses)} losses for {_STEPS} batches: one for each, in order")
    return losses


def _train(scene: Scene, *, stale: bool) -> tuple[Tensor, list[Tensor]]:
    """Train rightly, or with one region around all steps; return the losses and the weights at the end."""
    losses = []
    # Not `enabled=stale`: a disabled region counts as an outer one too, and would keep the copies just as well.
    with torch.autocast("cpu", dtype=torch.bfloat16) if stale else nullcontext():
        for inputs, targets in scene.batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = scene.loss_fn(scene.model(inputs), targets)
            with torch.autocast("cpu", enabled=False):
                loss.backward()
            scene.optimizer.step()
            scene.optimizer.zero_grad()
            losses.append(loss.item())
    return torch.tensor(losses), scene.weights()


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=2e-3, atol=1e-4)


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Case:
    """One call of the router: x in a dtype, in a region of another, or in none."""

    x: Tensor
    weight: Tensor
    region: torch.dtype
    enabled: bool = True

    @property
    def where(self) -> str:
        """Return the case in words: "for bfloat16 x in a region of float16"."""
        place = f"in a region of {dtype_name(self.region)}" if self.enabled else "outside of autocast"
        return f"for {dtype_name(self.x.dtype)} x {place}"


def judge_island(answer: Callable[..., Any]) -> None:
    """`router(x, weight)` → scores in float32, computed in float32, inside a region of either dtype."""
    for case in _cases():
        x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype=case.region, enabled=case.enabled):
            with KernelLog() as seen:
                got = _ask(answer, x, weight, case)
            if torch.is_autocast_enabled("cpu") != case.enabled or torch.get_autocast_dtype("cpu") != case.region:
                raise Wrong(
                    "your function leaves autocast's state changed, and the rest of the model runs in it: `with "
                    "torch.autocast(x.device.type, enabled=False):` switches back at its end, after an exception too"
                )
        _check_scores(tensor_like(got, case.x.shape[:1] + case.weight.shape[:1], "the table of scores"), case, seen)
        _check_gradients(got, x, weight, case)


def _cases() -> Iterator[Case]:
    generator = fresh()
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    for dtype, region, enabled in (
        (fp32, bf16, False),
        (fp32, bf16, True),
        (fp32, fp16, True),
        (bf16, bf16, True),
        (fp16, fp16, True),
        (bf16, bf16, False),
    ):
        # Activations of some hundreds: fp16 holds them, and not their squares.
        x = torch.randn(5, 32, generator=generator) * 500 + 100
        yield Case(x.to(dtype), torch.randn(4, 32, generator=generator), region, enabled)


def _ask(answer: Callable[..., Any], x: Tensor, weight: Tensor, case: Case) -> Any:
    try:
        return answer(x, weight)
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        raise Wrong(
            f"{case.where} it raises “{str(error).splitlines()[0]}”: nothing is cast in the island, so x, which an op outside "
            "lowered, meets a float32 weight. `enabled=False` is one half of an island, `x.float()` the other"
        ) from error


def _exact(x: Tensor, weight: Tensor) -> Tensor:
    return (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)) @ weight.T


def _check_scores(got: Tensor, case: Case, seen: KernelLog) -> None:
    right = _exact(case.x.double(), case.weight.double())
    error = (got.double() - right).abs().max().item()
    low = seen.low_matmul()
    if error <= 1e-4 * right.abs().max().item() and got.dtype == torch.float32:
        return
    told = f"{case.where} the scores are {'NaN' if error != error else f'off by {error:.2g}'}"
    if low is not None and case.x.dtype == torch.float32:
        cure = "Put `with torch.autocast(x.device.type, enabled=False):` around it, for the device where x is"
        if got.dtype == torch.float32:
            raise Wrong(
                f"{told}: the matmul ran in {dtype_name(low)} and only its result was cast to float32, which does not restore "
                f"what was rounded off. {cure}"
            )
        raise Wrong(
            f"{told}: the matmul ran in {dtype_name(low)} although both sides were float32. `.float()` alone does not keep "
            f"autocast out: a region that is still on casts them again. {cure}"
        )
    if low is not None:
        raise Wrong(
            f"{told}: the matmul ran in {dtype_name(low)}, because the weight was cast down to x. That hides the clash of dtypes "
            "and computes the island in 16 bits. Cast x up instead: `x.float()`"
        )
    op = seen.low_op()
    if op is not None:
        raise Wrong(
            f"{told}: `{op.name}` still ran on 16-bit numbers, where squares of some hundreds overflow (float16) or keep only "
            "two or three digits (bfloat16). Write `.float()` before the first op of the island, not after it"
        )
    if got.dtype != torch.float32:
        raise Wrong(
            f"{case.where} the scores are computed in float32 and come back as {dtype_name(got.dtype)}: the task asks for "
            "float32, because a softmax over them follows"
        )
    raise Wrong(f"{told}: the scores are x / sqrt(mean(x²) + {EPS:g}), times the transposed weight")


def _check_gradients(got: Tensor, x: Tensor, weight: Tensor, case: Case) -> None:
    if got.requires_grad:
        got.sum().backward()
    for tensor, name in ((x, "x"), (weight, "weight")):
        if tensor.grad is None:
            raise Wrong(
                f"{case.where} no gradient reaches {name}: cast with `.float()`, which autograd records; `.data`, `.detach()` "
                "and no_grad cut the graph"
            )
    twin_x, twin_weight = case.x.double().requires_grad_(), case.weight.double().requires_grad_()
    _exact(twin_x, twin_weight).sum().backward()
    assert weight.grad is not None and twin_weight.grad is not None
    if not torch.allclose(weight.grad.double(), twin_weight.grad, rtol=1e-3, atol=1e-3):
        raise Wrong(
            f"{case.where} the scores are right and the weight's gradient is not: is part of the island detached?"
        )
