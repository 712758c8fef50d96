"""Keep a traced model as it was: clone its inputs, copy it to another device,
and put back what a run changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from amp_course.kit.random_state import same_random_state


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put back at the end: buffers (which, and what is in them), training mode,
    and the random states.
    """
    buffers = [
        (
            module,
            dict(module._buffers),
            {name: one.clone() for name, one in module._buffers.items() if one is not None},
        )
        for module in model.modules()
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        with same_random_state():
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, held, values in buffers:
                # whose buffers cannot be exchanged
                if not isinstance(module, torch.jit.ScriptModule):
                    module._buffers.update(held)
                for name, value in values.items():
                    buffer = held[name]
                    if buffer is not None and not torch.equal(buffer, value):
                        buffer.copy_(value)


def cloned(arguments: Any) -> Any:
    """Return the arguments with a clone in place of each tensor:
    what forward does to one in place stays its own affair.
    """
    done: dict[int, Tensor] = {}

    def clone(value: Tensor) -> Tensor:
        if id(value) not in done:
            leaf = value.detach().clone().requires_grad_(value.requires_grad)
            done[id(value)] = leaf if value.is_leaf else leaf.clone()
        return done[id(value)]

    return tree_map_only(Tensor, clone, arguments)


def moved_copy(
    model: nn.Module, arguments: Any, device_type: str, fake: bool
) -> tuple[nn.Module, Any]:
    """Return a copy of the model and of the arguments on another device: without values if that is
    fake.

    Raises ValueError for a model that cannot be copied.
    """

    def moved(tensor: Tensor) -> Tensor:
        # No gradients among fake tensors, even where forward enables them: see `region.stage`.
        if fake:
            shape, stride = tensor.shape, tensor.stride()
            return torch.empty_strided(shape, stride, dtype=tensor.dtype, device="cuda")
        return tensor.detach().to(device_type).requires_grad_(tensor.requires_grad)

    # What deepcopy finds here it takes for copied: so no weight is copied twice, and tied ones stay
    # tied.
    memo: dict[int, Any] = {id(buffer): moved(buffer) for buffer in model.buffers()}
    for weight in model.parameters():
        new = moved(weight)
        memo[id(weight)] = nn.Parameter(new, requires_grad=new.requires_grad)
    try:
        moved_model = copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(
            f"this {type(model).__name__} cannot be copied to {device_type!r} "
            f"({type(error).__name__}: {error}): keep its "
            "tensors as parameters or buffers (register_buffer), or trace it where it is."
        ) from error

    return moved_model, tree_map_only(Tensor, moved, arguments)


@contextmanager
def no_device_asked() -> Iterator[None]:
    """Let `contiguous()` and `x[…]` be called on fake tensors:
    in C they ask for the device before they come to any op.
    """
    methods: dict[str, Any] = {
        "contiguous": _contiguous,
        "__getitem__": _get,
        "__setitem__": lambda *_: None,
    }
    for name, method in methods.items():
        setattr(Tensor, name, method)
    try:
        yield
    finally:  # what they stood in front of is in the base class
        for name in methods:
            delattr(Tensor, name)


def _contiguous(
    tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensor:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return tensor.clone(memory_format=memory_format)


def _get(tensor: Tensor, index: Any) -> Tensor:
    """Return `tensor[index]` by the ops that it is made of. A mask fails in `index`: what it picks
    depends on values.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    wide = sum(item is not None for item in items)
    for at, item in enumerate(items):
        if item is Ellipsis:
            items[at : at + 1] = [slice(None)] * (tensor.ndim - wide + 1)
            break
    dim, picked = 0, {}
    for item in items:
        if item is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(item, slice):
            step = 1 if item.step is None else item.step
            tensor = torch.ops.aten.slice(tensor, dim, item.start, item.stop, step)
        elif isinstance(item, int):
            tensor = tensor.select(dim, item)
            continue
        else:
            picked[dim] = torch.as_tensor(item, device=tensor.device)
        dim += 1
    if not picked:
        return tensor
    return torch.ops.aten.index(tensor, [picked.get(place) for place in range(max(picked) + 1)])


def without_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on fake tensors whose device is not there:
    those that write into a tensor would ask for it.
    """
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if func._schema.name.endswith(("batch_norm", "batch_norm_legit")) and args[5]:  # training
        # without the running averages, which it would update in place
        args = (*args[:3], None, None, *args[5:])
    return func(*args, **kwargs)
