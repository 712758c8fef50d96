"""Every piece of shared state: read, changed by force, put back, and told in words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from amp_course.checking.item import UNCHANGED
from amp_course.checking.sandbox import STATE, sandbox
from amp_course.kit.random_state import same_random_state
from tests.checking.conftest import shared_state

pytestmark = pytest.mark.usefixtures("unchanged")
KEPT: list[Any] = []


def enter(manager: Any) -> None:
    manager.__enter__()
    KEPT.append(manager)


def cuda_by_default() -> None:
    torch.set_default_device("cuda")  # on a machine without one, every later read of it raises


def twice_in_autocast() -> None:
    enter(torch.autocast("cpu", dtype=torch.float16))
    enter(torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))


def newer_matmul_setting() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # mypy: absent before torch 2.9


newer = pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"),
    reason="this torch has no torch.backends.mkldnn.matmul",
)

CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "dtype": (
        lambda: torch.set_default_dtype(torch.bfloat16),
        "default dtype at torch.bfloat16 (it was torch.float32)",
    ),
    "device": (lambda: torch.set_default_device("meta"), "default device"),
    "device that is not there": (cuda_by_default, "default device"),
    "grad off": (lambda: torch.set_grad_enabled(False), "gradients switched off"),
    "inference mode entered": (
        lambda: enter(torch.inference_mode()),
        "enters inference mode and does not leave it",
    ),
    "autocast entered": (
        lambda: enter(torch.autocast("cpu")),
        "autocast on for cpu with torch.bfloat16",
    ),
    "autocast entered twice": (twice_in_autocast, "autocast on for cpu with torch.bfloat16"),
    "autocast for cuda": (lambda: torch.set_autocast_enabled("cuda", True), "autocast on for cuda"),
    "autocast entered, switched off": (
        lambda: enter(torch.autocast("cpu", enabled=False)),
        "in a different state",
    ),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), "in a different state"),
    "autocast depth": (torch.autocast_increment_nesting, "in a different state"),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "number of threads to"),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("high"),
        "matmul precision; it is “highest” again",
    ),
    "seed": (
        lambda: torch.manual_seed(torch.initial_seed() + 1),
        "seeds the global random generator",
    ),
}


def changed(run: Callable[[], None]) -> list[str]:
    """Let `run` change something, put every item back and return what the items tell."""
    with same_random_state():
        before = [item.get() for item in STATE]
        run()
        told = []
        for item, was in zip(STATE, before, strict=True):
            now = item.change(was)
            if now is not UNCHANGED:
                told.append(item.tell(was, now))
                item.put(was)
    return told


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen_told_and_undone(name: str) -> None:
    change, words = CHANGES[name]
    before = shared_state()
    seen: list[bool] = []

    def run() -> None:
        change()
        if name != "device that is not there":
            seen.append(shared_state() != before)

    told = changed(run)
    assert all(seen)
    assert len(told) == 1
    assert words in told[0]
    assert shared_state() == before


def test_what_the_reader_set_before_stays() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    with torch.autocast("cpu", dtype=torch.float16), torch.device("meta"):
        try:
            before = shared_state()
            changed(
                lambda: (
                    torch.set_default_dtype(torch.float16),
                    torch.set_grad_enabled(True),
                    twice_in_autocast(),
                )
            )
            assert shared_state() == before
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)


@newer
def test_matmul_precision_set_by_the_newer_name() -> None:
    """The older getter refuses to answer then: the check goes on all the same."""
    try:
        newer_matmul_setting()
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        assert changed(lambda: None) == []
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "matmul precision" in changed(newer_matmul_setting)[0]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_state_that_cannot_be_read_stops_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's random state where the driver is gone,
    or a name that another version of torch lacks.
    """

    def fails() -> Any:
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", fails)
    monkeypatch.setattr(torch._C, "_get_function_stack_at", fails)
    torch_function_mode = torch.overrides.BaseTorchFunctionMode()
    with torch_function_mode, sandbox() as left:
        torch.set_default_dtype(torch.float64)
    assert len(left.leaks) == 1 and left.remarks == []
