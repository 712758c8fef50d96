"""What decides how torch computes: how to read it, put it back, and what to say of a change.

A change of a global mode (default dtype and device, grad and inference mode, autocast, modes and
hooks) is a fault, for it affects later cells. The rest is put back and remarked on: threads,
precision and other switches, the seed. Random states are in `kit.random_state`. Nothing here
starts CUDA.
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

from amp_course.checking.item import Item, changed, listed

_DEVICES = ("cpu", "cuda")


# --- function modes; the default device is at the bottom of their stack -------------------------
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
        # torch's own `__exit__`: that of FakeTensorMode puts back more.
        kinds = type(now[-1]).__mro__
        kind: Any = next(kind for kind in kinds if kind.__module__.startswith("torch."))
        kind.__exit__(now[-1], None, None, None)
    for mode in was[len(now) :]:
        TorchDispatchMode.__enter__(mode)
    # torch resets its flags correctly only if the mode that began last ends first.
    flags = vars(sys.modules["torch.utils._python_dispatch"])
    flags["_is_in_torch_dispatch_mode"] = bool(was)
    flags["_is_in_non_infra_torch_dispatch_mode"] = any(not mode.is_infra_mode() for mode in was)


def _describe_mode(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    kinds = [f"`{type(mode).__name__}`" for mode in now if mode not in was]
    if not kinds:
        return (
            "your code ends a mode that was on before it: end only those that you began, best by "
            "`with`"
        )
    return (
        f"your code leaves {' and '.join(kinds)} on, so it would handle the torch calls of every "
        "later cell. Use `with`, which ends a mode even after an exception"
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


def _describe_autocast(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    regions = now[: len(_DEVICES)]
    on = [f"on for {device} with {dtype}" for device, enabled, dtype in regions if enabled]
    return (
        f"your code leaves autocast {' and '.join(on) or 'in a different state from before'}, "
        "which would affect every later cell. Enter it by `with torch.autocast(...):`, which "
        "switches back even after an exception"
    )


_left_inference: list[torch.inference_mode] = []


def _set_inference_mode(mode: bool) -> None:
    # There is no setter, and a guard undoes itself when it is deleted, so it is kept for ever.
    guard = torch.inference_mode(mode)
    guard.__enter__()
    _left_inference.append(guard)


def _describe_grad(was: bool, now: bool) -> str:
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
    """Return the innermost pair of hooks; torch 2.7 cannot."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top(True) if top else None


def _set_saved_tensor_hooks(was: Any) -> None:
    while (now := _saved_tensor_hooks()) is not None and now != was:
        torch._C._autograd._pop_saved_tensors_default_hooks()


# --- settings -----------------------------------------------------------------------------------
def _flushes() -> bool:
    """Return True if this thread flushes subnormal numbers to zero; torch has only a setter."""
    return sys.float_info.min * 0.5 == 0.0


def _describe_flushing(was: bool, now: bool) -> str:
    state = "replacing subnormal numbers by zero" if now else "keeping subnormal numbers"
    return (
        f"your code leaves the processor {state}, so later cells would compute with other numbers. "
        f"Call `torch.set_flush_denormal({was})` at the end"
    )


def _describe_anomaly_detection(was: tuple[bool, bool], now: tuple[bool, bool]) -> str:
    state = "on, which makes training much slower" if now[0] else "off"
    return (
        f"your code left autograd's anomaly detection {state}; that is put back. `with "
        "torch.autograd.detect_anomaly():` ends on its own."
    )


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


def _describe_backends(was: dict[str, Any], now: dict[str, Any]) -> str:
    names = listed(f"torch.backends.{name}" for name in changed(was, now))
    return f"your code changed {names}; that is put back."


_PRECISIONS = [("generic", "all")] + [
    (backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")
]


def _readable(get: Any, *arguments: Any) -> Any:
    try:
        return get(*arguments)
    except RuntimeError:  # torch refuses to read by an older name what was set by a newer one
        return None


def _precisions() -> dict[Any, Any]:
    """Return the float32 precisions by their older names and, from torch 2.9 on, by the newer."""
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
    # Saving and restoring by the older names leaves "ieee" in place of "none", its equal.
    same = [n for n in changed if "all" not in n and {now[n], was[n]} == {"none", "ieee"}]
    return None if changed == same else now


def _describe_precisions(was: dict[Any, Any], now: dict[Any, Any]) -> str:
    if was["matmul"] is not None and was["matmul"] != now["matmul"]:
        return f"your code changed the float32 matmul precision; it is “{was['matmul']}” again."
    return "your code changed the precision of float32 matmuls or convolutions; that is put back."


TORCH = (
    Item(_function_modes, _set_function_modes, _describe_mode),
    Item(_dispatch_modes, _set_dispatch_modes, _describe_mode),
    Item(
        _device,
        _set_device,
        "your code changes the default device, so every new tensor of the notebook would be "
        "created there. Pass the device to the tensors that need it instead of "
        "`torch.set_default_device`",
    ),
    Item(
        torch.get_default_dtype,
        torch.set_default_dtype,
        "your code leaves the default dtype at {now} (it was {was}), so every new tensor of the "
        "notebook would have it. Pass the dtype to the tensors that need it instead of "
        "`torch.set_default_dtype`",
    ),
    Item(
        torch.is_inference_mode_enabled,
        _set_inference_mode,
        "your code enters inference mode and does not leave it, so no later cell could train. Use "
        "`with torch.inference_mode():`, which switches back on its own",
    ),
    Item(torch.is_grad_enabled, torch.set_grad_enabled, _describe_grad),
    Item(_autocast, _set_autocast, _describe_autocast),
    Item(
        _hooks,
        _set_hooks,
        "your code leaves a hook registered for all modules or all optimizers, which would run in "
        "every later cell. Call `remove()` on the handle, or register the hook on your own model",
    ),
    Item(
        _saved_tensor_hooks,
        _set_saved_tensor_hooks,
        "your code leaves hooks for saved tensors on, which would handle what every later cell "
        "keeps for its backward pass. Use `with torch.autograd.graph.saved_tensors_hooks(...):`",
    ),
    Item(_flushes, torch.set_flush_denormal, _describe_flushing),
    Item(
        torch.get_num_threads,
        torch.set_num_threads,
        "your code set the number of threads to {now}; it is {was} again.",
        fault=False,
    ),
    Item(
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        "your code changed whether torch insists on deterministic algorithms; that is put back.",
        fault=False,
    ),
    Item(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda was: torch.autograd.set_detect_anomaly(*was),
        _describe_anomaly_detection,
        fault=False,
    ),
    Item(_precisions, _set_precisions, _describe_precisions, fault=False, find=_changed_precisions),
    Item(_backends, _set_backends, _describe_backends, fault=False),
    Item(
        torch.initial_seed,
        lambda was: None,  # put back with the random state
        "your code seeds the global random generator; its state is put back. A generator of your "
        "own (`torch.Generator().manual_seed(0)`) leaves everybody else's random numbers alone.",
        fault=False,
    ),
)
