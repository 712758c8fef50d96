"""Judge what stands around the step: the scale's log, and bytes per parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from amp_course.checking import Wrong
from amp_course.checking.witness import Notes, WatchedScaler, WatchedSGD, drawn_seed
from amp_course.kit.memory import gradient_bytes, optimizer_bytes, parameter_bytes

INF, NAN = float("inf"), float("nan")


def judge_log(answer: Callable[..., Any]) -> None:
    """`scaled_step(scaler, optimizer)` → (scale this step used, whether it was skipped), for drawn gradients."""
    generator = torch.Generator().manual_seed(drawn_seed())
    bad = [(INF if draw < 0.5 else NAN) for draw in torch.rand(2, generator=generator).tolist()]
    # Growth after every second clean step, so that "the scale changed" and "the step was skipped" differ.
    gradients = [1.0, 0.5, 2.0, bad[0], 1.0, 0.25, -INF, bad[1], NAN, 1.0, 3.0, 0.5]
    parameter = nn.Parameter(torch.ones(3))
    notes = Notes()
    optimizer = WatchedSGD([parameter], lr=0.01, notes=notes)
    scaler = WatchedScaler(notes, init_scale=2.0**8, growth_interval=2)
    for number, gradient in enumerate(gradients):
        scaler.scale(torch.ones(()))
        used, steps, updates = scaler.get_scale(), notes.count()["step"], notes.count()["update"]
        parameter.grad = torch.tensor([1.0, gradient, 1.0]) * used
        before = parameter.detach().clone()
        try:
            got = answer(scaler, optimizer)
        except RuntimeError as error:
            if "already been called" in str(error) and notes.count()["update"] == updates == 0:
                raise Wrong(
                    "`scaler.update()` is missing: the second step finds the scaler still in the first"
                ) from error
            raise
        seen = notes.count()
        skipped = seen["step"] == steps
        if seen["scaler.step"] != number + 1:
            raise Wrong("`scaler.step(optimizer)` has to run once in each call: your function replaces it and logs it")
        if seen["update"] != number + 1:
            raise Wrong("`scaler.update()` has to run once in each call, after a skipped step too")
        if skipped != torch.equal(before, parameter.detach()):
            raise Wrong(
                "the weights moved although the step was to be skipped, or the other way round: leave them to the scaler"
            )
        _compare_log(got, used, skipped, gradient, scaler)


def _compare_log(got: Any, used: float, skipped: bool, gradient: float, scaler: torch.amp.GradScaler) -> None:
    if got is None:
        raise Wrong("your function returned None: return the pair (scale, skipped)")
    if not (isinstance(got, tuple) and len(got) == 2):
        raise Wrong(f"your function returned {type(got).__name__}, not the pair (scale, skipped)")
    scale, said = got
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise Wrong(f"the first of the pair is the scale, a number, and yours is {scale!r}")
    if not isinstance(said, bool):
        raise Wrong(f"the second of the pair is True or False, and yours is {said!r}")
    after = scaler.get_scale()
    if scale != used and scale == after:
        raise Wrong(
            f"the scale was read after the update: this step used {used:g} and you logged {after:g}, which is the next "
            "one's. Read it before `scaler.update()`"
        )
    if scale != used:
        raise Wrong(f"this step used the scale {used:g} and you logged {scale:g}")
    if said == skipped:
        return
    if said and after > used:
        raise Wrong(
            f"a step that was taken counts as skipped: the scale changed from {used:g} to {after:g} because it grew. Only a "
            "scale that went down means a skip"
        )
    if said:
        raise Wrong(
            "a step that was taken counts as skipped. `scaler.step` returns what the optimizer returns, and that is None "
            "for every step without a closure: compare the scale before and after `update()`"
        )
    if gradient != gradient:
        raise Wrong(
            "a step with NaN in its gradients was skipped and your log says it was not: inf is not the only cause"
        )
    raise Wrong(
        f"a step with {gradient:g} in its gradients was skipped and your log says it was not: after such a step "
        f"`update()` lowers the scale, here from {used:g} to {after:g}"
    )


_BYTE_MISTAKES: dict[tuple[str, int], str] = {
    ("fp32", 4): "4 bytes are the weight alone: its gradient and Adam's two averages take 4 more each",
    ("fp32", 8): "8 bytes are weight and gradient: Adam keeps two averages for each parameter besides",
    ("fp32", 12): "12 bytes leave one of four out: weight, gradient, Adam's first and second average",
    ("amp", 8): "AMP does not halve these: autocast casts copies, and the weights, their gradients and Adam's averages "
    "stay float32. What shrinks is activations",
    (
        "amp",
        10,
    ): "the weights stay float32 under AMP, and gradients have their parameter's dtype: nothing here is 2 bytes",
    ("amp", 12): "the weights stay float32 under AMP, and so do gradients and both of Adam's averages",
    ("amp", 14): "a gradient has the dtype of its parameter, which is float32 under AMP: 4 bytes, not 2",
    ("amp", 18): "the half-precision copy of a weight lives only while the autocast region is open; it is not kept for "
    "each parameter between steps",
    (
        "half",
        16,
    ): "a pure half model holds everything in 2 bytes: weight, gradient, and Adam's averages, which take the "
    "parameter's dtype",
    ("half", 12): "Adam makes its averages in the parameter's dtype: 2 bytes each here, not 4",
    ("half", 6): "Adam keeps two averages for each parameter, not one",
    ("half", 4): "4 bytes are weight and gradient: Adam's two averages are there too",
    ("half", 2): "2 bytes are the weight alone",
}


def judge_bytes(answer: Any) -> None:
    """`{"fp32": …, "amp": …, "half": …}`: bytes per parameter with Adam, each counted after a real step."""
    casts = {
        "fp32": (torch.float32, None),
        "amp": (torch.float32, torch.bfloat16),
        "half": (torch.bfloat16, None),
    }
    if not isinstance(answer, Mapping) or set(answer) != set(casts):
        raise Wrong(f"the answer is a dict with the keys {', '.join(casts)}")
    for name, (stored, autocast) in casts.items():
        got, truth = answer[name], bytes_per_parameter(stored, autocast)
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise Wrong(f"{name}: the number of bytes is a number, and yours is {got!r}")
        if got != truth:
            known = _BYTE_MISTAKES.get((name, int(got)), "add up weight, gradient and Adam's two averages")
            raise Wrong(f"{name} does not take {got:g} bytes per parameter: {known}")


def bytes_per_parameter(stored: torch.dtype, autocast: torch.dtype | None) -> int:
    """Count weight, gradient and Adam's state after one step of a layer stored in `stored`: fp32 → 16."""
    layer = nn.Linear(64, 64, bias=False, dtype=stored)
    optimizer = torch.optim.Adam(layer.parameters())
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = layer(torch.ones(4, 64, dtype=stored)).float().square().mean()
    loss.backward()
    optimizer.step()
    total = parameter_bytes(layer) + gradient_bytes(layer) + optimizer_bytes(optimizer)
    return total // layer.weight.numel()  # Adam's step counter, 4 bytes for a whole layer, rounds away
