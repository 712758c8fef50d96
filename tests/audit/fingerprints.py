"""What was there before, and is it there still? Fingerprints of objects and of the process, for `stress` and its tests.

    with globals_kept():
        step, arguments, probes = stress.make()
        before = fingerprint(probes)
        audit(step, **arguments)
        assert not differences(before, fingerprint(probes))
        went_on = run_on(step, arguments), values(fingerprint(probes))

and the same again without the audit: `went_on` has to be equal. First one of the twins from beginning to end, then the
other: they share the process's random generators, module globals and class attributes, which `make()` sets anew.

A difference that ends in "another object" is one of identity alone: the values are right. `values` forgets identity.
"""

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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as module_globals
import torch.optim.optimizer as optimizer_globals
import torch.utils._device as device_globals
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Probes = dict[str, Callable[[], Any]]

SCALARS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    np.generic,
    Enum,
    slice,
)
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
MODULE_HOOKS = tuple(name for name in vars(nn.Module()) if "hook" in name)
GLOBAL_HOOKS = [
    vars(where)[name]
    for where in (module_globals, optimizer_globals)
    for name in vars(where)
    if name.startswith("_global") and isinstance(vars(where)[name], dict)
]


class Same:
    """An object, equal to nothing but itself. It is kept alive: another cannot get its id()."""

    __hash__ = None

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __repr__(self) -> str:
        return f"a {type(self.it).__name__}"


class Place:
    """Where the numbers of a tensor lie. An alias keeps the memory: another tensor cannot get it."""

    __hash__ = None

    def __init__(self, tensor: Tensor) -> None:
        self.alias = tensor.detach()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.alias.data_ptr() == other.alias.data_ptr()

    def __repr__(self) -> str:
        return "memory"


def numbers(tensor: Tensor) -> bytes:
    """Every bit of a tensor, -0.0 and NaN too."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def look(x: Any, grad: bool = True, _above: tuple[int, ...] = ()) -> Any:
    """What is in x, and which objects they are. Containers, tensors, arrays and generators are entered, other objects are not:
    for their attributes, `look(vars(x))`."""
    if isinstance(x, SCALARS):
        return type(x).__name__, repr(x)
    if id(x) in _above:
        return "itself"
    inner = (*_above, id(x))
    if isinstance(x, Tensor):
        return _look_tensor(x, grad, inner)
    if isinstance(x, np.ndarray):
        return {"object": Same(x), "kind": (x.dtype.str, x.shape), "values": x.tobytes()}
    if isinstance(x, dict):
        pairs = [
            (look(key) if isinstance(key, SCALARS) else Same(key), look(value, grad, inner)) for key, value in x.items()
        ]
        return {"object": Same(x), "type": type(x).__name__, "items": pairs}
    if isinstance(x, list | tuple | deque):
        contents = [look(value, grad, inner) for value in x]
        return {"object": "tuple" if isinstance(x, tuple) else Same(x), "type": type(x).__name__, "items": contents}
    if isinstance(x, set | frozenset):
        return {"object": Same(x), "items": sorted(map(repr, x))}
    if isinstance(x, torch.Generator):
        return {"object": Same(x), "state": numbers(x.get_state())}
    if isinstance(x, np.random.Generator):
        return {"object": Same(x), "state": values(look(x.bit_generator.state))}
    if isinstance(x, np.random.RandomState):
        return {"object": Same(x), "state": values(look(x.get_state(legacy=False)))}
    if isinstance(x, random.Random):
        return {"object": Same(x), "state": x.getstate()}
    if isinstance(x, MethodType):
        return Same(x.__self__), Same(x.__func__)
    if isinstance(x, SimpleNamespace):
        return {"object": Same(x), "attributes": look(vars(x), grad, inner)}
    return Same(x)


def _look_tensor(x: Tensor, grad: bool, inner: tuple[int, ...]) -> dict[str, Any]:
    seen = {"object": Same(x), "type": type(x).__name__, "wanted": x.requires_grad}
    seen["attributes"] = look(vars(x), grad, inner)["items"]
    seen["hooks"] = [Same(hook) for hook in (x._backward_hooks or {}).values()]
    if x.is_leaf:
        seen["hooks"] += [Same(hook) for hook in (x._post_accumulate_grad_hooks or {}).values()]
        if grad:
            seen["gradient"] = None if x.grad is None else _look_tensor(x.grad, False, inner)
    if not is_lazy(x):
        seen |= {"kind": (str(x.dtype), str(x.device), tuple(x.shape), x.stride())}
        if x.device.type != "meta":
            seen |= {"memory": Place(x), "values": numbers(x)}
    return seen


def fingerprint(probes: Probes) -> dict[str, Any]:
    """Every probe called."""
    return {name: probe() for name, probe in probes.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where two fingerprints differ, in words: "parameters: 0.weight: values: other bytes"."""
    return [": ".join(where) for where in _differences(before, after, ())]


