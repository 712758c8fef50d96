"""The loop in Transformer Engine 2.18, with fp8 layers and optimizer states. Not run: it needs
CUDA.

The layers are its own, so they are put into the model by hand; the cast happens within
`te.autocast`.
"""

from collections.abc import Iterable

import torch
import transformer_engine.pytorch as te
from torch import Tensor, nn
from transformer_engine.common import recipe as recipes

RECIPES = {
    "delayed": recipes.DelayedScaling,
    "current": recipes.Float8CurrentScaling,
    "block": recipes.Float8BlockScaling,
    "mxfp8": recipes.MXFP8BlockScaling,
}


def train(
    model: nn.Sequential, batches: Iterable[tuple[Tensor, Tensor]], recipe: str = "current"
) -> list[float]:
    """Train with AdamW on a GPU; return the loss of every step. recipe: one of RECIPES."""
    for place, layer in enumerate(model[:-1]):
        # Both sizes, and the batch, are multiples of 16; of 32 for "mxfp8"
        if isinstance(layer, nn.Linear):
            bias = layer.bias is not None
            model[place] = te.Linear(layer.in_features, layer.out_features, bias=bias)
            model[place].load_state_dict(layer.state_dict(), strict=False)
    optimizer = te.optimizers.FusedAdam(
        model.parameters(),
        lr=1e-2,
        weight_decay=1e-2,
        exp_avg_dtype=torch.uint8,
        exp_avg_sq_dtype=torch.uint8,
    )
    losses = []
    for inputs, targets in batches:
        fp8 = te.autocast(enabled=True, recipe=RECIPES[recipe]())
        with torch.autocast("cuda", torch.bfloat16), fp8:
            loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # outside: it takes its precision from the forward pass
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
