"""Where the inf or NaN in a tensor comes from: kept by storage, so that views share it."""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from amp_course.watching.origins import NonfiniteOrigin

# The ops that made it, and the names of what held it unwatched: a weight, a buffer, "the data"
Source = tuple[tuple[NonfiniteOrigin, ...], tuple[str, ...]]
NO_SOURCE: Source = (), ()


class Sources:
    """The sources of what is not finite. names: weight or buffer → ("weight", "0.bias")."""

    def __init__(self, names: WeakTensorKeyDictionary) -> None:
        self._names = names
        self._of: dict[int, tuple[StorageWeakRef, Source]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def mark(self, tensor: Tensor, source: Source) -> None:
        storage = _storage(tensor)
        if storage is not None and any(source):
            self._of[storage.cdata] = storage, source

    def forget(self, tensor: Tensor) -> None:
        storage = _storage(tensor) if self._of else None
        if storage is not None:
            self._of.pop(storage.cdata, None)

    def of(self, tensor: Tensor) -> Source:
        """Return the source of what a tensor holds; its own name if it held that unwatched."""
        storage = _storage(tensor)
        found = self._of.get(storage.cdata) if storage is not None else None
        if found is not None and not found[0].expired():
            return found[1]
        return (), (" ".join(("the", *self._names.get(tensor, ("data",)))),)


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to a tensor's storage; None for one without, such as a sparse one."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return StorageWeakRef(local.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None
