"""Autograd's and the compiler's state that outlives a call: forward mode, profiler, stance, switches, and how torch saves."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

from amp_course.checking.state.item import Item, changed_keys, restored


# --- forward mode -----------------------------------------------------------------------------------------------------
def _forward_mode() -> tuple[int, bool]:
    return forward_ad._current_level, torch._C._is_fwd_grad_enabled()


def _set_forward_mode(was: tuple[int, bool]) -> None:
    while forward_ad._current_level > was[0]:
        forward_ad.exit_dual_level()
    while forward_ad._current_level < was[0]:
        forward_ad.enter_dual_level()
    torch._C._set_fwd_grad_enabled(was[1])


# --- profiler ---------------------------------------------------------------------------------------------------------
def _end_profiler(was: bool) -> None:
    if not was:  # one that the answer ended cannot go on
        torch.autograd._disable_profiler()
        profiler._is_profiler_enabled = False


# --- the stance of `torch.compile` ------------------------------------------------------------------------------------
def _stance() -> Any:
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)  # None: the compiler is not loaded


def _changed_stance(was: Any) -> Any:
    now = _stance()
    return now if now is not None and now != (was or type(now)()) else None


def _set_stance(was: Any) -> None:
    now = was or type(_stance())()
    torch.compiler.set_stance(now.stance, skip_guard_eval_unsafe=now.skip_guard_eval_unsafe, force_backend=now.backend)


# --- switches ---------------------------------------------------------------------------------------------------------
_SPARSE = torch.sparse.check_sparse_tensor_invariants
# What to say: (getter, setter).
_SWITCHES: dict[str, tuple[Any, Any]] = {
    "`torch.autograd.set_multithreading_enabled`": (
        lambda: torch._C._is_multithreading_enabled(),
        lambda was: torch._C._set_multithreading_enabled(was),
    ),
    "`torch.autograd._force_original_view_tracking`": (
        lambda: torch._C._is_view_replay_enabled(),
        lambda was: torch._C._set_view_replay_enabled(was),
    ),
    "`torch.__future__.set_overwrite_module_params_on_conversion`": (
        lambda: torch.__future__.get_overwrite_module_params_on_conversion(),
        lambda was: torch.__future__.set_overwrite_module_params_on_conversion(was),
    ),
    "`torch.__future__.set_swap_module_params_on_conversion`": (
        lambda: torch.__future__.get_swap_module_params_on_conversion(),
        lambda was: torch.__future__.set_swap_module_params_on_conversion(was),
    ),
    "`torch.sparse.check_sparse_tensor_invariants`": (
        lambda: _SPARSE.is_enabled(),
        lambda was: (_SPARSE.enable if was else _SPARSE.disable)(),
    ),
    "`torch.multiprocessing.set_sharing_strategy`": (
        lambda: torch.multiprocessing.get_sharing_strategy(),
        lambda was: torch.multiprocessing.set_sharing_strategy(was),
    ),
    "`torch.serialization.set_default_load_endianness`": (
        lambda: torch.serialization.get_default_load_endianness(),
        lambda was: torch.serialization.set_default_load_endianness(was),
    ),
}


def _switches() -> dict[str, Any]:
    found = {}
    for name, (get, _) in _SWITCHES.items():
        try:
            found[name] = get()
        except (AttributeError, RuntimeError):  # this version of torch lacks it
            continue
    return found


def _set_switches(was: dict[str, Any]) -> None:
    for name in changed_keys(was, _switches()):
        _SWITCHES[name][1](was[name])


def _set_safe_globals(was: frozenset[Any]) -> None:
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(was))


TORCH_AUTOGRAD = (
    Item(
        _forward_mode,
        _set_forward_mode,
        lambda was, now: (
            "your code leaves forward-mode differentiation in a different state from before, so a later cell could not begin "
            "its own. Use `with torch.autograd.forward_ad.dual_level():`, which ends even after an exception"
        ),
    ),
    Item(
        _stance,
        _set_stance,
        lambda was, now: (
            f"your code leaves the compiler's stance at “{now.stance}”, so `torch.compile` would do something else in every "
            "later cell. Use `with torch.compiler.set_stance(...):`, which switches back on its own"
        ),
        find=_changed_stance,
    ),
    Item(
        lambda: torch.autograd._profiler_enabled(),
        _end_profiler,
        lambda was, now: (
            "your code left a profiler on, which would record every later cell and slow it down; it is off again. `with "
            "torch.profiler.profile():` ends on its own."
            if now
            else "your code ended a profiler that was on before it, and that cannot go on: run the cell that began it again."
        ),
        fault=False,
    ),
    Item(
        _switches,
        _set_switches,
        lambda was, now: restored(f"torch's setting {' and '.join(changed_keys(was, now))}")(was, now),
        fault=False,
    ),
    Item(
        lambda: frozenset(torch.serialization.get_safe_globals()),
        _set_safe_globals,
        lambda was, now: (
            "your code changed which classes `torch.load` trusts; that is put back. `with "
            "torch.serialization.safe_globals([...]):` ends on its own."
        ),
        fault=False,
        libraries="which classes `torch.load` trusts",
    ),
)
