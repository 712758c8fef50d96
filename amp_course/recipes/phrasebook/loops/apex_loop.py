"""The loop in NVIDIA Apex up to tag 25.05; `apex.amp` was removed in 25.07 in favour of PyTorch's.
Not run: it needs CUDA.

Apex has no bf16: "fp32" is O0 and "fp16" is O1, or O2 and O3, its half models with and without
master weights.
"""

from collections.abc import Iterable

import torch
from apex import amp
from torch import Tensor, nn

OPT_LEVELS = {"fp32": "O0", "fp16": "O1"}


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: str
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32" or "fp16"."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=OPT_LEVELS[precision])
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        # Gradients are unscaled as the block ends; the optimizer's own parameters are the master
        # weights under O2.
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
