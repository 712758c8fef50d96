"""Record where Python asks for a tensor's value. On a GPU, the host waits there until all queued
work is done.

This works for tensors on a CPU too, so it needs no GPU. With a GPU,
`torch.cuda.set_sync_debug_mode("warn")` warns at most of these places, also inside libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

VALUE, CONDITION, TEXT, SHAPE = "value", "condition", "text", "shape"
_OF_ONE = ("__float__", "__int__", "__index__", "__complex__")
_KIND = {
    **dict.fromkeys(("item", "tolist", "numpy", "cpu", "__array__", "__dlpack__"), VALUE),
    **dict.fromkeys(_OF_ONE, VALUE),
    **dict.fromkeys(("__bool__", "is_nonzero", "equal", "allclose", "__contains__"), CONDITION),
    **dict.fromkeys(("__repr__", "__format__"), TEXT),
    **dict.fromkeys(("nonzero", "argwhere", "masked_select", "unique", "bincount"), SHAPE),
}


@dataclass(frozen=True)
class Read:
    """One value that the host asked for.

    call:  the method or function: "item", "__bool__"
    kind:  "value", "condition" (an `if`), "text" (a print), or "shape" (which depends on values)
    place: what `HostReads.place()` returned at that time
    """

    call: str
    kind: str
    place: int


class HostReads(TorchFunctionMode):
    """Record every read in `reads`. What `.cpu()` or `.to("cpu")` has copied to the host can be
    read again for free.

    place: returns where in the training the read happens, such as the number of the step

    Example: with HostReads() as host: loss.item() → host.reads == [Read("item", "value", 0)]
    """

    def __init__(self, place: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self.place = place
        self.reads: list[Read] = []
        # NumPy has just asked these for their arrays, and asks for their numbers next.
        self._arrays: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function and record what it reads."""
        kwargs = kwargs or {}
        out, name = func(*args, **kwargs), getattr(func, "__name__", "")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        again = name in _OF_ONE and any(tensors[0] is one for one in self._arrays)
        if name == "__array__":
            self._arrays += tensors
        elif not again:
            self._arrays.clear()
        on_host = bool(tensors) and all(hasattr(one, "_copied_to_host") for one in tensors)
        kinds = [] if on_host or again else _kinds(name, args, kwargs)
        self.reads += [Read(name, kind, self.place()) for kind in kinds]
        if kinds and isinstance(out, Tensor) and name in ("cpu", "to"):
            # A new object: on a CPU, `.cpu()` returns the tensor itself.
            out, on_host = out.view_as(out), True
        if on_host:
            for one in tree_leaves(out):
                if isinstance(one, Tensor):
                    one._copied_to_host = True  # type: ignore[attr-defined]
        return out


def _kinds(name: str, args: Any, kwargs: Any) -> list[str]:
    """Return the kind of each read that a call makes: [] for nearly all calls."""
    if name in _KIND:
        return [_KIND[name]]
    if name == "to" and not kwargs.get("non_blocking"):
        return [VALUE for one in (*args[1:], *kwargs.values()) if _is_host(one)]
    if name == "type":
        return [VALUE for one in args[1:] if _is_host(one)]
    if name in ("tensor", "as_tensor") and args and isinstance(args[0], (list, tuple)):
        return [VALUE for one in tree_leaves(args[0]) if isinstance(one, Tensor)]
    masks = name == "__getitem__" and any(
        isinstance(one, Tensor) and one.dtype == torch.bool for one in tree_leaves(args[1])
    )
    return [SHAPE] if masks or (name == "where" and len(args) == 1 and not kwargs) else []


def _is_host(target: Any) -> bool:
    """Return True if what was passed to `.to()` or `.type()` names the CPU: "cpu:0",
    torch.FloatTensor, "torch.FloatTensor". A torch.device does not count: `.to(inputs.device)`
    means the GPU on a GPU.
    """
    if isinstance(target, str):
        is_type = target.startswith("torch.") and target.endswith("Tensor") and "cuda" not in target
        return is_type or target.partition(":")[0] == "cpu"
    return type(target) is type(torch.FloatTensor) and not target.is_cuda
