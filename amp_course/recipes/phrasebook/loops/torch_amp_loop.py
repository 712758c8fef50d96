"""The loop in `torch.amp`, PyTorch 2.4 and newer, with which the others are compared."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32", "bf16" or "fp16"."""
    device = next(model.parameters()).device.type
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    losses = []
    for inputs, targets in batches:
        with torch.autocast(device, dtype=DTYPES.get(precision), enabled=precision != "fp32"):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
