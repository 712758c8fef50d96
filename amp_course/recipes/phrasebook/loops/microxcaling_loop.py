"""The loop in microxcaling, commit 7bc4195 on GitHub. It simulates: numbers are rounded to MX
formats, and multiplied in fp32.

Weights and activations are rounded in the forward pass, all operands of both products in the
backward pass.
"""

from collections.abc import Iterable

import mx
import torch
from torch import Tensor, nn


def train(
    model: nn.Sequential, batches: Iterable[tuple[Tensor, Tensor]], recipe: str = "fp8_e4m3"
) -> list[float]:
    """Train with AdamW; return the loss of every step. recipe:
    "fp8_e4m3", "fp6_e3m2", "fp6_e2m3" or "fp4_e2m1".
    """
    specs = mx.finalize_mx_specs(
        {
            "w_elem_format": recipe,
            "a_elem_format": recipe,
            "block_size": 32,
            "scale_bits": 8,
            "round": "even",
        }
    )
    for place, layer in enumerate(model[:-1]):
        if isinstance(layer, nn.Linear):
            model[place] = mx.Linear(
                layer.in_features, layer.out_features, bias=layer.bias is not None, mx_specs=specs
            )
            model[place].load_state_dict(layer.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
