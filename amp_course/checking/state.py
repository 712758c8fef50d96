"""The state that all of a process shares: how to read it, put it back, and what to say when it was changed.

Random states (torch, CUDA, NumPy, random), autocast (on or off, dtype, depth, cache), the default dtype and
device, grad and inference mode, number of threads, float32 matmul precision, deterministic mode.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Item:
    """One piece of global state: how to read and write it, and what to say of an answer that leaves it changed.

    A fault makes the check fail; the rest is only remarked on. `tell` gets the state as it was and as it is now.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    tell: Callable[[Any, Any], str]
    fault: bool = True


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
        f"your code leaves autocast {' and '.join(on) or 'in another state than it was'}, so every later cell would run in "
        "that. Enter it with `with torch.autocast(...):`, which switches back even after an exception"
    )


_left_inference: list[torch.inference_mode] = []


def _set_inference_mode(mode: bool) -> None:
    # There is no setter, and a guard that is deleted undoes itself: so it is entered and kept for ever.
    guard = torch.inference_mode(mode)
    guard.__enter__()
    _left_inference.append(guard)


def _default_device() -> torch.device | None:
    try:
        return torch.get_default_device()
    except Exception:  # an answer may choose a device that is not there
        return None


def _set_default_device(device: torch.device) -> None:
    # The CPU set by name would slow down every later call; None is the CPU as well.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer torch.backends….fp32_precision, which the older name refuses to read
        return None


def _set_matmul_precision(was: str | None) -> None:
    if was is not None:
        torch.set_float32_matmul_precision(was)


def _tell_grad(was: bool, now: bool) -> str:
    return (
        f"your code leaves gradients switched {'on' if now else 'off'}: later cells would "
        f"{'record graphs that nobody asked for' if now else 'compute no gradients and not train'}. Use `with "
        "torch.no_grad():` or `with torch.inference_mode():`, which switch back by themselves"
    )


STATE = (
    Item(
        torch.get_default_dtype,
        torch.set_default_dtype,
        lambda was, now: (
            f"your code leaves the default dtype at {now} (it was {was}), so every new tensor of the notebook "
            "would have it. Give the dtype to the tensors that need it instead of `torch.set_default_dtype`"
        ),
    ),
    Item(
        _default_device,
        _set_default_device,
        lambda was, now: (
            "your code changes the default device, so every new tensor of the notebook would be made there. "
            "Give the device to the tensors that need it instead of `torch.set_default_device`"
        ),
    ),
    Item(
        torch.is_inference_mode_enabled,
        _set_inference_mode,
        lambda was, now: (
            "your code enters inference mode and does not leave it, so no later cell could train. Use `with "
            "torch.inference_mode():`, which switches back by itself"
        ),
    ),
    Item(torch.is_grad_enabled, torch.set_grad_enabled, _tell_grad),
    Item(_autocast, _set_autocast, _tell_autocast),
    Item(
        torch.get_num_threads,
        torch.set_num_threads,
        lambda was, now: f"your code set the number of threads to {now}; it is {was} again.",
        fault=False,
    ),
    Item(
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        lambda was, now: "your code changed whether torch insists on deterministic algorithms; that is put back.",
        fault=False,
    ),
    Item(
        _matmul_precision,
        _set_matmul_precision,
        lambda was, now: f"your code changed the float32 matmul precision; it is “{was}” again.",
        fault=False,
    ),
    Item(
        torch.initial_seed,
        lambda was: None,  # put back with the random state
        lambda was, now: (
            "your code seeds the global random generator; its state is put back. A generator of your own "
            "(`torch.Generator().manual_seed(0)`) leaves everybody else's random numbers alone."
        ),
        fault=False,
    ),
)


def _cuda_rng() -> Any:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None


def _set_cuda_rng(was: Any) -> None:
    if was is not None:
        torch.cuda.set_rng_state_all(was)


# Random states are tensors and tables with arrays: put back always, compared never.
RANDOM: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_rng_state, torch.set_rng_state),
    (_cuda_rng, _set_cuda_rng),
    (lambda: np.random.get_state(legacy=False), np.random.set_state),
    (random.getstate, random.setstate),
)
