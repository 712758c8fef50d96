"""Judge a fine-tuning set-up, half of it frozen in fp16: by its dtypes, its modes, and by training it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import ask
from amp_course.checking.blank import is_blank
from amp_course.checking.values import dtype_name, fresh
from amp_course.patterns.judges.small_trainings import Witness, flat, near

_IN, _FEATURES, _HIDDEN, _CLASSES = 16, 24, 12, 5
_RATE, _STEPS = 0.2, 4
_MOVED = 0.05  # how far the head's way in fp16 may be from that in fp32; it is within a tenth of this


def judge_frozen_layers(answer: Callable[..., Any]) -> None:
    """`FineTuned(backbone, head)`: a module with `forward`, `train` and `trainable`; the backbone frozen, in fp16."""
    for name in ("__init__", "forward", "train", "trainable"):
        if isinstance(answer, type) and is_blank(vars(answer).get(name)):
            raise Wrong(f"`{name}` is still to be written")
    generator = fresh()
    norm = nn.BatchNorm1d(_FEATURES)
    backbone = nn.Sequential(nn.Linear(_IN, _FEATURES), norm, nn.Tanh())
    head = nn.Sequential(
        nn.Linear(_FEATURES, _HIDDEN), nn.BatchNorm1d(_HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _CLASSES)
    )
    for parameter in (*backbone.parameters(), *head.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    assert norm.running_mean is not None and norm.running_var is not None
    for statistic in (norm.running_mean, norm.running_var):
        statistic.copy_(torch.rand(_FEATURES, generator=generator) + 0.5)
    batches = [
        (torch.randn(12, _IN, generator=generator), torch.randint(_CLASSES, (12,), generator=generator))
        for _ in range(_STEPS)
    ]
    start = flat(head.parameters())
    moved = _fp32(copy.deepcopy(backbone), copy.deepcopy(head), batches) - start
    statistics = norm.running_mean.clone()
    model = ask(answer, "a backbone and a head", backbone, head)
    if not isinstance(model, nn.Module):
        raise Wrong(f"the answer makes a {type(model).__name__}: it has to be an `nn.Module`")
    _check_modes(model)
    trainable = _check_parameters(model, sum(p.numel() for p in head.parameters()))
    _train(model, trainable, batches)
    _check_training(model, trainable, statistics, start, moved)


def _fp32(backbone: nn.Module, head: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the head's flat weights after training it in fp32 on a backbone that stands still."""
    backbone.eval()
    optimizer = torch.optim.SGD(head.parameters(), lr=_RATE)
    for inputs, targets in batches:
        with torch.no_grad():
            features = backbone(inputs)
        nn.functional.cross_entropy(head(features), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(head.parameters())


def _norms(model: nn.Module) -> tuple[nn.BatchNorm1d, nn.BatchNorm1d]:
    """Return the batch norms of backbone and head, found by their widths."""
    found = {m.num_features: m for m in model.modules() if isinstance(m, nn.BatchNorm1d)}
    if found.keys() != {_FEATURES, _HIDDEN}:
        raise Wrong(
            "the model has to hold both parts as submodules, `self.backbone = …`, or `.to(device)` and `state_dict` "
            "pass them over"
        )
    return found[_FEATURES], found[_HIDDEN]


def _check_modes(model: nn.Module) -> None:
    for mode in (True, False):
        returned = model.train(mode)
        frozen, live = _norms(model)
        if returned is not model:
            raise Wrong("`train()` has to return the model, as every module's does: `return self`")
        if frozen.training:
            raise Wrong(
                "after `model.train()` the frozen batch norm is in training mode: it normalises by the batch, and "
                "moves its running statistics with no gradient at all. Override `train`: call `super().train(mode)`, "
                "then `self.backbone.eval()`"
            )
        if live.training != mode:
            raise Wrong(
                f"after `model.train({mode})` the head is in {'training' if live.training else 'eval'} mode: only the "
                "backbone stands still"
            )
    model.train()


def _check_parameters(model: nn.Module, head_size: int) -> list[nn.Parameter]:
    method: Any = getattr(model, "trainable", None)
    if not callable(method):
        raise Wrong("the model has no method `trainable()`, which gives the parameters for the optimizer")
    given = ask(method, "no arguments")
    if given is None:
        raise Wrong("`trainable()` returned None: return the parameters for the optimizer")
    trainable = list(given)
    if not all(isinstance(parameter, nn.Parameter) for parameter in trainable):
        raise Wrong("`trainable()` has to give parameters, without their names: `self.head.parameters()`")
    own = {id(parameter) for parameter in trainable}
    frozen = [parameter for parameter in model.parameters() if id(parameter) not in own]
    size = sum(parameter.numel() for parameter in trainable)
    if size > head_size:
        raise Wrong(
            f"`trainable()` gives {size:,} weights, and the head has {head_size:,}: the optimizer gets the frozen "
            "ones as well, and keeps state for them. A group in which nothing has a gradient raises “No inf checks "
            "were recorded”"
        )
    if size < head_size:
        raise Wrong(f"`trainable()` gives {size:,} weights, and the head has {head_size:,}")
    if any(parameter.dtype != torch.float32 for parameter in trainable):
        raise Wrong(
            f"the head's parameters are {dtype_name(trainable[0].dtype)}: what is trained stays float32, or the "
            "scaler raises “Attempting to unscale FP16 gradients”. `.half()` is for the backbone alone"
        )
    if not all(parameter.requires_grad for parameter in trainable):
        raise Wrong("the head is frozen, too: `requires_grad_(False)` is for the backbone alone")
    if any(parameter.requires_grad for parameter in frozen):
        raise Wrong(
            "the backbone is not frozen: its parameters require gradients, which are computed and kept. "
            "`backbone.requires_grad_(False)`"
        )
    if any(parameter.dtype != torch.float16 for parameter in frozen if parameter.dim() > 1):
        raise Wrong(
            f"the backbone's weights are {dtype_name(frozen[0].dtype)}: nobody updates them, so they need no float32, "
            "and in fp16 take half of the memory. `backbone.half()`"
        )
    return trainable


def _train(model: nn.Module, trainable: list[nn.Parameter], batches: list[tuple[Tensor, Tensor]]) -> None:
    """Train as any AMP loop would."""
    optimizer = Witness(trainable, _RATE).optimizer
    optimizer.has_scaler = False
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for inputs, targets in batches:
        model.train()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(ask(model, "inputs under fp16 autocast", inputs), targets)
        if not loss.requires_grad:
            raise Wrong("the output has no graph: `no_grad` is for the backbone's pass alone, not for the head's")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def _check_training(
    model: nn.Module, trainable: list[nn.Parameter], statistics: Tensor, start: Tensor, moved: Tensor
) -> None:
    frozen, live = _norms(model)
    assert frozen.running_mean is not None and live.running_mean is not None
    if not near(frozen.running_mean.float(), statistics, 1e-3):
        raise Wrong("the frozen batch norm's running statistics moved during training: keep the backbone in eval mode")
    if not bool(live.running_mean.any()):
        raise Wrong("the head's batch norm gathered no statistics: the head trains, so it is in training mode")
    if not near(flat(trainable) - start, moved, _MOVED):
        raise Wrong(
            "the head's weights after a few steps are not those of fp32 training on the same features: the model is "
            "`head(backbone(inputs))`"
        )
    model.eval()
    for mode in (False, True):  # with and without a region: an evaluation may have none
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=mode):
            ask(model, f"inputs {'under' if mode else 'outside of'} autocast, in eval mode", torch.zeros(3, _IN))
