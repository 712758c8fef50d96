"""The loop in Colossal-AI's Booster, version 0.5. Not run: it needs CUDA and a process group over
NCCL.

Start it with `torchrun --nproc_per_node 1`, which sets the variables that `launch_from_torch`
reads.
"""

from collections.abc import Iterable

import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin
from torch import Tensor, nn

MIXED_PRECISIONS = {"fp32": None, "fp16": "fp16"}  # "fp16" is PyTorch's AMP


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32" or "fp16"."""
    colossalai.launch_from_torch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    booster = Booster(mixed_precision=MIXED_PRECISIONS[precision], plugin=TorchDDPPlugin())
    model, optimizer, loss_fn, *_ = booster.boost(model, optimizer, nn.CrossEntropyLoss())
    losses = []
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        booster.backward(loss, optimizer)
        optimizer.clip_grad_by_norm(max_norm=1.0)  # unscales first
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
