"""Settings of torch that change its speed, its printing or its last digits: put back, and remarked on."""

from __future__ import annotations

import operator
from typing import Any

import torch

from amp_course.checking.state.item import Item, listed

# Plain attributes below `torch.backends`. None of them starts CUDA, and any may be missing in some version of torch.
_FLAGS = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.benchmark_limit",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "mkldnn.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    "opt_einsum.enabled",
    "opt_einsum.strategy",
    "quantized.engine",
)
# The same for pairs of functions: (getter, setter).
_FUNCTIONS = (
    ("cuda.flash_sdp_enabled", "cuda.enable_flash_sdp"),
    ("cuda.mem_efficient_sdp_enabled", "cuda.enable_mem_efficient_sdp"),
    ("cuda.math_sdp_enabled", "cuda.enable_math_sdp"),
    ("cuda.cudnn_sdp_enabled", "cuda.enable_cudnn_sdp"),
    ("cuda.fp16_bf16_reduction_math_sdp_allowed", "cuda.allow_fp16_bf16_reduction_math_sdp"),
    ("cuda.preferred_linalg_library", "cuda.preferred_linalg_library"),
    ("cuda.preferred_blas_library", "cuda.preferred_blas_library"),
    ("mha.get_fastpath_enabled", "mha.set_fastpath_enabled"),
)
_FILL = "fill_uninitialized_memory"
_PRECISIONS = [("generic", "all")] + [
    (backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")
]


def _backends() -> dict[str, Any]:
    found = {}
    for name in (*_FLAGS, *dict(_FUNCTIONS)):
        try:
            value = operator.attrgetter(name)(torch.backends)
            found[name] = value if name in _FLAGS else value()
        except (AttributeError, RuntimeError):
            continue
    return found


def _changed_backends(was: dict[str, Any]) -> list[str]:
    """Return the names whose values differ; torch 2.6 loads some late (`opt_einsum`), and what is new was not changed."""
    now = _backends()
    return [name for name in was if name in now and was[name] != now[name]]


def _set_backends(was: dict[str, Any]) -> None:
    setters = dict(_FUNCTIONS)
    for name in _changed_backends(was):
        if name in setters:
            operator.attrgetter(setters[name])(torch.backends)(was[name])
        else:
            owner, _, flag = name.rpartition(".")
            setattr(operator.attrgetter(owner)(torch.backends), flag, was[name])


def _readable(get: Any, *arguments: Any) -> Any:
    try:
        return get(*arguments)
    except (AttributeError, RuntimeError):  # torch refuses to read by the older names what was set by the newer
        return None


def _precisions() -> dict[Any, Any]:
    """Return the float32 precisions of matmuls and convolutions by their older names, and the newer (torch 2.9 on)."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {
        "matmul": _readable(torch.get_float32_matmul_precision),
        "cudnn": _readable(torch._C._get_cudnn_allow_tf32),
    } | ({pair: _readable(newer, *pair) for pair in _PRECISIONS} if newer else {})


def _set_precisions(was: dict[Any, Any]) -> None:
    # The older setters write the newer settings too, so they come first; a general setting writes the special ones.
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
    # Who saves and restores by the older names leaves "ieee" where there was "none", which means the same for one op.
    alike = [name for name in changed if "all" not in name and {now[name], was[name]} == {"none", "ieee"}]
    return None if changed == alike else now


def _deterministic() -> tuple[Any, ...]:
    return torch.get_deterministic_debug_mode(), getattr(torch.utils.deterministic, _FILL)


def _set_deterministic(was: tuple[Any, ...]) -> None:
    torch.set_deterministic_debug_mode(was[0])
    setattr(torch.utils.deterministic, _FILL, was[1])


TORCH_SETTINGS = (
    Item(
        torch.get_num_threads,
        torch.set_num_threads,
        lambda was, now: f"your code set the number of threads to {now}; it is {was} again.",
        fault=False,
    ),
    Item(
        torch.get_num_interop_threads,
        lambda was: None,  # torch lets it be set once in a process
        lambda was, now: (
            f"your code set the number of inter-op threads to {now}, and torch does not let anybody change it again: restart "
            f"the kernel to have {was} as before."
        ),
        fault=False,
    ),
    Item(
        _deterministic,
        _set_deterministic,
        lambda was, now: "your code changed whether torch insists on deterministic algorithms; that is put back.",
        fault=False,
    ),
    Item(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda was: torch.autograd.set_detect_anomaly(*was),
        lambda was, now: (
            f"your code left autograd's anomaly detection {'on, which makes training much slower' if now[0] else 'off'}; that "
            "is put back. `with torch.autograd.detect_anomaly():` ends on its own."
        ),
        fault=False,
    ),
    Item(
        _precisions,
        _set_precisions,
        lambda was, now: (
            f"your code changed the float32 matmul precision; it is “{was['matmul']}” again."
            if was["matmul"] is not None and was["matmul"] != now["matmul"]
            else "your code changed the precision of float32 matmuls or convolutions; that is put back."
        ),
        fault=False,
        find=_changed_precisions,
    ),
    Item(
        _backends,
        _set_backends,
        lambda was, names: (
            f"your code changed {listed([f'torch.backends.{name}' for name in names])}; that is put back."
        ),
        fault=False,
        find=_changed_backends,
    ),
    Item(
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda was: torch.set_printoptions(**was),
        lambda was, now: "your code changed how torch prints tensors (`torch.set_printoptions`); that is put back.",
        fault=False,
    ),
    Item(
        torch.is_warn_always_enabled,
        torch.set_warn_always,
        lambda was, now: (
            "your code changed how often torch repeats a warning (`torch.set_warn_always`); that is put back."
        ),
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
