"""What an answer can leave changed: each is found by its effect on later code, reported once, and
put back.
"""

import functools
import io
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

from amp_course.checking.sandbox import sandbox
from tests.checking.conftest import shared_state

ENTERED: list[Any] = []  # managers that must not be collected
RAN: list[int] = []
FAULT, NOTE = "leaks", "remarks"


def enter(manager: Any) -> None:
    manager.__enter__()
    ENTERED.append(manager)


def enter_autocast_twice() -> None:
    enter(torch.autocast("cpu", dtype=torch.float16))
    enter(torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))


class Doubling(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        Counting.calls += 1
        return function(*args, **(kwargs or {}))


def counts() -> int:
    before = Counting.calls
    torch.zeros(1)
    return Counting.calls - before


def hook_runs() -> int:
    before = len(RAN)
    nn.Identity()(torch.ones(1))
    return len(RAN) - before


def note_hook(*_: Any) -> None:
    RAN.append(1)


def saved_is_packed() -> bool:
    x = torch.full((1,), 2.0, requires_grad=True)
    y = x * x
    y.backward()
    assert x.grad is not None
    return bool(x.grad.item() != 4.0)


def half_of_smallest() -> float:
    return float((torch.full((1,), torch.finfo(torch.float32).tiny) * 0.5).item())


def backend(name: str) -> Callable[[], Any]:
    owner, _, flag = name.rpartition(".")
    return lambda: getattr(functools.reduce(getattr, owner.split("."), torch.backends), flag)


def set_backend(name: str, value: Any) -> Callable[[], None]:
    owner, _, flag = name.rpartition(".")
    return lambda: setattr(functools.reduce(getattr, owner.split("."), torch.backends), flag, value)


def result_of(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return type(error)


def all_precisions() -> list[Any]:
    parts = "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn", "cuda.matmul", "cudnn.conv"
    getters = [torch.get_float32_matmul_precision, backend("cudnn.allow_tf32")]
    return [*map(result_of, [*getters, *(backend(f"{part}.fp32_precision") for part in parts)])]


# What changes the state, what shows it, words of the report, and its kind.
STATES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
    "function mode": (
        lambda: enter(Doubling()),
        torch._C._len_torch_function_stack,
        "`Doubling` on",
        FAULT,
    ),
    "function mode over a device": (
        lambda: (torch.set_default_device("meta"), enter(Doubling())),
        lambda: (torch._C._len_torch_function_stack(), torch.empty(1).device.type),
        "`Doubling` on",
        FAULT,
    ),
    "dtype": (
        lambda: torch.set_default_dtype(torch.bfloat16),
        shared_state,
        "default dtype at torch.bfloat16 (it was torch.float32)",
        FAULT,
    ),
    "device": (
        lambda: torch.set_default_device("meta"),
        shared_state,
        "default device",
        FAULT,
    ),
    "device that is not there": (
        lambda: torch.set_default_device("cuda"),
        torch._C._len_torch_function_stack,
        "default device",
        FAULT,
    ),
    "grad off": (
        lambda: torch.set_grad_enabled(False),
        shared_state,
        "gradients switched off",
        FAULT,
    ),
    "inference mode": (
        lambda: enter(torch.inference_mode()),
        shared_state,
        "enters inference mode and does not leave it",
        FAULT,
    ),
    "autocast": (
        lambda: enter(torch.autocast("cpu")),
        shared_state,
        "autocast on for cpu with torch.bfloat16",
        FAULT,
    ),
    "autocast, twice": (
        enter_autocast_twice,
        shared_state,
        "autocast on for cpu with torch.bfloat16",
        FAULT,
    ),
    "autocast for cuda": (
        lambda: torch.set_autocast_enabled("cuda", True),
        shared_state,
        "autocast on for cuda",
        FAULT,
    ),
    "autocast, switched off": (
        lambda: enter(torch.autocast("cpu", enabled=False)),
        shared_state,
        "in a different state",
        FAULT,
    ),
    "autocast cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        shared_state,
        "in a different state",
        FAULT,
    ),
    "autocast depth": (
        torch.autocast_increment_nesting,
        shared_state,
        "in a different state",
        FAULT,
    ),
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        shared_state,
        "number of threads to",
        NOTE,
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        shared_state,
        "deterministic",
        NOTE,
    ),
    "seed": (
        lambda: torch.manual_seed(torch.initial_seed() + 1),
        shared_state,
        "seeds the global random generator",
        NOTE,
    ),
    "dispatch mode": (lambda: enter(Counting()), counts, "`Counting` on", FAULT),
    "fake tensors, twice": (
        lambda: (enter(FakeTensorMode()), enter(FakeTensorMode())),
        lambda: (type(torch.ones(1)).__name__, torch._C._only_lift_cpu_tensors()),
        "`FakeTensorMode` on",
        FAULT,
    ),
    "forward hook": (
        lambda: nn.modules.module.register_module_forward_hook(note_hook),
        hook_runs,
        "a hook",
        FAULT,
    ),
    "hook for backward": (
        lambda: nn.modules.module.register_module_full_backward_hook(note_hook),
        lambda: len(nn.modules.module._global_backward_hooks),
        "a hook",
        FAULT,
    ),
    "optimizer hook": (
        lambda: register_optimizer_step_post_hook(note_hook),
        lambda: len(_global_optimizer_post_hooks),
        "a hook",
        FAULT,
    ),
    "flush": (
        lambda: torch.set_flush_denormal(True),
        half_of_smallest,
        "replacing subnormal numbers by zero",
        FAULT,
    ),
    "anomaly": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        "anomaly detection on",
        NOTE,
    ),
    "benchmark": (
        set_backend("cudnn.benchmark", True),
        backend("cudnn.benchmark"),
        "`torch.backends.cudnn.benchmark`",
        NOTE,
    ),
    "mkldnn off": (
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch._C._get_mkldnn_enabled(),
        "`torch.backends.mkldnn.enabled`",
        NOTE,
    ),
    "reduction": (
        set_backend("cuda.matmul.allow_fp16_reduced_precision_reduction", False),
        backend("cuda.matmul.allow_fp16_reduced_precision_reduction"),
        "allow_fp16_reduced_precision_reduction",
        NOTE,
    ),
    "tf32, oldest name": (
        set_backend("cuda.matmul.allow_tf32", True),
        all_precisions,
        "matmul precision; it is “highest” again",
        NOTE,
    ),
    "tf32 of cudnn": (
        set_backend("cudnn.allow_tf32", False),
        all_precisions,
        "precision of float32 matmuls",
        NOTE,
    ),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        all_precisions,
        "matmul precision; it is “highest” again",
        NOTE,
    ),
    "stdout": (
        lambda: setattr(sys, "stdout", io.StringIO()),
        lambda: type(sys.stdout),
        "`sys.stdout`",
        NOTE,
    ),
    "folder": (lambda: os.chdir("/"), os.getcwd, "working directory; that is put back", NOTE),
    "environment": (
        lambda: (os.environ.update(MINE="1"), os.environ.pop("PATH")),
        lambda: subprocess.run(["/bin/sh", "-c", "echo $MINE"], capture_output=True).stdout,
        "environment variable `MINE` and `PATH`",
        NOTE,
    ),
}

