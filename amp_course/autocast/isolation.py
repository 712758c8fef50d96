"""Isolate a traced model: clone its inputs, copy it to another device, undo what a run changes."""

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
    """Restore buffers (which ones, and their values), training modes and the random states."""
    before = [
        (
            module,
            module.training,
            dict(module._buffers),
            [(one, one.clone()) for one in module._buffers.values() if one is not None],
        )
        for module in model.modules()
    ]
    try:
        with same_random_state():
            yield
    finally:
        for module, training, buffers, values in before:
            module.training = training
            # a ScriptModule does not let its buffers be replaced
            if not isinstance(module, torch.jit.ScriptModule):
                module._buffers.update(buffers)
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)


def cloned(arguments: Any) -> Any:
    """Return the arguments with clones of their tensors, which forward may change in place."""
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
    """Return a copy of the model and the arguments on a device; on a fake one, without values.

    Raises ValueError for a model that cannot be copied.
    """

    def moved(tensor: Tensor) -> Tensor:
        # fake tensors need no gradients, even if forward enables them: see `region.stage`
        if fake:
            shape, stride = tensor.shape, tensor.stride()
            return torch.empty_strided(shape, stride, dtype=tensor.dtype, device="cuda")
        return tensor.detach().to(device_type).requires_grad_(tensor.requires_grad)

    # deepcopy uses what it finds in here instead of copying, so that tied weights stay tied
    memo: dict[int, Any] = {id(buffer): moved(buffer) for buffer in model.buffers()}
    for weight in model.parameters():
        new = moved(weight)
        memo[id(weight)] = nn.Parameter(new, requires_grad=new.requires_grad)
    try:
        moved_model = copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(
            f"this {type(model).__name__} cannot be copied to {device_type!r} "
            f"({type(error).__name__}: {error}): keep its tensors as parameters or buffers "
            "(register_buffer), or trace it where it is."
        ) from error
    return moved_model, tree_map_only(Tensor, moved, arguments)


@contextmanager
def methods_without_device() -> Iterator[None]:
    """Let fake tensors have `contiguous()` and `x[…]`, whose C code asks for the device."""
    methods: dict[str, Any] = {
        "contiguous": _contiguous,
        "__getitem__": _get,
        "__setitem__": lambda *_: None,
    }
    for name, method in methods.items():
        setattr(Tensor, name, method)
    try:
        yield
    finally:  # the originals are in the base class
        for name in methods:
            delattr(Tensor, name)


def _contiguous(
    tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensor:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return tensor.clone(memory_format=memory_format)


def _get(tensor: Tensor, index: Any) -> Tensor:
    """Return `tensor[index]`, by its single ops. A mask fails, as its result depends on values."""
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
    """Run an op on fake tensors; ops that write into a tensor would ask for its missing device."""
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if func._schema.name.endswith(("batch_norm", "batch_norm_legit")) and args[5]:  # training
        args = (*args[:3], None, None, *args[5:])  # no running averages to update in place
    return func(*args, **kwargs)
