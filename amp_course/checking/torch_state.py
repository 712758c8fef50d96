"""What decides how torch computes: how to read it, put it back, and what to say when it was
changed.

Global modes come first: default dtype and device, grad and inference mode, autocast, modes and
hooks. They change what later cells compute, so leaving one changed is a fault. The rest is put
back and remarked on: threads, precision and other switches, the seed. Random states are in
`kit.random_state`. Nothing here starts CUDA.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.checking.item import Item, changed, listed, restored

_DEVICES = ("cpu", "cuda")


# --- the stack of function modes, at whose bottom the default device lies -----------------------
def _function_stack() -> list[TorchFunctionMode]:
    depth = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(level) for level in range(depth)]


def _set_function_stack(modes: list[Any]) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _function_modes() -> tuple[Any, ...]:
    return tuple(mode for mode in _function_stack() if not isinstance(mode, DeviceContext))


def _set_function_modes(was: tuple[Any, ...]) -> None:
    devices = [mode for mode in _function_stack() if isinstance(mode, DeviceContext)]
    _set_function_stack(devices + list(was))


def _device() -> tuple[Any, ...]:
    # `torch.get_default_device()` starts CUDA to find its current device.
    contexts = [mode for mode in _function_stack() if isinstance(mode, DeviceContext)]
    current = vars(sys.modules["torch.utils._device"])["CURRENT_DEVICE"]
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), current, *contexts


def _set_device(was: tuple[Any, ...]) -> None:
    torch._GLOBAL_DEVICE_CONTEXT.device_context, current, *contexts = was
    vars(sys.modules["torch.utils._device"])["CURRENT_DEVICE"] = current
    _set_function_stack(contexts + list(_function_modes()))


# --- dispatch modes, FakeTensorMode among them --------------------------------------------------
def _dispatch_modes() -> tuple[Any, ...]:
    depth = torch._C._len_torch_dispatch_stack()
    return tuple(torch._C._get_dispatch_stack_at(level) for level in range(depth))


def _set_dispatch_modes(was: tuple[Any, ...]) -> None:
    while (now := _dispatch_modes()) != was[: len(now)]:
        # The `__exit__` that torch wrote: that of FakeTensorMode has more to put back.
        kinds = type(now[-1]).__mro__
        kind: Any = next(kind for kind in kinds if kind.__module__.startswith("torch."))
        kind.__exit__(now[-1], None, None, None)
    for mode in was[len(now) :]:
        TorchDispatchMode.__enter__(mode)
    # torch puts its flags back right only if the mode that began last ends first.
    flags = vars(sys.modules["torch.utils._python_dispatch"])
    flags["_is_in_torch_dispatch_mode"] = bool(was)
    flags["_is_in_non_infra_torch_dispatch_mode"] = any(not mode.is_infra_mode() for mode in was)


def _tell_mode(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    kinds = [f"`{type(mode).__name__}`" for mode in now if mode not in was]
    return (
        f"your code leaves {' and '.join(kinds)} on, so it would handle the torch calls of every "
        "later cell. Use `with`, which ends a mode even after an exception"
        if kinds
        else "your code ends a mode that was on before it: end only those that you began, best by "
        "`with`"
    )


# --- autocast, grad and inference mode ----------------------------------------------------------
def _depth() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _autocast() -> tuple[Any, ...]:
    regions = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _DEVICES
    ]
    return (*regions, _depth(), torch.is_autocast_cache_enabled())


def _set_autocast(state: tuple[Any, ...]) -> None:
    *regions, depth, cached = state
    for device, enabled, dtype in regions:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    while _depth() > depth:
        torch.autocast_decrement_nesting()
    while _depth() < depth:
        torch.autocast_increment_nesting()


def _tell_autocast(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    regions = now[: len(_DEVICES)]
    on = [f"on for {device} with {dtype}" for device, enabled, dtype in regions if enabled]
    return (
        f"your code leaves autocast {' and '.join(on) or 'in a different state from before'}, "
        "which would affect every later cell. Enter it by `with torch.autocast(...):`, which "
        "switches back even after an exception"
    )


_left_inference: list[torch.inference_mode] = []


def _set_inference_mode(mode: bool) -> None:
    # There is no setter, and a guard that is deleted undoes itself: so it is kept for ever.
    guard = torch.inference_mode(mode)
    guard.__enter__()
    _left_inference.append(guard)


def _tell_grad(was: bool, now: bool) -> str:
    harm = "record graphs that nobody needs" if now else "compute no gradients and could not train"
    return (
        f"your code leaves gradients switched {'on' if now else 'off'}: later cells would {harm}. "
        "Use `with torch.no_grad():` or `with torch.inference_mode():`, which switch back on "
        "their own"
    )


# --- hooks --------------------------------------------------------------------------------------
_HOOK_TABLES = [
    table
    for module in (nn_module, optim)
    for name, table in vars(module).items()
    if name.startswith("_global") and isinstance(table, dict)
]


def _hooks() -> tuple[Any, ...]:
    full = getattr(nn_module, "_global_is_full_backward_hook", None)
    return (full, *(dict(table) for table in _HOOK_TABLES))


def _set_hooks(was: tuple[Any, ...]) -> None:
    nn_module._global_is_full_backward_hook, *tables = was
    for table, hooks in zip(_HOOK_TABLES, tables, strict=True):
        table.clear()
        table.update(hooks)


def _saved_tensor_hooks() -> Any:
    """Return the innermost pair; torch 2.6 does not show it."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top(True) if top else None


