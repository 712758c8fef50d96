"""Find the layer that overflows at every step, so that the scale falls to 0; and run that layer alone in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def first_nonfinite(model: nn.Module, *inputs: Any) -> str | None:
    """Run the model, and return the name of the first layer that makes inf or NaN from finite inputs.

    Call it inside of the autocast region that the training uses. A layer is a module without modules in it. None if no
    layer does: all is finite then, or an op between the layers is at fault. Buffers change as in any forward
    pass; gradients are not computed.

    Raises ValueError if an input of the model itself is not finite: then the fault lies in the data.
    Example: with autocast fp16, a layer whose outputs pass 65504 → "up"
    """
    if not _finite(inputs):
        raise ValueError("an input of the model is inf or NaN: the fault lies before the model, in the data.")
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(layer: nn.Module, taken: Any, given: Any) -> None:
            if _finite(taken) and not _finite(given):
                found.append(name)

        return hook

    handles = [
        layer.register_forward_hook(watch(name)) for name, layer in model.named_modules() if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def pin_to_fp32(layer: nn.Module) -> None:
    """Make a layer run in float32 inside of any autocast region, its inputs cast to float32 first.

    It changes this layer alone, in place; its output is float32, and the next layer may cast that to 16 bits again. The
    region that is switched off is the one of the inputs' device.

    Raises ValueError for a layer whose own weights are not float32: pinning cannot give their digits back.
    """
    if any(parameter.is_floating_point() and parameter.dtype != torch.float32 for parameter in layer.parameters()):
        raise ValueError("the layer's weights are not float32: call layer.float() before pinning it.")
    forward = layer.forward

    def pinned(*inputs: Any, **named: Any) -> Any:
        devices = {leaf.device.type for leaf in tree_leaves((inputs, named)) if isinstance(leaf, Tensor)}
        inputs, named = tree_map(_to_float32, (inputs, named))
        with torch.autocast(next(iter(devices), "cpu"), enabled=False):
            return forward(*inputs, **named)

    layer.forward = pinned


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _finite(tree: Any) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
