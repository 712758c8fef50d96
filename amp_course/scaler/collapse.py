"""Find the layer that overflows at every step and so drives the scale to 0, and run that layer alone in float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def first_nonfinite(model: nn.Module, *inputs: Any) -> str | None:
    """Run the model, and return the name of the first layer that makes inf or NaN from finite inputs.

    Call it inside the autocast region that the training uses. A layer is a module that contains no other modules. If the
    result is None, either everything is finite or an op between the layers is at fault. Buffers change as in any forward
    pass; gradients are not computed.

    Raises ValueError if an input of the model itself is not finite: the fault is in the data.
    Example: with autocast fp16, a layer whose outputs pass 65504 → "up"
    """
    if not _finite(inputs):
        raise ValueError("an input of the model is inf or NaN: the fault is in the data, not in the model.")
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
    """Make a layer run in float32 inside any autocast region, on inputs that are cast to float32 first.

    It changes this layer alone, in place; its output is float32, and the next layer may cast that to 16 bits again. Autocast is
    switched off for the device of the inputs. A copy of the layer, deep or pickled, is pinned too, and runs its own weights.

    Raises ValueError for a layer whose own weights are not float32: pinning cannot restore the bits that they have lost.
    """
    if any(parameter.is_floating_point() and parameter.dtype != torch.float32 for parameter in layer.parameters()):
        raise ValueError("the layer's weights are not float32: call layer.float() before pinning it.")
    layer.forward = partial(_forward_in_float32, layer)  # a copy of the layer copies this too, with the copy in it


def _forward_in_float32(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    devices = {leaf.device.type for leaf in tree_leaves((inputs, named)) if isinstance(leaf, Tensor)}
    inputs, named = tree_map(_to_float32, (inputs, named))
    with torch.autocast(next(iter(devices), "cpu"), enabled=False):
        return type(layer).forward(layer, *inputs, **named)


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _finite(tree: Any) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
