"""What decides how torch computes: default dtype and device, grad mode, autocast, modes, hooks. Leaving it changed is a fault."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.checking.state.item import Item

_DEVICES = ("cpu", "cuda")


# --- the stack of function modes, at whose bottom the default device lies ---------------------------------------------
def _function_stack() -> list[TorchFunctionMode]:
    return [torch._C._get_function_stack_at(level) for level in range(torch._C._len_torch_function_stack())]


def _set_function_stack(modes: list[Any]) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _function_modes() -> tuple[Any, ...]:
    return tuple(mode for mode in _function_stack() if not isinstance(mode, DeviceContext))


def _set_function_modes(was: tuple[Any, ...]) -> None:
    _set_function_stack([mode for mode in _function_stack() if isinstance(mode, DeviceContext)] + list(was))


def _device() -> tuple[Any, ...]:
    # `torch.get_default_device()` starts CUDA to find its current device, and torch 2.6 raises after a reset to None.
    contexts = [mode for mode in _function_stack() if isinstance(mode, DeviceContext)]
    current = vars(sys.modules["torch.utils._device"])["CURRENT_DEVICE"]
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), current, *contexts


def _set_device(was: tuple[Any, ...]) -> None:
    torch._GLOBAL_DEVICE_CONTEXT.device_context, current, *contexts = was
    vars(sys.modules["torch.utils._device"])["CURRENT_DEVICE"] = current
    _set_function_stack(contexts + list(_function_modes()))


# --- dispatch modes, FakeTensorMode among them ------------------------------------------------------------------------
def _dispatch_modes() -> tuple[Any, ...]:
    return tuple(torch._C._get_dispatch_stack_at(level) for level in range(torch._C._len_torch_dispatch_stack()))


def _set_dispatch_modes(was: tuple[Any, ...]) -> None:
    while (now := _dispatch_modes()) != was[: len(now)]:
        mode = now[-1]  # its own `__exit__` if torch wrote that (it knows more to put back), else the general one
        kind = next(kind for kind in type(mode).__mro__ if kind.__module__.startswith("torch."))
        (kind if issubclass(kind, TorchDispatchMode) else TorchDispatchMode).__exit__(mode, None, None, None)
    for mode in was[len(now) :]:
        TorchDispatchMode.__enter__(mode)
    # torch puts its flags back right only if the mode that began last ends first, but on the stack its own come first.
    flags = vars(sys.modules["torch.utils._python_dispatch"])
    flags["_is_in_torch_dispatch_mode"] = bool(was)
    flags["_is_in_non_infra_torch_dispatch_mode"] = any(not mode.is_infra_mode() for mode in was)


def _tell_mode(was: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    kinds = [f"`{type(mode).__name__}`" for mode in now if mode not in was]
    return (
        f"your code leaves {' and '.join(kinds)} on, so it would handle the torch calls of every later cell. Use `with`, "
        "which ends a mode even after an exception"
        if kinds
        else "your code ends a mode that was on before it: end only those that you began, best by `with`"
    )


# --- autocast and grad mode -------------------------------------------------------------------------------------------
def _depth() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _autocast() -> tuple[Any, ...]:
    regions = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
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
    on = [f"on for {device} with {dtype}" for device, enabled, dtype in now[: len(_DEVICES)] if enabled]
    return (
        f"your code leaves autocast {' and '.join(on) or 'in a different state from before'}, which would affect every later "
        "cell. Enter it by `with torch.autocast(...):`, which switches back even after an exception"
    )


_left_inference: list[torch.inference_mode] = []


def _set_inference_mode(mode: bool) -> None:
    # There is no setter, and a guard that is deleted undoes itself: so it is entered and kept for ever.
    guard = torch.inference_mode(mode)
    guard.__enter__()
    _left_inference.append(guard)


def _tell_grad(was: bool, now: bool) -> str:
    return (
        f"your code leaves gradients switched {'on' if now else 'off'}: later cells would "
        f"{'record graphs that nobody needs' if now else 'compute no gradients and could not train'}. Use `with "
        "torch.no_grad():` or `with torch.inference_mode():`, which switch back on their own"
    )


# --- hooks ------------------------------------------------------------------------------------------------------------
_HOOK_TABLES = [
    table
    for module in (nn_module, optim)
    for name, table in vars(module).items()
    if name.startswith("_global") and isinstance(table, dict)
]


def _hooks() -> tuple[Any, ...]:
    return (getattr(nn_module, "_global_is_full_backward_hook", None), *(dict(table) for table in _HOOK_TABLES))


def _set_hooks(was: tuple[Any, ...]) -> None:
    nn_module._global_is_full_backward_hook, *tables = was
    for table, hooks in zip(_HOOK_TABLES, tables, strict=True):
        table.clear()
        table.update(hooks)


def _saved_tensor_hooks() -> tuple[Any, ...]:
    # Only the innermost pair can be looked at; torch 2.6 shows not even that.
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    message = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    return (top(True) if top else None), message


def _set_saved_tensor_hooks(was: tuple[Any, ...]) -> None:
    hooks, message = was
    for _ in range(100):
        now = _saved_tensor_hooks()[0]
        if now is None or now == hooks:
            break
        torch._C._autograd._pop_saved_tensors_default_hooks()
    if hooks and _saved_tensor_hooks()[0] is None:
        torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(message)


# --- subnormals -------------------------------------------------------------------------------------------------------
def _flushes() -> bool:
    """Tell whether this thread's processor takes subnormal numbers for zero; torch has a setter only."""
    return sys.float_info.min * 0.5 == 0.0


TORCH_MODES = (
    Item(
        _function_modes,
        _set_function_modes,
        _tell_mode,
    ),
    Item(_dispatch_modes, _set_dispatch_modes, _tell_mode),
    Item(
        _device,
        _set_device,
        lambda was, now: (
            "your code changes the default device, so every new tensor of the notebook would be created there. "
            "Pass the device to the tensors that need it instead of `torch.set_default_device`"
        ),
    ),
    Item(
        torch.get_default_dtype,
        torch.set_default_dtype,
        lambda was, now: (
            f"your code leaves the default dtype at {now} (it was {was}), so every new tensor of the notebook would have "
            "it. Pass the dtype to the tensors that need it instead of `torch.set_default_dtype`"
        ),
    ),
    Item(
        torch.is_inference_mode_enabled,
        _set_inference_mode,
        lambda was, now: (
            "your code enters inference mode and does not leave it, so no later cell could train. Use `with "
            "torch.inference_mode():`, which switches back on its own"
        ),
    ),
    Item(torch.is_grad_enabled, torch.set_grad_enabled, _tell_grad),
    Item(_autocast, _set_autocast, _tell_autocast),
    Item(
        _hooks,
        _set_hooks,
        lambda was, now: (
            "your code leaves a hook registered for all modules or all optimizers, which would run in every later cell. Call "
            "`remove()` on the handle, or register the hook on your own model"
        ),
    ),
    Item(
        _saved_tensor_hooks,
        _set_saved_tensor_hooks,
        lambda was, now: (
            "your code leaves hooks for saved tensors on, which would handle what every later cell keeps for its backward "
            "pass. Use `with torch.autograd.graph.saved_tensors_hooks(...):`"
        ),
    ),
    Item(
        _flushes,
        torch.set_flush_denormal,
        lambda was, now: (
            f"your code leaves the processor {'replacing subnormal numbers by zero' if now else 'keeping subnormal numbers'}, "
            f"so later cells would compute with other numbers. Call `torch.set_flush_denormal({was})` at the end"
        ),
    ),
)
