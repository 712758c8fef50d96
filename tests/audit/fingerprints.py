"""Fingerprints of objects, for `stress`: is everything as it was before?

    with sandbox():
        step, arguments, probes = stress.make()
        before = fingerprint(probes)
        audit(step, **arguments)
        assert not differences(before, fingerprint(probes))
        outcome = run_on(step, arguments), values(fingerprint(probes))

and the same again without the audit: the outcomes have to be equal. The two runs follow one another
completely, since they share global state, which `make()` resets.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from amp_course.audit.arguments import as_list
from amp_course.kit.random_state import random_state

Probes = dict[str, Callable[[], Any]]

SCALARS = (type(None), bool, int, float, complex, str, bytes, slice, np.generic, Enum)
SCALARS = (*SCALARS, torch.dtype, torch.device, torch.layout)


class Same:
    """An object, equal only to itself. It is kept alive, so that no other gets its id()."""

    __hash__ = None

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __repr__(self) -> str:
        return f"a {type(self.it).__name__}"


class Place:
    """Where a tensor's numbers are in memory, which is kept, so that no other tensor gets it."""

    __hash__ = None

    def __init__(self, tensor: Tensor) -> None:
        self.alias = tensor.detach()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.alias.data_ptr() == other.alias.data_ptr()

    def __repr__(self) -> str:
        return "memory"


def numbers(tensor: Tensor) -> bytes:
    """Every bit of a tensor: so -0.0 is not 0.0, and a NaN equals itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def look(x: Any, _above: tuple[int, ...] = ()) -> Any:
    """What is in x, and which objects they are.

    Containers, tensors, arrays and generators are entered; for other objects: look(vars(x)).
    """
    if isinstance(x, SCALARS):
        return type(x).__name__, repr(x)
    if id(x) in _above:
        return "itself"
    inner = (*_above, id(x))
    if isinstance(x, Tensor):
        return _look_tensor(x, inner)
    if isinstance(x, MethodType):
        return Same(x.__self__), Same(x.__func__)
    if isinstance(x, SimpleNamespace):
        return Same(x), look(vars(x), inner)
    if isinstance(x, dict):
        # The keys of hooks are numbers that grow with every new hook.
        handles = all(callable(value) or value is True for value in x.values())
        keys = [look(key) if isinstance(key, SCALARS) else Same(key) for key in x if not handles]
        return Same(x), type(x).__name__, keys, [look(value, inner) for value in x.values()]
    if isinstance(x, list | deque):
        return Same(x), [look(value, inner) for value in x]
    if isinstance(x, tuple):
        return [look(value, inner) for value in x]
    if isinstance(x, set | frozenset):
        return Same(x), sorted(map(repr, x))
    return Same(x), _state_of(x)


def _state_of(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.dtype.str, x.shape, x.tobytes()
    if isinstance(x, torch.Generator):
        return numbers(x.get_state())
    if isinstance(x, np.random.Generator):
        return values(look(x.bit_generator.state))
    if isinstance(x, np.random.RandomState):
        return values(look(x.get_state(legacy=False)))
    return x.getstate() if isinstance(x, random.Random) else None


def _look_tensor(x: Tensor, inner: tuple[int, ...]) -> dict[str, Any]:
    found = {"object": Same(x), "wanted": x.requires_grad, "attributes": look(vars(x), inner)[2:]}
    found["hooks"] = list(map(Same, (x._backward_hooks or {}).values()))
    if x.is_leaf:
        found["hooks"] += map(Same, (x._post_accumulate_grad_hooks or {}).values())
        found["gradient"] = look(x.grad, inner)
    if not is_lazy(x):
        found |= {"kind": (str(x.dtype), str(x.device), tuple(x.shape), x.stride())}
        if x.device.type != "meta":
            found |= {"memory": Place(x), "values": numbers(x)}
    return found


def standard(arguments: dict[str, Any]) -> Probes:
    """The probes for every step: what was passed to `audit`, and the process."""
    scaler, batches = arguments.get("scaler"), arguments["batches"]
    own = [*as_list(arguments["optimizer"]), *as_list(arguments.get("scheduler"))]

    def modules() -> list[Any]:
        models = as_list(arguments["model"])
        named = [each for model in models for each in model.named_modules(remove_duplicate=False)]
        return [(name, Same(one), Same(type(one)), look(vars(one))[2:]) for name, one in named]

    def attributes_of_scaler() -> Any:
        attributes = dict(vars(scaler))
        # The keys of this one are ids of optimizers.
        states = list(attributes.pop("_per_optimizer_states").values())
        return values(look(states)), look(attributes)[2:]

    probes: Probes = {
        "modules": modules,
        "optimizers and schedulers": lambda: [look(vars(one))[2:] for one in own],
        "random generators": lambda: values(look(random_state())),
        "the process": process,
    }
    if scaler is not None:
        probes["scaler"] = attributes_of_scaler
    if isinstance(batches, list | tuple):
        probes["batches"] = lambda: look(batches)
    return probes


def process() -> Any:
    """What the sandbox of a check does not cover; `test_stress` compares the rest."""
    filters = Same(warnings.filters), list(map(repr, warnings.filters))
    signals = [Same(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGALRM)]
    timers = [signal.getitimer(one)[0] > 0 for one in (signal.ITIMER_REAL, signal.ITIMER_PROF)]
    threads = sorted(thread.name for thread in threading.enumerate())
    return filters, signals, timers, threads, Same(sys.gettrace())


def fingerprint(probes: Probes) -> dict[str, Any]:
    """Call every probe."""
    return {name: probe() for name, probe in probes.items()}


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two fingerprints differ, in words: "modules: 0: 3: values: b'…', now b'…'"."""
    if type(before) is type(after) and isinstance(before, dict):
        pairs = [(key, before.get(key), after.get(key)) for key in before.keys() | after.keys()]
    elif type(before) is type(after) in (list, tuple) and len(before) == len(after):
        pairs = [(place, *both) for place, both in enumerate(zip(before, after, strict=True))]
    else:
        if before != after:
            yield f"{path}: {before!r:.80}, now {after!r:.80}"
        return
    for key, one, other in pairs:
        yield from differences(one, other, f"{path}: {key}".removeprefix(": "))


def values(found: Any) -> Any:
    """A fingerprint without identity: equal for two steps that were made alike."""
    if isinstance(found, dict):
        return {key: values(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [values(value) for value in found]
    return repr(found) if isinstance(found, Same | Place) else found
