"""Follow every tensor through one training step, from its making to its freeing.

Three things are watched: every tensor an op gives back (a `TorchDispatchMode`), what autograd packs
for the backward pass (`saved_tensors_hooks`), and when each storage dies (a weak reference to it).
What an op takes and gives back inside itself is not seen. `amp_course.kit.memory` turns this into
numbers.
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
    """Yield the storages under `tensors`; a sparse tensor has two,
    of its indices and of its values.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.layout is torch.sparse_coo:
            yield from storages([tensor._indices(), tensor._values()])
        elif tensor.layout is torch.strided:
            yield tensor.untyped_storage()


class LiveBytes:
    """Add up the bytes of the storages added and not yet freed;
    `peak` is the most there was at one time.
    """

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._owners: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._bytes

    def add(self, storage: torch.UntypedStorage, owner: object = None) -> None:
        """Count `storage` until `owner` dies (itself unless told), once,
        however often it is added.
        """
        key = storage._cdata  # its address in C++: no other live storage has it
        grown = storage.nbytes() - self._bytes.get(key, 0)  # not 0 either if it has been resized
        if key not in self._bytes:
            # subtle: a storage's Python object lives as long as its C++ one, so its end is the
            #         freeing.
            self._owners[key] = weakref.ref(
                storage if owner is None else owner, partial(self._drop, key)
            )
        self._bytes[key] = storage.nbytes()
        self.now += grown
        self.peak = max(self.peak, self.now)

    def add_older(self, storage: torch.UntypedStorage) -> int:
        """Count a storage there from the start, so at the peak too;
        return the bytes that are new.
        """
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
    """Live as long as autograd keeps at least one saved tensor of a storage."""


class StepWatch(TorchDispatchMode):
    """Count four things through one step: all tensors, the gradients, the cast copies, what
    autograd saves.

    Use it as a context around the step, with `pack` and `unpack` as saved-tensor hooks and
    `note_gradient` as the post-accumulate hook of each parameter.
    """

    def __init__(self, model: nn.Module, existing: Iterable[Tensor]) -> None:
        """Count what is there at the start: the model's tensors and `existing`,
        the state and the batch.
        """
        super().__init__()
        self.device = next(model.parameters()).device
        self.everything, self.gradients, self.cast_copies, self.saved = (
            LiveBytes() for _ in range(4)
        )
        self.bytes_before = 0  # of what was there at the start
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
        # What we have not seen was there before, unless torch.tensor(…) hands over what it has just
        # made.
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
        """Note what autograd saves, but for weights and their cast copies,
        and hand it on unchanged.
        """
        tokens = []
        for storage in storages([tensor]):
            if storage._cdata not in self._weights and storage not in self.cast_copies:
                tokens.append(self._tokens.setdefault(storage._cdata, Token()))
                self.saved.add(storage, owner=tokens[-1])
        return tensor, tokens

    def unpack(self, saved: Saved) -> Tensor:
        """Give back what `pack` was given; its tokens die when autograd lets go of it."""
        return saved[0]

    def note_gradient(self, parameter: Tensor) -> None:
        """Count a gradient as soon as it is there, so that no later `zero_grad` can hide it."""
        for storage in storages([parameter.grad]):
            self.gradients.add(storage)

    def _found(self, tensors: Iterable[Tensor | None]) -> None:
        for storage in self._here(tensors):
            self.bytes_before += self.everything.add_older(storage)

    def _here(self, tensors: Iterable[Tensor | None]) -> Iterator[torch.UntypedStorage]:
        return (storage for storage in storages(tensors) if storage.device == self.device)

    def _is_weight(self, tensor: Tensor) -> bool:
        return any(storage._cdata in self._weights for storage in storages([tensor]))