def _set_saved_tensor_hooks(was: Any) -> None:
    while (now := _saved_tensor_hooks()) is not None and now != was:
        torch._C._autograd._pop_saved_tensors_default_hooks()


# --- settings -----------------------------------------------------------------------------------
def _flushes() -> bool:
    """Return True if this thread's processor takes subnormal numbers for zero; torch only sets."""
    return sys.float_info.min * 0.5 == 0.0


# Attributes below `torch.backends`; none of them starts CUDA.
_FLAGS = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
)


def _backends() -> dict[str, Any]:
    return {name: operator.attrgetter(name)(torch.backends) for name in _FLAGS}


def _set_backends(was: dict[str, Any]) -> None:
    for name in changed(was, _backends()):
        owner, _, flag = name.rpartition(".")
        setattr(operator.attrgetter(owner)(torch.backends), flag, was[name])


_PRECISIONS = [("generic", "all")] + [
    (backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")
]


def _readable(get: Any, *arguments: Any) -> Any:
    try:
        return get(*arguments)
    except RuntimeError:  # torch refuses to read by the older names what was set by the newer
        return None


def _precisions() -> dict[Any, Any]:
    """Return the float32 precisions by their older names, and the newer (torch 2.9 on)."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {
        "matmul": _readable(torch.get_float32_matmul_precision),
        "cudnn": _readable(torch._C._get_cudnn_allow_tf32),
    } | ({pair: newer(*pair) for pair in _PRECISIONS} if newer else {})


def _set_precisions(was: dict[Any, Any]) -> None:
    # The older setters write the newer settings too, so they come first.
    if was["matmul"] is not None:
        torch.set_float32_matmul_precision(was["matmul"])
    if was["cudnn"] is not None:
        torch._C._set_cudnn_allow_tf32(was["cudnn"])
    for pair in _PRECISIONS if len(was) > 2 else ():
        if torch._C._get_fp32_precision_getter(*pair) != was[pair]:
            torch._C._set_fp32_precision_setter(*pair, was[pair])


def _changed_precisions(was: dict[Any, Any]) -> dict[Any, Any] | None:
    now = _precisions()
    changed = [name for name in was if now[name] != was[name]]
    # Who saves and restores by the older names leaves "ieee" where there was "none": the same.
    same = [one for one in changed if "all" not in one and {now[one], was[one]} == {"none", "ieee"}]
    return None if changed == same else now


def _tell_precisions(was: dict[Any, Any], now: dict[Any, Any]) -> str:
    if was["matmul"] is not None and was["matmul"] != now["matmul"]:
        return f"your code changed the float32 matmul precision; it is “{was['matmul']}” again."
    return "your code changed the precision of float32 matmuls or convolutions; that is put back."


# What decides how torch computes. The course's own answers may leave it changed, too.
TORCH = (
    Item(_function_modes, _set_function_modes, _tell_mode),
    Item(_dispatch_modes, _set_dispatch_modes, _tell_mode),
    Item(
        _device,
        _set_device,
        lambda was, now: (
            "your code changes the default device, so every new tensor of the notebook would be "
            "created there. Pass the device to the tensors that need it instead of "
            "`torch.set_default_device`"
        ),
    ),
    Item(
        torch.get_default_dtype,
        torch.set_default_dtype,
        lambda was, now: (
            f"your code leaves the default dtype at {now} (it was {was}), so every new tensor of "
            "the notebook would have it. Pass the dtype to the tensors that need it instead of "
            "`torch.set_default_dtype`"
        ),
    ),
    Item(
        torch.is_inference_mode_enabled,
        _set_inference_mode,
        lambda was, now: (
            "your code enters inference mode and does not leave it, so no later cell could train. "
            "Use `with torch.inference_mode():`, which switches back on its own"
        ),
    ),
    Item(torch.is_grad_enabled, torch.set_grad_enabled, _tell_grad),
    Item(_autocast, _set_autocast, _tell_autocast),
    Item(
        _hooks,
        _set_hooks,
        lambda was, now: (
            "your code leaves a hook registered for all modules or all optimizers, which would run "
            "in every later cell. Call `remove()` on the handle, or register the hook on your own "
            "model"
        ),
    ),
    Item(
        _saved_tensor_hooks,
        _set_saved_tensor_hooks,
        lambda was, now: (
            "your code leaves hooks for saved tensors on, which would handle what every later cell "
            "keeps for its backward pass. Use `with torch.autograd.graph.saved_tensors_hooks(...):`"
        ),
    ),
    Item(
        _flushes,
        torch.set_flush_denormal,
        lambda was, now: (
            f"your code leaves the processor {'replacing' if now else 'keeping'} subnormal numbers"
            f"{' by zero' if now else ''}, so later cells would compute with other numbers. Call "
            f"`torch.set_flush_denormal({was})` at the end"
        ),
    ),
    Item(
        torch.get_num_threads,
        torch.set_num_threads,
        lambda was, now: f"your code set the number of threads to {now}; it is {was} again.",
        fault=False,
    ),
    Item(
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        restored("whether torch insists on deterministic algorithms"),
        fault=False,
    ),
    Item(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda was: torch.autograd.set_detect_anomaly(*was),
        lambda was, now: (
            "your code left autograd's anomaly detection "
            f"{'on, which makes training much slower' if now[0] else 'off'}; that is put back. "
            "`with torch.autograd.detect_anomaly():` ends on its own."
        ),
        fault=False,
    ),
    Item(_precisions, _set_precisions, _tell_precisions, fault=False, find=_changed_precisions),
    Item(
        _backends,
        _set_backends,
        lambda was, now: (
            f"your code changed {listed(f'torch.backends.{name}' for name in changed(was, now))}; "
            f"that is put back."
        ),
        fault=False,
    ),
    Item(
        torch.initial_seed,
        lambda was: None,  # put back with the random state
        lambda was, now: (
            "your code seeds the global random generator; its state is put back. A generator of "
            "your own (`torch.Generator().manual_seed(0)`) leaves everybody else's random numbers "
            "alone."
        ),
        fault=False,
    ),
)
