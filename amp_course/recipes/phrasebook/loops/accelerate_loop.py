"""The loop in Hugging Face Accelerate 1.15. The region and the scaler are inside of what `prepare`
returns.
"""

from collections.abc import Iterable

import torch
from accelerate import Accelerator
from torch import Tensor, nn

MIXED_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32", "bf16" or "fp16"."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    accelerator = Accelerator(mixed_precision=MIXED_PRECISIONS[precision], cpu=on_cpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), max_norm=1.0)  # unscales first
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
