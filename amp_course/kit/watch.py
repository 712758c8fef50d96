"""Follow every tensor through one training step, from its allocation until it is freed.

Three things are watched: every tensor that an op returns (a `TorchDispatchMode`), what autograd
saves for the backward pass (`saved_tensors_hooks`), and when each storage is freed (a weak
reference to it). What an op allocates and frees inside itself stays unknown. `kit.memory` turns
this into numbers.
"""

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Saved = tuple[Tensor, list["Token"]]


def storages(tensors: Iterable[Tensor | None]) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of `tensors`; a sparse tensor has two, for its indices and its values."""
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.layout is torch.sparse_coo:
            yield from storages([tensor._indices(), tensor._values()])
        elif tensor.layout is torch.strided:
            yield tensor.untyped_storage()


class LiveBytes:
    """The sum of the bytes of all storages that were added and not yet freed, and its peak."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._owners: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._bytes

    def add(self, storage: torch.UntypedStorage, owner: object = None) -> None:
        """Count `storage` once, until `owner` (by default itself) is freed."""
        key = storage._cdata  # its address in C++, unique among live storages
        grown = storage.nbytes() - self._bytes.get(key, 0)  # it may have been resized
        if key not in self._bytes:
            # subtle: a storage's Python object lives as long as its memory.
            owner = storage if owner is None else owner
            self._owners[key] = weakref.ref(owner, partial(self._drop, key))
        self._bytes[key] = storage.nbytes()
        self.now += grown
        self.peak = max(self.peak, self.now)

    def add_older(self, storage: torch.UntypedStorage) -> int:
        """Count a storage that existed from the start, so at the peak too; return the new bytes."""
        if storage in self:
            return 0
        peak = self.peak
        self.add(storage)
        self.peak = peak + storage.nbytes()
        return storage.nbytes()

    def _drop(self, key: int, _: object) -> None:
        self.now -= self._bytes.pop(key)
        del self._owners[key]


class Token:
    """Lives as long as autograd keeps at least one saved tensor of a storage."""


class StepWatch(TorchDispatchMode):
    """Counts four things during one step: all tensors, gradients, cast copies, what autograd saves.

    Use it as a context around the step, with `pack` and `unpack` as saved-tensor hooks and
    `note_gradient` as the post-accumulate hook of each parameter.
    """

    def __init__(self, model: nn.Module, existing: Iterable[Tensor]) -> None:
        """Count what exists at the start: the model's tensors, and `existing`: state and batch."""
        super().__init__()
        self.device = next(model.parameters()).device
        self.everything, self.gradients = LiveBytes(), LiveBytes()
        self.cast_copies, self.saved = LiveBytes(), LiveBytes()
        self.bytes_before = 0  # of what existed at the start
        self._tokens: weakref.WeakValueDictionary[int, Token] = weakref.WeakValueDictionary()
        weights = [*model.parameters(), *model.buffers()]
        self._weights = {storage._cdata for storage in storages(weights)}
        for parameter in model.parameters():
            self.note_gradient(parameter)
        self._found([*weights, *(parameter.grad for parameter in model.parameters()), *existing])

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Unknown arguments existed before, except those that torch.tensor(…) has just made.
        if func is not torch.ops.aten.lift_fresh.default:
            self._found(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        result = func(*args, **(kwargs or {}))
        for storage in self._here(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
            self.everything.add(storage)
        is_cast = func is torch.ops.aten._to_copy.default and result.itemsize < args[0].itemsize
        if is_cast and self._is_weight(args[0]):
            for storage in storages([result]):
                self.cast_copies.add(storage)
        return result

    def pack(self, tensor: Tensor) -> Saved:
        """Count what autograd saves, except weights and their cast copies."""
        tokens = []
        for storage in storages([tensor]):
            if storage._cdata not in self._weights and storage not in self.cast_copies:
                tokens.append(self._tokens.setdefault(storage._cdata, Token()))
                self.saved.add(storage, owner=tokens[-1])
        return tensor, tokens

    def unpack(self, saved: Saved) -> Tensor:
        """Return the tensor that `pack` got; its tokens are freed when autograd frees `saved`."""
        return saved[0]

    def note_gradient(self, parameter: Tensor) -> None:
        """Count a gradient as soon as it exists, before `zero_grad` can free it."""
        for storage in storages([parameter.grad]):
            self.gradients.add(storage)

    def _found(self, tensors: Iterable[Tensor | None]) -> None:
        for storage in self._here(tensors):
            self.bytes_before += self.everything.add_older(storage)

    def _here(self, tensors: Iterable[Tensor | None]) -> Iterator[torch.UntypedStorage]:
        return (storage for storage in storages(tensors) if storage.device == self.device)

    def _is_weight(self, tensor: Tensor) -> bool:
        return any(storage._cdata in self._weights for storage in storages([tensor]))
