"""Find a layer that overflows at every step, which drives the scale to 0; run it in float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def first_nonfinite(model: nn.Module, *inputs: Any) -> str | None:
    """Run the model; return the name of the first layer that makes inf or NaN from finite inputs.

    Call it inside the training's autocast region. A layer is a module without submodules. None
    means that everything is finite, or that an op between the layers is at fault. Buffers change as
    in any forward pass; gradients are not computed.

    Raises ValueError if an input of the model itself is not finite: the fault is in the data.
    Example: with autocast fp16, a layer whose outputs pass 65504 → "up"
    """
    if not _finite(inputs):
        raise ValueError(
            "an input of the model is inf or NaN: the fault is in the data, not in the model."
        )
    names = {layer: name for name, layer in model.named_modules() if not list(layer.children())}
    found: list[nn.Module] = []

    def watch(layer: nn.Module, args: Any, output: Any) -> None:
        if _finite(args) and not _finite(output):
            found.append(layer)

    handles = [layer.register_forward_hook(watch) for layer in names]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return names[found[0]] if found else None


def pin_to_fp32(layer: nn.Module) -> None:
    """Make a layer run in float32 inside any autocast region, its inputs cast to float32.

    This changes the layer in place: its class becomes a subclass with another `forward`. The output
    is float32, and the next layer may cast it to 16 bits again. Copies of the layer are pinned too,
    and use their own weights. Pinning twice changes nothing.

    Raises TypeError for anything but an nn.Module; ValueError for a layer whose weights are not
    float32: pinning cannot restore the bits that they have lost.
    """
    if not isinstance(layer, nn.Module):
        raise TypeError(
            f"pin_to_fp32 needs a layer, an nn.Module, but got {layer!r:.60}: pass, for example, "
            f"model.up."
        )
    if any(
        parameter.is_floating_point() and parameter.dtype != torch.float32
        for parameter in layer.parameters()
    ):
        raise ValueError(
            "the layer's weights are not float32: call layer.float() before pinning it."
        )
    if not isinstance(layer, _Pinned):
        layer.__class__ = _pinned(type(layer))  # type: ignore[arg-type]


class _Pinned(nn.Module):
    """The first base of a pinned layer's class: it runs the layer's own `forward` in float32."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((inputs, named)) if isinstance(leaf, Tensor)]
        device = [*tensors, *self.parameters()][0].device.type
        inputs, named = tree_map(_to_float32, (inputs, named))
        with torch.autocast(device, enabled=False):
            return super().forward(*inputs, **named)

    def __reduce__(self) -> Any:  # pickle would look for the class by its name
        return _new, (type(self).__mro__[2],), self.__getstate__()


@cache
def _pinned(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_Pinned, kind), {})


def _new(kind: type[nn.Module]) -> nn.Module:
    pinned = _pinned(kind)  # type: ignore[arg-type]
    return pinned.__new__(pinned)


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _finite(tree: Any) -> bool:
    return all(
        bool(leaf.isfinite().all()) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)
    )