if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
    STATES["saved tensors"] = (
        lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda x: x * 3, lambda x: x)),
        saved_is_packed,
        "hooks for saved tensors on",
        FAULT,
    )
if hasattr(torch._C, "_get_fp32_precision_getter"):
    for _name, _value in {
        "mkldnn.matmul.fp32_precision": "bf16",
        "cuda.matmul.fp32_precision": "tf32",
        "cudnn.conv.fp32_precision": "ieee",
    }.items():
        STATES[_name] = (set_backend(_name, _value), all_precisions, "float32 matmul", NOTE)


@pytest.mark.parametrize("name", STATES)
def test_a_change_is_reported_and_undone(name: str) -> None:
    change, probe, words, kind = STATES[name]
    before = probe()
    with sandbox() as left:
        change()
        during = probe()
    assert during != before, "the change does nothing here, so this test shows nothing"
    assert probe() == before
    assert words in " / ".join(getattr(left, kind)), left
    allowed = {"function mode over a device": 2}.get(name, 1)
    assert len(left.leaks) + len(left.remarks) == allowed, left
    for sentence in left.leaks + left.remarks:  # a leak continues "Not quite: …"
        assert sentence.startswith("your code ")
        assert sentence.endswith(".") == (sentence in left.remarks)


@pytest.mark.parametrize("kinds", list(itertools.permutations([Counting, FakeTensorMode])))
def test_modes_that_began_in_any_order_leave_none_behind(kinds: tuple[type[Any], ...]) -> None:
    """The compiler asks torch's flags and not its stack: with one left up it compiles nothing."""
    with sandbox() as left:
        for kind in kinds:
            enter(kind())
    assert len(left.leaks) == 1
    assert not is_in_torch_dispatch_mode() and not is_in_torch_dispatch_mode(
        include_infra_modes=False
    )


