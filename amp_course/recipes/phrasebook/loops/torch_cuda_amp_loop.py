"""The loop in the old `torch.cuda.amp`, PyTorch 1.6 to 2.3; newer ones still have it and warn.

The names are bound to CUDA. Without a GPU both warn and switch themselves off: the loop runs, in
fp32.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.cuda.amp import GradScaler, autocast

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32", "bf16" or "fp16"."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = GradScaler(enabled=precision == "fp16")
    losses = []
    for inputs, targets in batches:
        with autocast(enabled=precision != "fp32", dtype=DTYPES.get(precision, torch.float16)):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
