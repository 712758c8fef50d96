"""What was there before, and is it there still? Fingerprints of objects, for `stress`.

    with globals_kept():
        step, arguments, probes = stress.make()
        before = fingerprint(probes)
        audit(step, **arguments)
        assert not differences(before, fingerprint(probes))
        went_on = run_on(step, arguments), values(fingerprint(probes))

and the same again without the audit: `went_on` has to be equal. First one of the twins from
beginning to end, then the other: they share what is global, which `make()` resets.

A difference that ends in "another object" is one of identity alone; `values` forgets identity.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

Probes = dict[str, Callable[[], Any]]

SCALARS = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
    np.generic, Enum, slice,
)  # fmt: skip


class Same:
    """An object, equal to nothing but itself. It is kept alive: another cannot get its id()."""

    __hash__ = None

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __repr__(self) -> str:
        return f"a {type(self.it).__name__}"


class Place:
    """Where the numbers of a tensor lie. An alias keeps the memory, so that no other gets it."""

    __hash__ = None

    def __init__(self, tensor: Tensor) -> None:
        self.alias = tensor.detach()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.alias.data_ptr() == other.alias.data_ptr()

    def __repr__(self) -> str:
        return "memory"


def numbers(tensor: Tensor) -> bytes:
    """Every bit of a tensor, -0.0 and NaN too."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def look(x: Any, grad: bool = True, _above: tuple[int, ...] = ()) -> Any:
    """What is in x, and which objects they are.

    Containers, tensors, arrays and generators are entered; of an object: look(vars(x)).
    """
    if isinstance(x, SCALARS):
        return type(x).__name__, repr(x)
    if id(x) in _above:
        return "itself"
    inner = (*_above, id(x))
    if isinstance(x, Tensor):
        return _look_tensor(x, grad, inner)
    if isinstance(x, np.ndarray):
        return {"object": Same(x), "kind": (x.dtype.str, x.shape), "values": x.tobytes()}
    if isinstance(x, dict):
        pairs = [
            (look(key) if isinstance(key, SCALARS) else Same(key), look(value, grad, inner))
            for key, value in x.items()
        ]
        return {"object": Same(x), "type": type(x).__name__, "items": pairs}
    if isinstance(x, list | tuple | deque):
        contents = [look(value, grad, inner) for value in x]
        return {
            "object": "tuple" if isinstance(x, tuple) else Same(x),
            "type": type(x).__name__,
            "items": contents,
        }
    if isinstance(x, set | frozenset):
        return {"object": Same(x), "items": sorted(map(repr, x))}
    if isinstance(x, torch.Generator):
        return {"object": Same(x), "state": numbers(x.get_state())}
    if isinstance(x, np.random.Generator):
        return {"object": Same(x), "state": values(look(x.bit_generator.state))}
    if isinstance(x, np.random.RandomState):
        return {"object": Same(x), "state": values(look(x.get_state(legacy=False)))}
    if isinstance(x, random.Random):
        return {"object": Same(x), "state": x.getstate()}
    if isinstance(x, MethodType):
        return Same(x.__self__), Same(x.__func__)
    if isinstance(x, SimpleNamespace):
        return {"object": Same(x), "attributes": look(vars(x), grad, inner)}
    return Same(x)


def _look_tensor(x: Tensor, grad: bool, inner: tuple[int, ...]) -> dict[str, Any]:
    seen = {"object": Same(x), "type": type(x).__name__, "wanted": x.requires_grad}
    seen["attributes"] = look(vars(x), grad, inner)["items"]
    seen["hooks"] = [Same(hook) for hook in (x._backward_hooks or {}).values()]
    if x.is_leaf:
        seen["hooks"] += [Same(hook) for hook in (x._post_accumulate_grad_hooks or {}).values()]
        if grad:
            seen["gradient"] = None if x.grad is None else _look_tensor(x.grad, False, inner)
    if not is_lazy(x):
        seen |= {"kind": (str(x.dtype), str(x.device), tuple(x.shape), x.stride())}
        if x.device.type != "meta":
            seen |= {"memory": Place(x), "values": numbers(x)}
    return seen


def fingerprint(probes: Probes) -> dict[str, Any]:
    """Every probe called."""
    return {name: probe() for name, probe in probes.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where two fingerprints differ, in words: "parameters: 0.weight: values: other bytes"."""
    return [": ".join(where) for where in _differences(before, after, ())]


def _differences(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if type(a) is type(b) and isinstance(a, dict):
        for key in a.keys() | b.keys():
            yield from _differences(a.get(key, "nothing"), b.get(key, "nothing"), (*path, key))
    elif type(a) is type(b) and isinstance(a, list | tuple):
        if len(a) != len(b):
            yield *path, f"{len(a)} things, now {len(b)}"
        for i, (one, other) in enumerate(zip(a, b, strict=False)):
            named = (
                isinstance(one, tuple)
                and isinstance(other, tuple)
                and one[:1] == other[:1] != ()
                and isinstance(one[0], str)
            )
            yield from _differences(one, other, (*path, one[0] if named else str(i)))
    elif a != b:
        if isinstance(a, Same | Place) and isinstance(b, Same | Place):
            yield *path, "another object"
        else:
            yield (
                *path,
                "other bytes"
                if isinstance(a, bytes) and isinstance(b, bytes)
                else f"{a!r:.80}, now {b!r:.80}",
            )


def values(seen: Any) -> Any:
    """A fingerprint without identity: equal for two twins of which none was audited."""
    if isinstance(seen, dict):
        return {key: values(value) for key, value in seen.items()}
    if isinstance(seen, list | tuple):
        return [values(value) for value in seen]
    return repr(seen) if isinstance(seen, Same | Place) else seen
