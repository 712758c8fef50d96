"""Train for real on two ranks, and record each step: do their loss scales and their replicated
weights stay equal?

No overflow is planted. The scale grows every few steps, so fp16 gradients overflow now and then, as
in any training, only more often. Where gradients are reduced over the ranks, all ranks notice;
where each rank keeps its own, only that rank does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.distributed.agreement.agreed import AgreedGradScaler
from amp_course.distributed.ranks import values_on_ranks
from amp_course.distributed.scripts.tensor_parallel_amp import ParallelMLP
from amp_course.kit.data import digits

Kind = Literal["ddp", "fsdp2", "by hand", "agreed"]
KINDS: dict[Kind, str] = {
    "ddp": "DDP, plain GradScaler",
    "fsdp2": "FSDP2, plain GradScaler",
    "by hand": "sharded by hand, plain GradScaler",
    "agreed": "sharded by hand, AgreedGradScaler",
}
_BATCH, _GROWTH = 64, 8


@dataclass(frozen=True)
class Drift:
    """What happened on each rank, step by step.

    scales:   rank × step, the loss scale after the step
    skipped:  rank × step
    distance: for each step, the largest difference between the ranks' replicated weights
    losses:   rank × step
    """

    kind: Kind
    scales: tuple[tuple[float, ...], ...]
    skipped: tuple[tuple[bool, ...], ...]
    distance: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]

    @property
    def parted(self) -> int | None:
        """The first step, from 1, after which the scales differ; None if they never do."""
        by_step = enumerate(zip(*self.scales, strict=True), 1)
        return next((step for step, scales in by_step if len(set(scales)) > 1), None)


def run_drift(kind: Kind, steps: int = 60) -> Drift:
    """Train on the digits for `steps` steps on two ranks. Raises CourseError if a rank fails."""
    scales, skipped, losses, weights = zip(*values_on_ranks(_train, kind, steps), strict=True)
    distance = [float((a - b).abs().max()) for a, b in zip(*weights, strict=True)]
    return Drift(kind, scales, skipped, tuple(distance), losses)


def _train(
    kind: Kind, steps: int
) -> tuple[tuple[float, ...], tuple[bool, ...], tuple[float, ...], list[Tensor]]:
    """Train on this rank; return, step by step, its scale, whether it skipped, its loss and its
    replicated weights.
    """
    torch.manual_seed(0)
    model, shared = _build(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler_type = AgreedGradScaler if kind == "agreed" else torch.amp.GradScaler
    scaler = scaler_type("cpu", init_scale=2.0**16, growth_interval=_GROWTH)
    data = digits()
    inputs, targets = data.train_x.flatten(1), data.train_y
    stepped: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    scales, skipped, losses, weights = [], [], [], []
    for _ in range(steps):
        # the same rows on all ranks, as they share a seed
        rows = torch.randint(len(targets), (_BATCH * dist.get_world_size(),))
        if kind in ("ddp", "fsdp2"):
            rows = rows.chunk(dist.get_world_size())[dist.get_rank()]
        with torch.autocast("cpu", dtype=torch.float16, enabled=kind != "fsdp2"):
            loss = cross_entropy(model(inputs[rows]), targets[rows])
        stepped.clear()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        skipped.append(not stepped)
        losses.append(loss.item())
        weights.append(torch.cat([weight.detach().flatten() for weight in shared()]))
    return tuple(scales), tuple(skipped), tuple(losses), weights


def _build(kind: Kind) -> tuple[nn.Module, Callable[[], Iterable[Tensor]]]:
    """Return a model, and a function that returns the weights that every rank has."""
    if kind in ("by hand", "agreed"):
        parts = ParallelMLP(64, 128, 10)
        return parts, parts.norm.parameters
    net = nn.Sequential(
        nn.LayerNorm(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10, bias=False)
    )
    if kind == "ddp":
        return DistributedDataParallel(net), net.parameters
    # by default, FSDP2 moves the model to a GPU if there is one
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.float16, torch.float32, torch.float32)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    return net, lambda: [cast(DTensor, weight).full_tensor() for weight in net.parameters()]
