"""What an answer can leave changed: found by its effect on later code, reported, put back."""

import functools
import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

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


# What changes the state, what shows it, and words of the report: of a fault, or only of a note.
State = tuple[Callable[[], Any], Callable[[], Any], str]
FAULTS: dict[str, State] = {
    "function mode": (
        lambda: enter(Doubling()),
        torch._C._len_torch_function_stack,
        "`Doubling` on",
    ),
    "function mode over a device": (
        lambda: (torch.set_default_device("meta"), enter(Doubling())),
        lambda: (torch._C._len_torch_function_stack(), torch.empty(1).device.type),
        "`Doubling` on",
    ),
    "dtype": (
        lambda: torch.set_default_dtype(torch.bfloat16),
        shared_state,
        "default dtype at torch.bfloat16 (it was torch.float32)",
    ),
    "device": (lambda: torch.set_default_device("meta"), shared_state, "default device"),
    "device that is not there": (
        lambda: torch.set_default_device("cuda"),
        torch._C._len_torch_function_stack,
        "default device",
    ),
    "grad off": (lambda: torch.set_grad_enabled(False), shared_state, "gradients switched off"),
    "inference mode": (
        lambda: enter(torch.inference_mode()),
        shared_state,
        "enters inference mode and does not leave it",
    ),
    "autocast": (
        lambda: enter(torch.autocast("cpu")),
        shared_state,
        "autocast on for cpu with torch.bfloat16",
    ),
    "autocast, twice": (
        enter_autocast_twice,
        shared_state,
        "autocast on for cpu with torch.bfloat16",
    ),
    "autocast for cuda": (
        lambda: torch.set_autocast_enabled("cuda", True),
        shared_state,
        "autocast on for cuda",
    ),
    "autocast, switched off": (
        lambda: enter(torch.autocast("cpu", enabled=False)),
        shared_state,
        "in a different state",
    ),
    "autocast cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        shared_state,
        "in a different state",
    ),
    "autocast depth": (torch.autocast_increment_nesting, shared_state, "in a different state"),
    "dispatch mode": (lambda: enter(Counting()), counts, "`Counting` on"),
    "fake tensors, twice": (
        lambda: (enter(FakeTensorMode()), enter(FakeTensorMode())),
        lambda: (type(torch.ones(1)).__name__, torch._C._only_lift_cpu_tensors()),
        "`FakeTensorMode` on",
    ),
    "forward hook": (
        lambda: nn.modules.module.register_module_forward_hook(note_hook),
        hook_runs,
        "a hook",
    ),
    "hook for backward": (
        lambda: nn.modules.module.register_module_full_backward_hook(note_hook),
        lambda: len(nn.modules.module._global_backward_hooks),
        "a hook",
    ),
    "optimizer hook": (
        lambda: register_optimizer_step_post_hook(note_hook),
        lambda: len(_global_optimizer_post_hooks),
        "a hook",
    ),
    "flush": (
        lambda: torch.set_flush_denormal(True),
        half_of_smallest,
        "replacing subnormal numbers by zero",
    ),
}
NOTES: dict[str, State] = {
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        shared_state,
        "number of threads to",
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        shared_state,
        "deterministic",
    ),
    "seed": (
        lambda: torch.manual_seed(torch.initial_seed() + 1),
        shared_state,
        "seeds the global random generator",
    ),
    "anomaly": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        "anomaly detection on",
    ),
    "benchmark": (
        set_backend("cudnn.benchmark", True),
        backend("cudnn.benchmark"),
        "`torch.backends.cudnn.benchmark`",
    ),
    "mkldnn off": (
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch._C._get_mkldnn_enabled(),
        "`torch.backends.mkldnn.enabled`",
    ),
    "reduction": (
        set_backend("cuda.matmul.allow_fp16_reduced_precision_reduction", False),
        backend("cuda.matmul.allow_fp16_reduced_precision_reduction"),
        "allow_fp16_reduced_precision_reduction",
    ),
    "tf32, oldest name": (
        set_backend("cuda.matmul.allow_tf32", True),
        all_precisions,
        "matmul precision; it is “highest” again",
    ),
    "tf32 of cudnn": (
        set_backend("cudnn.allow_tf32", False),
        all_precisions,
        "precision of float32 matmuls",
    ),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        all_precisions,
        "matmul precision; it is “highest” again",
    ),
    "stdout": (
        lambda: setattr(sys, "stdout", io.StringIO()),
        lambda: type(sys.stdout),
        "`sys.stdout`",
    ),
    "folder": (lambda: os.chdir("/"), os.getcwd, "working directory; that is put back"),
    "environment": (
        lambda: (os.environ.update(MINE="1"), os.environ.pop("PATH")),
        lambda: subprocess.run(["/bin/sh", "-c", "echo $MINE"], capture_output=True).stdout,
        "environment variable `MINE` and `PATH`",
    ),
}

if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
    FAULTS["saved tensors"] = (
        lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda x: x * 3, lambda x: x)),
        saved_is_packed,
        "hooks for saved tensors on",
    )
if hasattr(torch._C, "_get_fp32_precision_getter"):
    for _name, _value in {
        "mkldnn.matmul.fp32_precision": "bf16",
        "cuda.matmul.fp32_precision": "tf32",
        "cudnn.conv.fp32_precision": "ieee",
    }.items():
        NOTES[_name] = set_backend(_name, _value), all_precisions, "float32 matmul"


@pytest.mark.parametrize("name", FAULTS | NOTES)
def test_a_change_is_reported_and_undone(name: str) -> None:
    change, probe, words = (FAULTS | NOTES)[name]
    before = probe()
    with sandbox() as left:
        change()
        during = probe()
    assert during != before, "the change does nothing here, so this test shows nothing"
    assert probe() == before
    assert words in " / ".join(left.leaks if name in FAULTS else left.remarks), left
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
