"""Training setups whose collectives can be counted: DDP and FSDP2, with the dtypes that mixed
precision gives them.

The model is small, so that a step takes milliseconds on any CPU; bytes are proportional to its
parameters. SETUPS has those that run here: FSDP2 needs torch 2.7 on a CPU.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.futures import Future
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from amp_course.kit.models import SimpleNet

WIDTH, BATCH = 64, 2


@dataclass
class Training:
    """What a step needs; a disabled GradScaler where none is used."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    scaler: torch.amp.GradScaler


@dataclass(frozen=True)
class Setup:
    """The arguments of `count_collectives`."""

    build: Callable[[], Training]
    step: Callable[[Training], None]


def build_ddp(hook: Callable[..., Any] | None = None, scaled: bool = False) -> Training:
    """Wrap SimpleNet(64) in DDP."""
    model = DistributedDataParallel(SimpleNet(WIDTH))
    if hook:
        model.register_comm_hook(None, hook)
    return _training(model, scaled)


def build_fsdp2(policy: MixedPrecisionPolicy | None = None) -> Training:
    """Shard each layer of SimpleNet(64) with FSDP2, then the model."""
    model = SimpleNet(WIDTH)
    # by default FSDP2 moves the model to a GPU if there is one
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.children(), model):
        fully_shard(module, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return _training(model)


def _bf16_hook(state: Any, bucket: GradBucket) -> Future[Tensor]:
    """Call torch's hook, which DDP refuses by its name on a CPU, though it works there."""
    return bf16_compress_hook(state, bucket)


def _training(model: nn.Module, scaled: bool = False) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    return Training(model, optimizer, torch.ones(BATCH, WIDTH), torch.zeros(BATCH, WIDTH), scaler)


def train_step(
    training: Training,
    autocast: torch.dtype | None = None,
    micro_batches: int = 1,
    sync_all: bool = False,
    clip: bool = False,
) -> None:
    """Run a training step. Gradients are reduced in the last micro-batch's backward pass, or in all
    of them if `sync_all`.
    """
    model, scaler = training.model, training.scaler
    for number in range(1, micro_batches + 1):
        sync = sync_all or number == micro_batches
        with nullcontext() if sync else model.no_sync():  # type: ignore[operator]
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                loss = F.mse_loss(model(training.x).float(), training.y) / micro_batches
            scaler.scale(loss).backward()
    if clip:
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(training.optimizer)
    scaler.update()
    training.optimizer.zero_grad()


MICRO_BATCHES = 4
_BF16_FP32 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
_BF16_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

SETUPS = {
    "DDP, fp32": Setup(build_ddp, train_step),
    "DDP, autocast bf16": Setup(build_ddp, partial(train_step, autocast=torch.bfloat16)),
    "DDP, autocast fp16": Setup(
        partial(build_ddp, scaled=True), partial(train_step, autocast=torch.float16)
    ),
    "DDP, fp16 hook": Setup(partial(build_ddp, hook=fp16_compress_hook), train_step),
    "DDP, bf16 hook": Setup(partial(build_ddp, hook=_bf16_hook), train_step),
    "DDP, 4 micro-batches": Setup(
        build_ddp, partial(train_step, micro_batches=MICRO_BATCHES, sync_all=True)
    ),
    "DDP, 4 with no_sync": Setup(build_ddp, partial(train_step, micro_batches=MICRO_BATCHES)),
    "FSDP2, fp32": Setup(build_fsdp2, train_step),
    "FSDP2, bf16, reduce fp32": Setup(partial(build_fsdp2, policy=_BF16_FP32), train_step),
    "FSDP2, bf16, reduce bf16": Setup(partial(build_fsdp2, policy=_BF16_BF16), train_step),
    "FSDP2, fp32, clipped": Setup(build_fsdp2, partial(train_step, clip=True)),
}
