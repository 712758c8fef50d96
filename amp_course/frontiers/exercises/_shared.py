"""For the exercises of chapter 12: the tensors that an object holds on to, and their bytes."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

_DEEP = 6  # objects in objects, looked into this far


def held_tensors(*objects: Any) -> list[Tensor]:
    """Return the tensors that can be reached from objects:
    in containers, attributes, slots, and what functions close over.
    """
    found: dict[int, Tensor] = {}
    seen = set[int]()
    level = list(objects)
    for _ in range(_DEEP):
        level = [one for one in level if id(one) not in seen]
        seen.update(map(id, level))
        found |= {id(one): one for one in level if isinstance(one, Tensor)}
        level = [inner for one in level for inner in _inside(one)]
    return list(found.values())


def bytes_of(tensors: list[Tensor]) -> int:
    """Return the bytes of memory behind tensors, each piece once, whatever views look at it."""
    pieces = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in tensors
        if one.device.type != "meta"
    }
    return sum(pieces.values())


def _inside(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from one.keys()
        yield from one.values()
    elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
        yield from one
    elif isinstance(one, Tensor):
        yield from vars(one).values()  # what was hung on it
    elif not isinstance(one, (nn.Module, type, str, bytes, int, float)):
        yield from getattr(one, "__dict__", {}).values()
        yield from (
            getattr(one, name) for name in getattr(type(one), "__slots__", ()) if hasattr(one, name)
        )
        yield from (
            cell.cell_contents for cell in getattr(one, "__closure__", None) or () if _filled(cell)
        )
        yield getattr(one, "__self__", None)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # still empty
        return False
