"""Find the layer that overflows at every step and so drives the scale to 0,
and run that layer alone in float32.
"""

from __future__ import annotations

import sys
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def first_nonfinite(model: nn.Module, *inputs: Any) -> str | None:
    """Run the model, and return the name of the first layer that makes inf or NaN from finite
    inputs.

    Call it inside the autocast region that the training uses. A layer is a module that contains no
    other modules. If the result is None, either everything is finite or an op between the layers is
    at fault. Buffers change as in any forward pass; gradients are not computed.

    Raises ValueError if an input of the model itself is not finite: the fault is in the data.
    Example: with autocast fp16, a layer whose outputs pass 65504 → "up"
    """
    if not _finite(inputs):
        raise ValueError(
            "an input of the model is inf or NaN: the fault is in the data, not in the model."
        )
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(layer: nn.Module, taken: Any, given: Any) -> None:
            if _finite(taken) and not _finite(given):
                found.append(name)

        return hook

    handles = [
        layer.register_forward_hook(watch(name))
        for name, layer in model.named_modules()
        if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def pin_to_fp32(layer: nn.Module) -> None:
    """Make a layer run in float32 inside any autocast region, on inputs that are cast to float32
    first.

    It changes this layer alone, in place, with two hooks; its output is float32, and the next layer
    may cast that to 16 bits again. Autocast is switched off on the devices of the inputs and the
    weights. Copies of the layer, shallow, deep, pickled or made for `nn.DataParallel`, are pinned
    too, and run their own weights. To pin twice is to pin once.

    Raises ValueError for a layer whose own weights are not float32: pinning cannot restore the bits
    that they have lost. TypeError for what is no nn.Module.
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
    if _enter not in layer._forward_pre_hooks.values():
        # The layer keeps the handles: with them, a pickle reserves the hooks' numbers in the
        # process that loads it.
        layer._pinned = (  # type: ignore[assignment]
            layer.register_forward_pre_hook(_enter, with_kwargs=True),
            layer.register_forward_hook(_leave, prepend=True, always_call=True),
        )


class _Entered(local):
    """The calls of pinned layers that this thread is in:
    the number of each, and what autocast was on each device before.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, bool]]] = []


_entered = _Entered()


@torch.compiler.disable
def _enter(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((inputs, named)) if isinstance(leaf, Tensor)]
    devices = {tensor.device.type for tensor in [*tensors, *layer.parameters()]}
    before = {
        one: torch.is_autocast_enabled(one)
        for one in devices
        if torch.amp.is_autocast_available(one)
    }
    result = tree_map(_to_float32, (inputs, named))
    _entered.calls.append((_call(), before))
    for one in before:
        torch.set_autocast_enabled(one, False)
    return result


@torch.compiler.disable
def _leave(*_: Any) -> None:
    """Restore what was before this call; do nothing if `_enter` never ran in it,
    because a hook before it raised.
    """
    calls, number = _entered.calls, _call()
    places = [place for place, (one, _) in enumerate(calls) if one == number]
    if places:
        for device, enabled in calls[places[-1]][1].items():
            torch.set_autocast_enabled(device, enabled)
        # calls further in that KeyboardInterrupt ended, without their hooks, go as well
        del calls[places[-1] :]


def _call() -> int:
    """Number the module's call that runs this hook: recursion gives one layer several at a time,
    and no two share a frame.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return id(frame)


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _finite(tree: Any) -> bool:
    return all(
        bool(leaf.isfinite().all()) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)
    )
