"""Judge a half model with fp32 batch norms: by the dtypes and values it holds, and by a batch that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.bits.formats import FP16
from amp_course.checking import Wrong
from amp_course.checking.asking import ask
from amp_course.checking.values import dtype_name, fresh

_LARGE = 400.0  # a standard deviation whose square is beyond fp16, as after a sum over many channels


class _Named(nn.BatchNorm2d):
    """A batch norm whose class has another name, as readers write."""


class _TokenNet(nn.Module):
    """Ids → vectors → a batch norm over the features: its inputs are whole numbers, and stay so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.bn = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (batch, length) → (batch, 3)."""
        return self.head(self.bn(self.table(ids).mean(dim=1)))


def judge(answer: Callable[..., Any]) -> None:
    """`half_keep_bn(model)` → the model: batch norms fp32, everything else fp16, fed with float32 batches or ids."""
    generator = fresh()
    for what, model, batch in _cases(generator):
        _draw_state(model, generator)
        before = {name: value.detach().clone() for name, value in model.state_dict().items()}
        got = ask(answer, f"a model with {what}", model)
        if got is None:
            raise Wrong("your function returned None: return the model")
        if not isinstance(got, nn.Module):
            raise Wrong(f"your function returned a {type(got).__name__}, and a model is wanted")
        _about_what_it_holds(got, before, what)
        _about_a_batch(got, batch, what)


def _cases(generator: torch.Generator) -> list[tuple[str, nn.Module, Tensor]]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    two = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 1), _Named(4))
    )
    one = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3))
    three = nn.Sequential(nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(2 * 8, 3))
    bare = nn.Sequential(nn.Conv2d(1, 4, 1), nn.SyncBatchNorm(4, affine=False), nn.Conv2d(4, 2, 1))
    return [
        ("BatchNorm2d and one whose class has another name", two, draw(6, 1, 5, 5)),
        ("BatchNorm1d and LayerNorm", one, draw(16, 8)),
        ("BatchNorm3d", three, draw(6, 1, 2, 2, 2)),
        ("SyncBatchNorm", bare, draw(6, 1, 4, 4)),
        ("BatchNorm1d over embeddings", _TokenNet(), torch.randint(0, 10, (12, 5), generator=generator)),
    ]


def _draw_state(model: nn.Module, generator: torch.Generator) -> None:
    """Give the model the state of one that was trained; a running variance may well be beyond fp16."""
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(FP16.max * (1.1 + torch.rand(value.shape, generator=generator)))
        elif value.is_floating_point():
            value.copy_(torch.randn(value.shape, generator=generator))


def _norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def _about_what_it_holds(model: nn.Module, before: dict[str, Tensor], what: str) -> None:
    after = model.state_dict()
    if set(after) != set(before):
        raise Wrong(
            "the model's parameters and buffers have other names now: change their dtype, and nothing else of it"
        )
    places = tuple(f"{name}." for name in _norms(model))
    kept = {name: value for name, value in after.items() if name.startswith(places) and value.is_floating_point()}
    rest = {name: value for name, value in after.items() if name not in kept and value.is_floating_point()}
    low = {name: value for name, value in kept.items() if value.dtype != torch.float32}
    if all(value.dtype == torch.float32 for value in rest.values()):
        raise Wrong("nothing is fp16: every parameter and buffer that is not a batch norm's is to be converted")
    for name, value in rest.items():
        if value.dtype == torch.float32 and "LayerNorm" in what:
            raise Wrong(
                f"{name} is float32: only batch norms keep float32 here, and this layer is another. Ask "
                "`isinstance(module, nn.modules.batchnorm._BatchNorm)`, not for a name with “Norm” in it"
            )
        if value.dtype != torch.float16:
            raise Wrong(f"{name} is {dtype_name(value.dtype)}: it is no batch norm's, so it is to be float16")
        if not torch.equal(value, before[name].half()):
            raise Wrong(f"{name} does not hold the weights it had, rounded to fp16")
    if low:
        _about_low(low, kept, what)
    for name, value in kept.items():
        if not torch.equal(value, before[name]):
            raise Wrong(
                f"{name} went through fp16 and back, which rounded it; a running variance beyond fp16's largest number became "
                "inf. That is harmless in a new model and not in a trained one: leave batch norms out when you convert"
            )


def _about_low(low: dict[str, Tensor], kept: dict[str, Tensor], what: str) -> None:
    name, value = next(iter(low.items()))
    if len(low) < len(kept) and all("running" in one for one in low):
        raise Wrong(
            f"{name} is {dtype_name(value.dtype)}: the weights of the batch norm are float32 and its statistics are not. They "
            "are buffers, not parameters: `module.buffers()` has them, and `module.float()` takes both"
        )
    if "SyncBatchNorm" in what or "3d" in what or "1d" in what or ("another name" in what and len(low) < len(kept)):
        raise Wrong(
            f"{name} is {dtype_name(value.dtype)} in a model with {what}: a batch norm is BatchNorm1d, 2d, 3d, SyncBatchNorm "
            "or a class of the reader's own. All are `isinstance(module, nn.modules.batchnorm._BatchNorm)`"
        )
    raise Wrong(
        f"the batch norms are {dtype_name(value.dtype)}, {name} for one: `model.half()` takes everything along, so if it comes "
        "after `bn.float()` it undoes it. Leave batch norms out when you convert"
    )


def _about_a_batch(model: nn.Module, batch: Tensor, what: str) -> None:
    """Run a batch in training mode: inputs as they come from a loader, and large enough to break statistics in fp16."""
    model.train()
    seen: list[torch.dtype] = []
    hooks = [
        module.register_forward_hook(lambda _, args, output: seen.append(output.dtype))
        for module in model.modules()
        if isinstance(module, (nn.Conv2d, nn.Conv3d, nn.Linear))
    ]
    try:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, (nn.Conv2d, nn.Conv3d, nn.Embedding)):
                    module.weight.fill_(_LARGE)  # so that what the batch norm sees varies by some 400
        model(batch)
    except (RuntimeError, TypeError) as error:
        if not batch.is_floating_point():
            raise Wrong(
                "the model was given ids, whole numbers, and could not use them any more: cast floating tensors only, "
                "`x.is_floating_point()`"
            ) from error
        raise Wrong(
            f"a model with {what} could not take a float32 batch, as a data loader gives it: {str(error).splitlines()[0]}. Cast "
            "what goes in, `model.register_forward_pre_hook(lambda model, args: …)`"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if set(seen) != {torch.float16}:
        names = " and ".join(sorted({dtype_name(dtype) for dtype in seen}))
        raise Wrong(
            f"in a model with {what} its layers computed in {names}, and fp16 was wanted: is everything cast to float32?"
        )
    for name, module in _norms(model).items():
        variance = module.running_var
        if isinstance(variance, Tensor) and (
            variance.dtype != torch.float32 or not bool(torch.isfinite(variance).all())
        ):
            raise Wrong(
                f"after a batch, {name}.running_var is {dtype_name(variance.dtype)} and no finite number: keep it in float32"
            )
