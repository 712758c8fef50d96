"""Read batches, copy them, and pass them to a step the way it takes them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from amp_course.checking.limit import TimeUp, within


class BatchError(Exception):
    """The batches could not be read, or do not fit the step; the message names the fix."""


def read_batches(batches: Iterable[Any], most: int, seconds: float) -> list[Any]:
    """Read at most `most` batches, within a time limit. Raises TypeError, BatchError."""
    kind = "one tensor" if isinstance(batches, Tensor) else f"a {type(batches).__name__}"
    wrong = isinstance(batches, (str, bytes, Mapping, Tensor))
    if wrong or not isinstance(batches, Iterable):
        wanted = "pass a list of batches, [(inputs, targets), …], or a DataLoader."
        raise TypeError(f"batches is {kind}: {wanted}")
    found: list[Any] = []
    try:
        within(seconds, lambda: found.extend(islice(batches, most)))
    except TimeUp:
        if not found:
            raise BatchError(f"`batches` gave no batch within {seconds:g} seconds") from None
    except Exception as error:
        raise BatchError(f"reading `batches` raised {type(error).__name__}: {error}") from error
    return found


def cloned(batch: Any) -> Any:
    """Copy a batch, so that a step that changes it does not change the next run."""
    return pytree.tree_map(_clone_leaf, batch)


def _clone_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    try:
        return copy.deepcopy(leaf)
    except Exception:  # what cannot be copied is passed as it is
        return leaf


def joined(batches: Sequence[Any]) -> Any:
    """Concatenate batches of tensors along the first dimension. Raises if they do not fit."""
    leaves, specs = zip(*(pytree.tree_flatten(batch) for batch in batches), strict=True)
    if any(one != specs[0] for one in specs):
        raise ValueError("the batches are built differently")
    parts = [torch.cat(tensors) for tensors in zip(*leaves, strict=True)]
    return pytree.tree_unflatten(parts, specs[0])


def lengths_of(batch: Any) -> list[int]:
    """Return the distinct lengths of a batch's tensors and arrays, in order."""
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    sized = [len(leaf) for leaf in leaves if isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim]
    return list(dict.fromkeys(sized))


def size_of(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first tensor."""
    return next(iter(lengths_of(batch)), 1)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if a function takes a keyword, or wraps with `**kwargs` one that does."""
    signature = _signature(function)
    if signature is None:
        return False
    if name in signature.parameters:
        return signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    kinds = [one.kind for one in signature.parameters.values()]
    open_ended = inspect.Parameter.VAR_KEYWORD in kinds
    inner = getattr(function, "__wrapped__", None)
    return open_ended and inner is not None and takes(inner, name)


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_for(
    function: Callable[..., Any],
    batch: Any,
    before: tuple[Any, ...] = (),
    /,
    *,
    way: int = 0,
    **more: Any,
) -> Arguments:
    """Return (args, kwargs) to call a function with a batch: its parts, or the batch itself.

    before: arguments before the batch, such as a loss's model
    way:    which way of passing the batch to take, if it fits in several
    more:   further keyword arguments

    Raises BatchError if the batch does not fit.
    """
    fitting = _fitting(function, batch, before, more)
    if not fitting:
        ways, signature = _ways(batch), _signature(function)
        wanted = ", ".join(str(one) for one in signature.parameters.values()) if signature else "…"
        parts = len(ways[0][0])
        holds = f"{parts} part{'s' * (parts != 1)}"
        if isinstance(batch, Mapping):
            holds = f"the keys {', '.join(map(str, batch))}"
        name = getattr(function, "__name__", "the step")
        hint = "; if `batches` is one batch, pass a list of it" if isinstance(batch, Tensor) else ""
        call = f"`{name}({wanted})` cannot be called with it{hint}"
        raise BatchError(f"a batch has {holds}, and {call}")
    args, kwargs = fitting[min(way, len(fitting) - 1)]
    return (*before, *args), {**kwargs, **more}


def fitting_ways(function: Callable[..., Any], batch: Any, **more: Any) -> int:
    """Return in how many ways a batch fits a function."""
    return len(_fitting(function, batch, (), more))


def _fitting(
    function: Callable[..., Any], batch: Any, before: tuple[Any, ...], more: Mapping[str, Any]
) -> list[Arguments]:
    signature = _signature(function)

    def fits(way: Arguments) -> bool:
        try:
            if signature is not None:
                signature.bind(*before, *way[0], **way[1], **more)
        except TypeError:
            return False
        return True

    return list(filter(fits, _ways(batch)))


def _ways(batch: Any) -> list[Arguments]:
    if isinstance(batch, Mapping):
        named = [((), dict(batch))] if all(isinstance(key, str) for key in batch) else []
        return [*named, ((batch,), {})] if len(batch) > 1 else [((batch,), {}), *named]
    if isinstance(batch, (list, tuple)):
        return [(tuple(batch), {}), ((batch,), {})]
    return [((batch,), {})]
