"""The one place that patches torch: whatever watches a training listens here.

A listener has functions named after points, as attributes or as the keys of a dict. A point is a
function of torch: its listener is called as `point(original, *args, **kwargs)`, calls `original`
and returns its result; the first to listen is outermost. A hook gets its arguments as torch passes
them. Nothing is attached to the script's objects: functions, classes and torch's global hooks are
patched for the first listener, and restored after the last. No listener is called while torch
traces, scripts, exports or compiles, in a DataLoader's workers, or for fake tensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import nn
from torch.fx import _symbolic_trace
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import _utils, dataloader

# torch 2.7 has no other; in later versions, that one logs a warning
_is_fx_tracing = getattr(_symbolic_trace, "is_fx_symbolic_tracing", _symbolic_trace.is_fx_tracing)
Original = Callable[..., Any]  # a function of torch's, as a listener gets it
# Point → where its function is found
FUNCTIONS: dict[str, list[tuple[Any, str]]] = {
    "backward": [(torch.autograd, "backward")],
    "grad": [(torch.autograd, "grad")],
    "engine": [(torch.autograd, "_engine_run_backward")],  # called by both
    "enter_region": [(torch.autocast, "__enter__")],
    "leave_region": [(torch.autocast, "__exit__")],
    "kl_div": [(nn.functional, "kl_div")],
    "l1_loss": [(nn.functional, "l1_loss")],
    "clip_norm": [(clip_grad, "clip_grad_norm_"), (nn.utils, "clip_grad_norm_")],
    "clip_value": [(clip_grad, "clip_grad_value_"), (nn.utils, "clip_grad_value_")],
    "new_optimizer": [(Optimizer, "__init__")],
    "new_scaler": [(torch.amp.GradScaler, "__init__")],
    "new_scheduler": [(LRScheduler, "__init__")],
    "average": [(torch.optim.swa_utils.AveragedModel, "update_parameters")],
    "new_wrapper": [(nn.parallel.DistributedDataParallel, "__init__")],
    "next_batch": [(dataloader._BaseDataLoaderIter, "__next__")],
    "save": [(torch, "save"), (torch.serialization, "save")],
    "leave_join": [],  # Join.__exit__, which is imported when it is listened to
    "exit": [(os, "_exit")],
    "move_weights": [],  # torch.optim's `sgd`, `adam`, …, with (parameters, gradients, …)
}
SCALER_METHODS = {
    "scale": "scale",
    "unscale": "unscale_",
    "scaler_step": "step",
    "update": "update",
}
SCHEDULER_METHODS = {"schedule": "step"}
_TRACING = dict.fromkeys(("script", "trace", "trace_module"), torch.jit) | {"export": torch.export}
HOOKS: dict[str, Callable[[Any], Any]] = {
    "module_begins": register_module_forward_pre_hook,  # (module, args)
    # (module, args, output), (module, args, kwargs, output)
    "module_ends": partial(register_module_forward_hook, always_call=True),
    "module_returns": partial(register_module_forward_hook, with_kwargs=True),
    "step_begins": register_optimizer_step_pre_hook,  # (optimizer, args, kwargs)
    "step_ends": register_optimizer_step_post_hook,
}

_listeners: dict[str, list[Callable[..., Any]]] = {}
# (id of owner, name) → owner, name, original, patch
_patches: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
_hooks: list[list[Any]] = []  # point, hook, torch's handle
_classes: dict[type, Mapping[str, str]] = {}  # of scalers and schedulers, with their methods


@contextmanager
def listening(
    listener: Any, scalers: Iterable[Any] = (), schedulers: Iterable[Any] = ()
) -> Iterator[None]:
    """Call the functions of an object, or of a dict, at the points that they are named after.

    scalers, schedulers: are watched even if their classes have nothing to do with torch's
    """
    is_dict = isinstance(listener, Mapping)
    get = listener.get if is_dict else lambda name: getattr(listener, name, None)
    points = [*FUNCTIONS, *SCALER_METHODS, *SCHEDULER_METHODS]
    called = [(point, function) for point in points if (function := get(point)) is not None]
    hooks: list[list[Any]] = [
        [hook, _guarded(function), None] for hook in HOOKS if (function := get(hook)) is not None
    ]
    for kind in (torch.amp.GradScaler, *map(type, scalers)):
        _add_class(kind, SCALER_METHODS)
    for kind in (*_subclasses(LRScheduler), *map(type, schedulers)):
        _add_class(kind, SCHEDULER_METHODS)
    for point, function in called:
        _listeners.setdefault(point, []).append(function)
    _hooks.extend(hooks)
    _install()
    try:
        yield
    finally:
        for one in hooks:
            one[2].remove()
            _hooks.remove(one)
        for point, function in called:
            _listeners[point].remove(function)
        if not _hooks and not any(_listeners.values()):
            _restore()


def stands_aside() -> bool:
    """Return True while torch traces or compiles, or in a DataLoader's worker."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or _is_fx_tracing()
        or _utils.worker._worker_info is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        # `is_compiling` first, for a compiler that traces this line
        if torch.compiler.is_compiling() or stands_aside():
            return None
        return hook(*args)

    return guarded


