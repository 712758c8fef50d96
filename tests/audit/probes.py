"""What no step's audit may change: what `audit` is given, and the process with its switches."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as module_globals
import torch.optim.optimizer as optimizer_globals
import torch.utils._device as device_globals
from torch import nn

from tests.audit.fingerprints import Probes, Same, look, numbers, values

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
MODULE_HOOKS = tuple(name for name in vars(nn.Module()) if "hook" in name)
GLOBAL_HOOKS = [
    vars(where)[name]
    for where in (module_globals, optimizer_globals)
    for name in vars(where)
    if name.startswith("_global") and isinstance(vars(where)[name], dict)
]


def as_list(x: Any) -> list[Any]:
    return [] if x is None else list(x) if isinstance(x, list | tuple) else [x]


def standard(arguments: dict[str, Any]) -> Probes:
    """The probes that every step gets: what was passed to `audit`, and the process."""
    models, optimizers = as_list(arguments["model"]), as_list(arguments["optimizer"])
    scaler, schedulers, batches = (
        arguments.get("scaler"),
        as_list(arguments.get("scheduler")),
        arguments["batches"],
    )

    def parameters() -> Iterator[tuple[str, nn.Parameter]]:
        return itertools.chain.from_iterable(
            m.named_parameters(remove_duplicate=False) for m in models
        )

    def modules() -> Iterator[tuple[str, nn.Module]]:
        return itertools.chain.from_iterable(
            m.named_modules(remove_duplicate=False) for m in models
        )

    def attributes(module: nn.Module) -> Any:
        own = {
            k: v
            for k, v in vars(module).items()
            if k not in (*MODULE_TABLES, *MODULE_HOOKS, "training")
        }
        return {"attributes": look(own)["items"]} | {
            k: (Same(vars(module)[k]), list(vars(module)[k])) for k in MODULE_TABLES
        }

    def hooks(module: nn.Module) -> Any:
        found = {name: vars(module)[name] for name in MODULE_HOOKS}
        return {
            name: list(map(Same, it.values())) if isinstance(it, dict) else it
            for name, it in found.items()
        }

    def group_of(group: dict[str, Any]) -> Any:
        settings = {k: list(map(Same, v)) if k == "params" else look(v) for k, v in group.items()}
        return Same(group), Same(group["params"]), settings

    def optimizer_attributes(optimizer: Any) -> Any:
        own = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
        return [
            (k, list(map(Same, v.values())) if "hook" in k and isinstance(v, dict) else look(v))
            for k, v in own.items()
        ]

    def scaler_attributes() -> Any:
        own = dict(vars(scaler))
        of = {id(optimizer): i for i, optimizer in enumerate(optimizers)}
        own["_per_optimizer_states"] = {
            of.get(k, "another"): dict(v) for k, v in own["_per_optimizer_states"].items()
        }
        return [
            (k, values(look(v)) if k == "_per_optimizer_states" else look(v))
            for k, v in own.items()
        ]

    probes: Probes = {
        "parameters": lambda: [(name, look(p, grad=False)) for name, p in parameters()],
        "gradients": lambda: [(name, look(p.grad)) for name, p in parameters()],
        "buffers": lambda: [
            (name, look(b)) for m in models for name, b in m.named_buffers(remove_duplicate=False)
        ],
        "modules": lambda: [(name, Same(m), Same(type(m)), m.training) for name, m in modules()],
        "modules' attributes": lambda: [(name, attributes(m)) for name, m in modules()],
        "modules' hooks": lambda: [(name, hooks(m)) for name, m in modules()],
        "optimizers' groups": lambda: [
            (Same(o.param_groups), [group_of(g) for g in o.param_groups]) for o in optimizers
        ],
        "optimizers' state": lambda: [look(o.state, grad=False) for o in optimizers],
        "optimizers' attributes": lambda: [optimizer_attributes(o) for o in optimizers],
        "schedulers": lambda: [look(vars(s)) for s in schedulers],
        "random generators": random_generators,
        "torch's switches": torch_switches,
        "the process": process,
        "functions": functions,
    }
    if scaler is not None:
        probes["scaler"] = scaler_attributes
    if isinstance(batches, list | tuple):
        probes["batches"] = lambda: look(batches)
    return probes


def random_generators() -> dict[str, Any]:
    return {
        "torch": numbers(torch.get_rng_state()),
        "numpy": values(look(np.random.get_state(legacy=False))),
        "random": random.getstate(),
    }


def torch_switches() -> dict[str, Any]:
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    return {
        "autocast": {
            d: (torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d)))
            for d in ("cpu", "cuda")
        },
        "autocast regions open": nesting,
        "autocast keeps casts": torch.is_autocast_cache_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(device_globals.CURRENT_DEVICE),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved tensors' hooks": hasattr(
            top := torch._C._autograd, "_top_saved_tensors_default_hooks"
        )
        and top._top_saved_tensors_default_hooks(False) is not None,  # not in torch 2.6
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "fills new memory": torch.utils.deterministic.fill_uninitialized_memory,
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
        ),
        "flushes denormals": (torch.tensor([1e-310], dtype=torch.float64, device="cpu") * 1).item()
        == 0,
        "print options": repr(torch._tensor_str.PRINT_OPTS),
        "global hooks": [list(map(Same, hooks.values())) for hooks in GLOBAL_HOOKS],
        "full backward hooks": module_globals._global_is_full_backward_hook,
    }


def process() -> dict[str, Any]:
    names = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGVTALRM")
    return {
        "warnings": (
            Same(warnings.filters),
            [repr(f) for f in warnings.filters],
            Same(warnings.showwarning),
        ),
        "numpy errors": repr(np.geterr()),
        "numpy print options": repr(np.get_printoptions()),
        "signals": [Same(signal.getsignal(getattr(signal, name))) for name in names],
        "timers": [
            signal.getitimer(t)[0] > 0
            for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "traced by": (Same(sys.gettrace()), Same(sys.getprofile())),
        "streams": (Same(sys.stdout), Same(sys.stderr), Same(sys.stdin)),
        "garbage": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "folder and environment": (os.getcwd(), dict(os.environ)),
    }


WATCHED = {
    torch: "autocast no_grad enable_grad isfinite stack _foreach_mul_",
    torch.Tensor: "backward mul_ div_ zero_ clamp_ register_hook detach item __mul__",
    torch.autograd: "backward grad",
    torch.autocast: "__init__ __enter__ __exit__ __call__",
    torch.amp.GradScaler: "__init__ scale unscale_ step update _unscale_grads_ get_scale",
    nn.Module: "__call__ _call_impl __setattr__ __getattr__ zero_grad train forward",
    nn.utils: "clip_grad_norm_ clip_grad_value_",
    nn.functional: "cross_entropy mse_loss linear",
    torch.optim.Optimizer: "__init__ step zero_grad add_param_group",
    torch.optim.SGD: "step",
    torch.optim.AdamW: "step",
    torch.optim.LBFGS: "step",
    torch.optim.lr_scheduler.LRScheduler: "step",
    random: "random sample",
    np.random: "rand seed",
    os: "_exit",
    sys: "exit",
}


def functions() -> list[Any]:
    """What an auditor may put its own functions in the place of."""
    each = [(of, name) for of, names in WATCHED.items() for name in names.split()]
    return [
        (f"{of.__name__}.{name}", Same(inspect.getattr_static(of, name, None))) for of, name in each
    ]


@contextmanager
def globals_kept() -> Iterator[None]:
    """What a step does to the process itself is undone: the next test is not to notice."""
    random_states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    switches, hooks = torch_switches(), [dict(table) for table in GLOBAL_HOOKS]
    autocast = {
        d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
    }
    dtype, device = torch.get_default_dtype(), device_globals.CURRENT_DEVICE
    printed = copy.copy(torch._tensor_str.PRINT_OPTS)
    numpy_errors, numpy_printed = np.geterr(), np.get_printoptions()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        while torch.autocast_decrement_nesting() > switches["autocast regions open"]:
            pass
        if torch.autocast_increment_nesting() > switches["autocast regions open"]:
            torch.autocast_decrement_nesting()
        for name, (enabled, of) in autocast.items():
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, of)
        torch.set_autocast_cache_enabled(switches["autocast keeps casts"])
        torch.clear_autocast_cache()
        torch.set_grad_enabled(switches["gradients"])
        torch.autograd.set_detect_anomaly(*switches["anomaly"])
        torch.set_default_device(device)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(
            switches["deterministic"][0], warn_only=switches["deterministic"][1]
        )
        torch.utils.deterministic.fill_uninitialized_memory = switches["fills new memory"]
        torch.set_num_threads(switches["threads"])
        torch.set_float32_matmul_precision(switches["matmul"])
        (
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
        ) = switches["cudnn"]
        torch.set_flush_denormal(switches["flushes denormals"])
        torch._tensor_str.PRINT_OPTS = printed
        for table, kept in zip(GLOBAL_HOOKS, hooks, strict=True):
            table.clear()
            table.update(kept)
        module_globals._global_is_full_backward_hook = switches["full backward hooks"]
        np.seterr(**numpy_errors)
        np.set_printoptions(**numpy_printed)
        torch.set_rng_state(random_states[0])
        np.random.set_state(random_states[1])
        random.setstate(random_states[2])
