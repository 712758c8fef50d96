"""The loop in torchao 0.18, with fp8 layers and 8-bit optimizer states. The cast is inside the
layers that were swapped.

Its optimizers compile their step, for which a CPU needs a C++ compiler; TORCHDYNAMO_DISABLE=1 does
without, and slower.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.optim import AdamW8bit


def train(
    model: nn.Sequential, batches: Iterable[tuple[Tensor, Tensor]], recipe: str = "tensorwise"
) -> list[float]:
    """Train with AdamW; return the loss of every step. recipe:
    "tensorwise", "rowwise" or "rowwise_with_gw_hp".
    """
    has_fp8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=not has_fp8)
    last = str(len(model) - 1)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: name != last
    )
    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
