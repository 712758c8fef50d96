"""Other ways to a faster step, each with and without AMP: layout, optimizer, precision of fp32,
attention, CUDA graphs.

torch.compile is in `compiling.py`. Each takes about `seconds` and restores every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_course.kit.dtypes import _BACKENDS, _restored_matmul_precision
from amp_course.loop.recipe import Recipe
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentences
from amp_course.speed.experiments.workbench import (
    both_recipes,
    drawn,
    pick_size,
    seeded,
    three_layers,
    training,
)

MakeStep = Callable[[Recipe], Callable[[], object]]


def time_settings(
    settings: Mapping[str, MakeStep], device: torch.device, seconds: float
) -> Comparison:
    """Time each setting of a lever in fp32 and under AMP, all in turn.

    settings: name → recipe → the step to time; the others are compared with the first
    """
    first = next(iter(settings))
    sides = {
        f"{label}, {setting}": make(recipe)
        for label, recipe in both_recipes(device).items()
        for setting, make in settings.items()
    }
    base = {side: f"{side.partition(',')[0]}, {first}" for side in sides}
    return compare(sides, device, seconds=seconds, base=base)


def describe_settings(found: Comparison, note: str = "") -> str:
    """Compare each setting with the first, in fp32 and under AMP; note: one more clause."""
    first, *others = (side[6:] for side in found.seconds if side.startswith("fp32, "))
    clauses = [
        f"{words}, {found.describe(f'{recipe}, {one}', f'{recipe}, {first}', who=one, than=first)}"
        for recipe, words in (("fp32", "in fp32"), ("AMP", "under AMP"))
        for one in others
    ]
    return sentences(*clauses, note)


def pull(
    title: str,
    settings: Mapping[str, MakeStep],
    device: torch.device,
    seconds: float,
    published: str,
    note: str = "",
) -> Finding:
    """Time a lever's settings as `time_settings`, and describe the result."""
    found = time_settings(settings, device, seconds)
    return Finding(title, found, describe_settings(found, note), (published,))


def channels_last(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Train a small convolutional net with contiguous tensors (NCHW) and in channels_last (NHWC).

    On an NVIDIA GPU, fp32 convolutions round their inputs to TF32, as is PyTorch's default.
    """
    device = torch.device(device)
    channels = 32 if device.type == "cpu" else 256
    side = pick_size(device, cpu=32, slow=8, gpu=56)

    def make(layout: torch.memory_format, recipe: Recipe) -> Callable[[], Tensor]:
        model = seeded(partial(_conv_net, channels), device).to(memory_format=layout)  # type: ignore[call-overload]
        x = drawn(16, channels, side, side, device=device).to(memory_format=layout)
        return training(model, x, torch.arange(16, device=device) % 10, recipe, F.cross_entropy)

    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    settings = {name: partial(make, layout) for name, layout in layouts.items()}
    return pull("channels_last", settings, device, seconds, "channels_last")


def _conv_net(channels: int) -> nn.Module:
    block = [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(
        *block, nn.Conv2d(channels, 10, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def optimizers(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Train a net of many small layers with AdamW: tensor by tensor, in lists of tensors
    (foreach), in one kernel (fused).
    """
    device = torch.device(device)
    model = seeded(partial(_deep_net, 32), device)
    x, y = (drawn(16, 32, device=device, seed=seed) for seed in (1, 2))

    def make(options: dict[str, Any], recipe: Recipe) -> Callable[[], Tensor]:
        make_optimizer = partial(torch.optim.AdamW, lr=1e-4, **options)
        return training(model, x, y, recipe, make_optimizer=make_optimizer)

    settings = {
        "one by one": partial(make, {"foreach": False}),
        "foreach": partial(make, {"foreach": True}),
        "fused": partial(make, {"fused": True}),
    }
    note = (
        "weights and optimizer state are fp32 under AMP, too, so the optimizer itself costs the "
        "same there"
    )
    return pull("Optimizer in one kernel", settings, device, seconds, "fused", note)


def _deep_net(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(24)))