def _differences(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if type(a) is type(b) and isinstance(a, dict):
        for key in a.keys() | b.keys():
            yield from _differences(a.get(key, "nothing"), b.get(key, "nothing"), (*path, key))
    elif type(a) is type(b) and isinstance(a, list | tuple):
        if len(a) != len(b):
            yield *path, f"{len(a)} things, now {len(b)}"
        for i, (one, other) in enumerate(zip(a, b, strict=False)):
            named = (
                isinstance(one, tuple)
                and isinstance(other, tuple)
                and one[:1] == other[:1] != ()
                and isinstance(one[0], str)
            )
            yield from _differences(one, other, (*path, one[0] if named else str(i)))
    elif a != b:
        if isinstance(a, Same | Place) and isinstance(b, Same | Place):
            yield *path, "another object"
        else:
            yield *path, "other bytes" if isinstance(a, bytes) and isinstance(b, bytes) else f"{a!r:.80}, now {b!r:.80}"


def values(seen: Any) -> Any:
    """A fingerprint without identity: equal for two twins of which none was audited."""
    if isinstance(seen, dict):
        return {key: values(value) for key, value in seen.items()}
    if isinstance(seen, list | tuple):
        return [values(value) for value in seen]
    return repr(seen) if isinstance(seen, Same | Place) else seen


# ---------------------------------------------------------------------------------------------- what every step has


def as_list(x: Any) -> list[Any]:
    return [] if x is None else list(x) if isinstance(x, list | tuple) else [x]


def standard(arguments: dict[str, Any]) -> Probes:
    """The probes that every step gets: what was passed to `audit`, the process's random generators, switches and functions."""
    models, optimizers = as_list(arguments["model"]), as_list(arguments["optimizer"])
    scaler, schedulers, batches = arguments.get("scaler"), as_list(arguments.get("scheduler")), arguments["batches"]

    def parameters() -> Iterator[tuple[str, nn.Parameter]]:
        return itertools.chain.from_iterable(m.named_parameters(remove_duplicate=False) for m in models)

    def modules() -> Iterator[tuple[str, nn.Module]]:
        return itertools.chain.from_iterable(m.named_modules(remove_duplicate=False) for m in models)

    def attributes(module: nn.Module) -> Any:
        own = {k: v for k, v in vars(module).items() if k not in (*MODULE_TABLES, *MODULE_HOOKS, "training")}
        return {"attributes": look(own)["items"]} | {
            k: (Same(vars(module)[k]), list(vars(module)[k])) for k in MODULE_TABLES
        }

    def hooks(module: nn.Module) -> Any:
        found = {name: vars(module)[name] for name in MODULE_HOOKS}
        return {name: list(map(Same, it.values())) if isinstance(it, dict) else it for name, it in found.items()}

    def group_of(group: dict[str, Any]) -> Any:
        settings = {k: list(map(Same, v)) if k == "params" else look(v) for k, v in group.items()}
        return Same(group), Same(group["params"]), settings

    def optimizer_attributes(optimizer: Any) -> Any:
        own = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
        return [
            (k, list(map(Same, v.values())) if "hook" in k and isinstance(v, dict) else look(v)) for k, v in own.items()
        ]

    def scaler_attributes() -> Any:
        own = dict(vars(scaler))
        of = {id(optimizer): i for i, optimizer in enumerate(optimizers)}
        own["_per_optimizer_states"] = {of.get(k, "another"): dict(v) for k, v in own["_per_optimizer_states"].items()}
        return [(k, values(look(v)) if k == "_per_optimizer_states" else look(v)) for k, v in own.items()]

    probes: Probes = {
        "parameters": lambda: [(name, look(p, grad=False)) for name, p in parameters()],
        "gradients": lambda: [(name, look(p.grad)) for name, p in parameters()],
        "buffers": lambda: [(name, look(b)) for m in models for name, b in m.named_buffers(remove_duplicate=False)],
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
        "autocast": {d: (torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in ("cpu", "cuda")},
        "autocast regions open": nesting,
        "autocast keeps casts": torch.is_autocast_cache_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(device_globals.CURRENT_DEVICE),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved tensors' hooks": hasattr(top := torch._C._autograd, "_top_saved_tensors_default_hooks")
        and top._top_saved_tensors_default_hooks(False) is not None,  # not in torch 2.6
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "fills new memory": torch.utils.deterministic.fill_uninitialized_memory,
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32),
        "flushes denormals": (torch.tensor([1e-310], dtype=torch.float64, device="cpu") * 1).item() == 0,
        "print options": repr(torch._tensor_str.PRINT_OPTS),
        "global hooks": [list(map(Same, hooks.values())) for hooks in GLOBAL_HOOKS],
        "full backward hooks": module_globals._global_is_full_backward_hook,
    }


def process() -> dict[str, Any]:
    names = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGVTALRM")
    return {
        "warnings": (Same(warnings.filters), [repr(f) for f in warnings.filters], Same(warnings.showwarning)),
        "numpy errors": repr(np.geterr()),
        "numpy print options": repr(np.get_printoptions()),
        "signals": [Same(signal.getsignal(getattr(signal, name))) for name in names],
        "timers": [signal.getitimer(t)[0] > 0 for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "traced by": (Same(sys.gettrace()), Same(sys.getprofile())),
        "streams": (Same(sys.stdout), Same(sys.stderr), Same(sys.stdin)),
        "garbage": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "folder and environment": (os.getcwd(), dict(os.environ)),
    }


WATCHED = {
    torch: ("autocast", "no_grad", "enable_grad", "isfinite", "stack", "_foreach_mul_"),
    torch.Tensor: ("backward", "mul_", "div_", "zero_", "clamp_", "register_hook", "detach", "item", "__mul__"),
    torch.autograd: ("backward", "grad"),
    torch.autocast: ("__init__", "__enter__", "__exit__", "__call__"),
    torch.amp.GradScaler: (
        "__init__",
        "scale",
        "unscale_",
        "step",
        "update",
        "_maybe_opt_step",
        "_unscale_grads_",
        "get_scale",
    ),
    nn.Module: ("__call__", "_call_impl", "__setattr__", "__getattr__", "zero_grad", "train", "forward"),
    nn.utils: ("clip_grad_norm_", "clip_grad_value_"),
    nn.functional: ("cross_entropy", "mse_loss", "linear"),
    torch.optim.Optimizer: ("__init__", "step", "zero_grad", "add_param_group"),
    torch.optim.SGD: ("step",),
    torch.optim.AdamW: ("step",),
    torch.optim.Adam: ("step",),
    torch.optim.LBFGS: ("step",),
    torch.optim.lr_scheduler.LRScheduler: ("step",),
    random: ("random", "sample"),
    np.random: ("rand", "seed"),
    os: ("_exit",),
    sys: ("exit",),
}


def functions() -> list[Any]:
    """What an auditor may put its own functions in the place of."""
    each = [(of, name) for of, names in WATCHED.items() for name in names]
    return [(f"{of.__name__}.{name}", Same(inspect.getattr_static(of, name, None))) for of, name in each]


# ---------------------------------------------------------------------------------------------- training on, and tidying up


def run_on(step: Callable[..., Any], arguments: dict[str, Any], updates: int = 4, fresh: bool = True) -> list[str]:
    """Train on as the reader would. What the calls returned or raised. fresh: a batch that the step spoils is loaded anew."""
    batches, accumulate, told = list(arguments["batches"]), arguments.get("accumulate", 1), []
    takes_last = "last" in inspect.signature(step).parameters
    for i in range(updates * accumulate):
        batch = batches[i % len(batches)]
        batch = copy.deepcopy(batch) if fresh else batch
        last = {"last": (i + 1) % accumulate == 0} if takes_last else {}
        try:
            told.append(repr(step(*batch, **last) if isinstance(batch, tuple) else step(batch, **last)))
        except (Exception, SystemExit) as error:
            told.append(repr(error))
    return told


@contextmanager
def globals_kept() -> Iterator[None]:
    """What a step does to the process itself is undone behind it: the next test is not to notice."""
    random_states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    switches, hooks = torch_switches(), [dict(table) for table in GLOBAL_HOOKS]
    autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")}
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
        torch.use_deterministic_algorithms(switches["deterministic"][0], warn_only=switches["deterministic"][1])
        torch.utils.deterministic.fill_uninitialized_memory = switches["fills new memory"]
        torch.set_num_threads(switches["threads"])
        torch.set_float32_matmul_precision(switches["matmul"])
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = switches[
            "cudnn"
        ]
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
