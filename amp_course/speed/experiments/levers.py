"""The other levers, each pulled with and without AMP: layout, optimizer, zero_grad, fp32 precision,
attention, CUDA graphs.

torch.compile is in `compiling.py`. All take `seconds`, about what a run may last, and leave every
setting as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_course.kit.dtypes import _BACKENDS
from amp_course.kit.models import SimpleNet
from amp_course.loop.recipe import FP32, Recipe
from amp_course.speed.experiments.finding import PUBLISHED, Finding, Published
from amp_course.speed.experiments.interleaved import compare, sentence
from amp_course.speed.experiments.workbench import (
    SGD,
    drawn,
    low_dtype,
    low_recipe,
    pick_size,
    seeded,
    training,
)

MakeStep = Callable[[Recipe], Callable[[], object]]


@dataclass(frozen=True, repr=False)
class Lever(Finding):
    """A lever's settings, each in fp32 and under AMP; the first setting is the one that the others
    are compared with.

    note: what to know besides, or why nothing was measured
    """

    name: str
    settings: tuple[str, ...]
    note: str = ""

    @property
    def title(self) -> str:  # type: ignore[override]
        """The lever's name."""
        return self.name

    @property
    def claim(self) -> str:
        """Compare each setting with the first, in fp32 and under AMP."""
        if self.comparison is None:
            return sentence(self.note)
        first, *others = self.settings
        told = [
            f"{words}, "
            f"{self.comparison.tell(f'{recipe}, {one}', f'{recipe}, {first}', who=one, than=first)}"
            for recipe, words in (("fp32", "in fp32"), ("AMP", "under AMP"))
            for one in others
        ]
        return sentence(*told, self.note)


def pull(
    name: str,
    settings: Mapping[str, MakeStep],
    device: torch.device,
    seconds: float,
    elsewhere: Sequence[Published] = (),
    note: str = "",
) -> Lever:
    """Time each setting in fp32 and under AMP, all in turn. settings:
    name → recipe → the step to time.
    """
    first = next(iter(settings))
    sides = {
        f"{label}, {setting}": make(recipe)
        for label, recipe in (("fp32", FP32), ("AMP", low_recipe(device)))
        for setting, make in settings.items()
    }
    base = {side: f"{side.partition(',')[0]}, {first}" for side in sides}
    return Lever(
        compare(sides, device, seconds=seconds, base=base),
        tuple(elsewhere),
        name,
        tuple(settings),
        note,
    )