@pytest.mark.usefixtures("unchanged")
def test_what_was_set_before_stays() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    with torch.autocast("cpu", dtype=torch.float16), torch.device("meta"):
        try:
            before = shared_state()
            with sandbox():
                torch.set_default_dtype(torch.float16)
                torch.set_grad_enabled(True)
                enter_autocast_twice()
            assert shared_state() == before
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch has no newer name"
)
def test_matmul_precision_set_by_the_newer_name() -> None:
    """The older getter raises then, and the check goes on."""
    set_newer = set_backend("mkldnn.matmul.fp32_precision", "bf16")
    try:
        set_newer()
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with sandbox() as left:
            pass
        assert left.leaks == left.remarks == []
    finally:
        torch.set_float32_matmul_precision("highest")
    with sandbox() as left:
        set_newer()
    assert "matmul precision" in left.remarks[0]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("unchanged")
def test_a_state_that_cannot_be_read_stops_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's random state if the driver is gone,
    or a name that another version of torch lacks.
    """

    def fails() -> Any:
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", fails)
    monkeypatch.setattr(torch._C, "_get_function_stack_at", fails)
    with torch.overrides.BaseTorchFunctionMode(), sandbox() as left:
        torch.set_default_dtype(torch.float64)
    assert len(left.leaks) == 1 and left.remarks == []


# --- what cannot be put back ---
def test_a_thread_that_goes_on_is_named() -> None:
    stop = threading.Event()
    with sandbox() as left:
        threading.Thread(target=stop.wait, name="my worker", daemon=True).start()
        quick = threading.Thread(target=lambda: time.sleep(0.001))
        quick.start()
    stop.set()
    assert left.leaks == [] and len(left.remarks) == 1
    assert (
        "left the thread `my worker` running" in left.remarks[0]
        and "restart the kernel" in left.remarks[0]
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_process_that_goes_on_is_named() -> None:
    child = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(60,), name="my child", daemon=True
    )
    with sandbox() as left:
        child.start()
    child.kill()
    child.join()
    assert len(left.remarks) == 1 and "left the process `my child` running" in left.remarks[0]


def test_what_refuses_to_be_put_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    with sandbox() as left:
        os.chdir(tmp_path)
        gone.rmdir()
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == torch.float32
    assert "It could not be put back (FileNotFoundError): restart the kernel." in left.remarks[0]


# --- what is not the answer's doing ---
def trains() -> None:
    weight = nn.Parameter(torch.ones(2))
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        optimizer = kind([weight], lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        weight.sum().backward()
        optimizer.step()


def saves_and_restores_precisions() -> None:
    matmul, conv = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = conv


@pytest.mark.parametrize(
    "harmless",
    [
        trains,
        saves_and_restores_precisions,
        lambda: (
            torch.utils.checkpoint.checkpoint(
                nn.Linear(2, 2), torch.ones(1, 2), use_reentrant=False
            )
            .sum()
            .backward()
        ),
        lambda: random.random() + np.random.rand() + torch.rand(1).item(),
    ],
)
def test_ordinary_work_is_not_accused(harmless: Callable[[], Any]) -> None:
    with sandbox() as left:
        harmless()
    assert left.leaks == left.remarks == []


def test_a_sandbox_in_a_sandbox_that_found_something() -> None:
    with sandbox() as outer:
        with sandbox() as inner:
            torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
    assert "default dtype" in str(inner) and not outer.leaks and "number of threads" in str(outer)
