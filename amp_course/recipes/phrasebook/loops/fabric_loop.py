"""The loop in Lightning Fabric 2.6. The region is around the model's own forward pass,
the loss stands outside of it.
"""

from collections.abc import Iterable

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32", "bf16" or "fp16"."""
    device = next(model.parameters()).device.type
    fabric = Fabric(accelerator=device, devices=1, precision=PRECISIONS[precision])
    fabric.launch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = fabric.setup(model, optimizer)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)  # unscales first
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