def channels_last(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Lever:
    """Train a small convolutional net whose tensors are contiguous (NCHW), and in channels_last
    (NHWC).

    On an NVIDIA GPU, fp32 convolutions round their inputs to TF32 unless you turn that off, and
    here nobody does.
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
    return pull("channels_last", settings, device, seconds, [PUBLISHED["channels_last"]])


def _conv_net(channels: int) -> nn.Module:
    block = [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(
        *block, nn.Conv2d(channels, 10, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def optimizers(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Lever:
    """Train a net of many small layers with AdamW: tensor by tensor, in lists of tensors
    (foreach), in one kernel (fused).
    """
    device = torch.device(device)
    model = seeded(lambda: nn.Sequential(*(nn.Linear(32, 32) for _ in range(24))), device)
    x, y = drawn(16, 32, device=device), drawn(16, 32, device=device, seed=2)
    kinds: dict[str, dict[str, Any]] = {
        "one by one": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }

    def make(options: dict[str, Any], recipe: Recipe) -> Callable[[], Tensor]:
        return training(
            model, x, y, recipe, make_optimizer=partial(torch.optim.AdamW, lr=1e-4, **options)
        )

    settings = {name: partial(make, options) for name, options in kinds.items()}
    note = (
        "weights and optimizer state are fp32 under AMP, too, so the optimizer itself costs the "
        "same there"
    )
    return pull("Optimizer in one kernel", settings, device, seconds, [PUBLISHED["fused"]], note)


class _Zeroing(torch.optim.SGD):
    """SGD whose `zero_grad()` fills the gradients with zeros, as it did before torch 2.0."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def zero_grad(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Lever:
    """Clear the gradients by filling them with zeros, and by dropping them."""
    device = torch.device(device)
    width = pick_size(device, cpu=512, slow=128, gpu=4096)
    model = seeded(partial(SimpleNet, width), device)
    x, y = drawn(32, width, device=device), drawn(32, width, device=device, seed=2)
    settings: dict[str, MakeStep] = {
        "set_to_none=False": lambda recipe: training(
            model, x, y, recipe, make_optimizer=partial(_Zeroing, lr=1e-3)
        ),
        "set_to_none=True": lambda recipe: training(model, x, y, recipe, make_optimizer=SGD),
    }
    return pull(
        "zero_grad",
        settings,
        device,
        seconds,
        note="`set_to_none=True` is the default since torch 2.0",
    )


@contextmanager
def matmul_precision_restored() -> Iterator[None]:
    """Put the precision of fp32 matmuls back at the end,
    in torch's global setting and in those of its backends.
    """
    backends = [backend.fp32_precision for backend in _BACKENDS]
    for backend in _BACKENDS:
        backend.fp32_precision = (
            "none"  # or torch would refuse to tell the global setting where the two disagree
        )
    before = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, precision in zip(_BACKENDS, backends, strict=True):
            backend.fp32_precision = precision


def matmul_precision(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Lever:
    """Train three linear layers with `torch.set_float32_matmul_precision` at "highest",
    "high" and "medium".
    """
    device = torch.device(device)
    width = pick_size(device, cpu=512, slow=128, gpu=4096)
    model = seeded(partial(SimpleNet, width), device)
    x, y = drawn(128, width, device=device), drawn(128, width, device=device, seed=2)

    def make(precision: str, recipe: Recipe) -> Callable[[], Tensor]:
        step = training(model, x, y, recipe)

        def at_precision() -> Tensor:
            torch.set_float32_matmul_precision(precision)
            return step()

        return at_precision

    settings = {name: partial(make, name) for name in ("highest", "high", "medium")}
    with matmul_precision_restored():
        found = pull("Precision of fp32 matmuls", settings, device, seconds)
    assert found.comparison is not None
    verdicts = {found.comparison.ratio(f"fp32, {one}", "fp32, highest").verdict for one in settings}
    if len({found.comparison.results[f"fp32, {one}"] for one in settings}) > 1:
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
    return replace(
        found,
        note=f"{note}. “high” and “medium” allow TF32 on GPUs from Ampere on, “medium” bf16 on "
        f"some CPUs with units for it",
    )


def attention(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Lever:
    """Run causal attention forward and backward: softmax written out,
    and `scaled_dot_product_attention`.
    """
    device = torch.device(device)
    length = pick_size(device, cpu=256, slow=64, gpu=2048)
    shape = (2, 4, length, 64) if device.type == "cpu" else (8, 16, length, 64)

    def make(attend: Callable[..., Tensor], recipe: Recipe) -> Callable[[], Tensor]:
        q, k, v = (drawn(*shape, device=device, seed=seed).requires_grad_() for seed in range(3))

        def step() -> Tensor:
            with torch.autocast(
                device.type, recipe.dtype or low_dtype(device), enabled=recipe.dtype is not None
            ):
                loss = attend(q, k, v).float().square().mean()
            torch.autograd.grad(loss, (q, k, v))
            return loss.detach()

        return step

    fused = partial(F.scaled_dot_product_attention, is_causal=True)
    settings = {"softmax written out": partial(make, written_out), "SDPA": partial(make, fused)}
    return pull("Fused attention (SDPA)", settings, device, seconds, [PUBLISHED["attention"]])


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention, (batch, heads, length, size) → the same shape,
    through a matrix of length × length.
    """
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def cuda_graphs(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Lever:
    """Launch the many small kernels of a deep, narrow net one by one, and as one recorded graph;
    needs an NVIDIA GPU.
    """
    device, name = torch.device(device), "CUDA graphs"
    settings = ("one launch each", "one graph")
    if device.type != "cuda":
        note = (
            "a CUDA graph records what a step sends to an NVIDIA GPU, and sends it again as "
            "one; there is no such GPU here"
        )
        return Lever(None, (PUBLISHED["graphs"],), name, settings, note)
    x = drawn(16, 64, device=device)

    def make(graphed: bool, recipe: Recipe) -> Callable[[], Tensor]:
        model: Any = seeded(lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(24))), device)
        # subtle: a graph repeats what it recorded, so the region must not keep casts that were made
        #         outside of it
        region = partial(
            torch.autocast,
            "cuda",
            low_dtype(device),
            enabled=recipe.dtype is not None,
            cache_enabled=False,
        )
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

    made = dict(zip(settings, (partial(make, False), partial(make, True)), strict=True))
    return pull(name, made, device, seconds, [PUBLISHED["graphs"]])