@contextmanager
def matmul_precision_restored() -> Iterator[None]:
    """Restore the precision of fp32 matmuls at the end, torch's global one and its backends'."""
    with _restored_matmul_precision():
        for backend in _BACKENDS:
            # or torch raises an error where the global setting disagrees with it
            backend.fp32_precision = "none"
        before = torch.get_float32_matmul_precision()
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def matmul_precision(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Train three linear layers with `torch.set_float32_matmul_precision` at "highest",
    "high" and "medium".
    """
    device = torch.device(device)
    width = pick_size(device, cpu=512, slow=128, gpu=4096)

    def make(precision: str, recipe: Recipe) -> Callable[[], Tensor]:
        step = three_layers(width, 128, device, recipe)

        def at_precision() -> Tensor:
            torch.set_float32_matmul_precision(precision)
            return step()

        return at_precision

    settings = {name: partial(make, name) for name in ("highest", "high", "medium")}
    with matmul_precision_restored():
        found = time_settings(settings, device, seconds)
    verdicts = {found.ratio(f"fp32, {one}", "fp32, highest").verdict for one in settings}
    if len({found.results[f"fp32, {one}"] for one in settings}) > 1:
        note = (
            "this machine makes use of it: fp32 matmuls round their inputs, and the first loss "
            "is no longer the same"
        )
    elif verdicts != {"same"}:
        note = (
            "the first loss is the same to the last bit: what differs here is the kernel that "
            "runs, not a coarser format"
        )
    else:
        note = (
            "the first loss is the same to the last bit, so this machine does not use what the "
            "setting allows"
        )
    note += (
        ". “high” and “medium” allow TF32 on GPUs from Ampere on, “medium” bf16 on some CPUs with "
        "units for it"
    )
    return Finding("Precision of fp32 matmuls", found, describe_settings(found, note))


def attention(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Run causal attention forward and backward: softmax written out, and SDPA."""
    device = torch.device(device)
    length = pick_size(device, cpu=256, slow=64, gpu=2048)
    shape = (2, 4, length, 64) if device.type == "cpu" else (8, 16, length, 64)

    def make(attend: Callable[..., Tensor], recipe: Recipe) -> Callable[[], Tensor]:
        q, k, v = (drawn(*shape, device=device, seed=seed).requires_grad_() for seed in range(3))

        def step() -> Tensor:
            with torch.autocast(device.type, recipe.dtype, enabled=recipe.dtype is not None):
                loss = attend(q, k, v).float().square().mean()
            torch.autograd.grad(loss, (q, k, v))
            return loss.detach()

        return step

    fused = partial(F.scaled_dot_product_attention, is_causal=True)
    settings = {"softmax written out": partial(make, written_out), "SDPA": partial(make, fused)}
    return pull("Fused attention (SDPA)", settings, device, seconds, "attention")


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention, (batch, heads, length, size) → the same, by a length² matrix."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def cuda_graphs(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Finding:
    """Launch the kernels of a deep, narrow net one by one, and as a graph; needs an NVIDIA GPU."""
    device, title = torch.device(device), "CUDA graphs"
    if device.type != "cuda":
        claim = (
            "A CUDA graph records what a step sends to an NVIDIA GPU, and sends it again as one; "
            "there is no such GPU here."
        )
        return Finding(title, None, claim, ("graphs",))
    x = drawn(16, 64, device=device)

    def make(graphed: bool, recipe: Recipe) -> Callable[[], Tensor]:
        model: Any = seeded(partial(_deep_net, 64), device)
        # subtle: a graph repeats what it recorded, so the region must not use casts that were made
        #         outside of it
        enabled = recipe.dtype is not None
        region = partial(torch.autocast, "cuda", recipe.dtype, enabled=enabled, cache_enabled=False)
        if graphed:
            with region():
                model = torch.cuda.make_graphed_callables(model, (x,))

        def step() -> Tensor:
            with region():
                loss = model(x).float().square().mean()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad = None
            return loss.detach()

        return step

    settings = {"one launch each": partial(make, False), "one graph": partial(make, True)}
    return pull(title, settings, device, seconds, "graphs")