def _pass_on(listeners: list[Any], place: int, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call one listener, with an `original` that calls the next, even one that joins later."""
    if place >= len(listeners):
        return original(*args, **kwargs)
    following = partial(_pass_on, listeners, place + 1, original)
    return listeners[place](following, *args, **kwargs)


def _tap(point: str, original: Any) -> Any:
    listeners = _listeners.setdefault(point, [])
    methods = {"new_scaler": SCALER_METHODS, "new_scheduler": SCHEDULER_METHODS}.get(point)

    @wraps(original)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or stands_aside():
            return original(*args, **kwargs)
        if methods is not None:
            _add_class(type(args[0]), methods)
            _install()
        return _pass_on(listeners, 0, original, *args, **kwargs)

    return tapped


# ---- patching ----


def _install() -> None:
    for point, places in FUNCTIONS.items():
        always = point == "new_scaler" or (point == "new_scheduler" and _listeners.get("schedule"))
        if _listeners.get(point) or always:
            for owner, name in [*places, *_found(point)]:
                _patch(point, owner, name)
    for kind, methods in _classes.items():
        for point, name in methods.items():
            if _listeners.get(point) and name in vars(kind):
                _patch(point, kind, name)
    for name, owner in _TRACING.items():
        _patch(name, owner, name)
    for one in _hooks:
        one[2] = one[2] or HOOKS[one[0]](one[1])


def _patch(point: str, owner: Any, name: str) -> None:
    if (id(owner), name) in _patches:
        return
    original = vars(owner)[name]
    patch = _patched(point, original)
    with suppress(TypeError):  # a class of C's
        setattr(owner, name, patch)
        _patches[id(owner), name] = owner, name, original, patch


@cache
def _patched(point: str, original: Any) -> Any:
    """Return the patch of a function, the same one wherever the function is found."""
    return _tracing(original) if point in _TRACING else _tap(point, original)


def _restore() -> None:
    for owner, name, original, patch in _patches.values():
        # If not, someone else has patched it since, and calls our patch.
        if vars(owner).get(name) is patch:
            setattr(owner, name, original)
    for one in _hooks:
        one[2].remove()
        one[2] = None
    _patches.clear()
    _patched.cache_clear()
    _classes.clear()


def _tracing(original: Any) -> Any:
    """Restore everything meanwhile: these read sources, and know only torch's own functions."""

    @wraps(original)
    def trace(*args: Any, **kwargs: Any) -> Any:
        if original.__name__ == "script":
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
        classes = dict(_classes)
        _restore()
        try:
            with _disable_current_modes():
                return original(*args, **kwargs)
        finally:
            _classes.update(classes)
            _install()

    return trace


def _add_class(kind: type, methods: Mapping[str, str]) -> None:
    for base in kind.__mro__[:-1]:
        _classes.setdefault(base, methods)


def _subclasses(kind: Any) -> Iterator[type]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _subclasses(inner)


def _found(point: str) -> Iterator[tuple[Any, str]]:
    """Yield the places of a point that are searched only when someone listens to it."""
    if point == "leave_join" and torch.distributed.is_available():
        from torch.distributed.algorithms.join import Join

        yield Join, "__exit__"
    if point == "move_weights":
        for path in [path for path in sys.modules if path.startswith("torch.optim.")]:
            module, name = sys.modules[path], path.rpartition(".")[2].lstrip("_")
            if callable(getattr(module, name, None)):
                yield module, name
