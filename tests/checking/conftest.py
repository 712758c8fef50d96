"""An exercise to check, a progress file for each test, and the state that a process shares."""

import functools
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import amp_course
from amp_course.checking import Card, Exercise, within
from amp_course.checking.limit import PATIENCE
from amp_course.checking.warmup import load_lazy_modules

# Torch's compiler adds warning filters, which a test would blame on the code under test.
load_lazy_modules()


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my_work"
    monkeypatch.setenv("AMP_COURSE_WORK", str(folder))
    return folder


def of_the_course(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that is written here count as the course's own code."""
    file = str(Path(amp_course.__file__).with_name("judges.py"))
    function.__code__ = function.__code__.replace(co_filename=file)
    return function


class Calling:
    """A judge that only calls a function with the answer, which raises Wrong or does not."""

    right = None
    mistakes = ()

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    @of_the_course
    def __call__(self, answer: Any, left: Any, seconds: float) -> None:
        within(seconds, functools.partial(self.function, answer), PATIENCE)


Make = Callable[..., Exercise]


@pytest.fixture
def make() -> Make:
    """An exercise whose judge only calls the answer; any field can be set."""

    def build(**fields: Any) -> Exercise:
        usual: dict[str, Any] = {
            "chapter": "loop",
            "name": "probe",
            "number": 1,
            "title": "Probe",
            "task": "Write `probe`.",
            "difficulty": 2,
            "importance": 3,
            "minutes": 5,
            "lines": 1,
            "hints": ("look", "look closer", "it is this"),
            "judge": lambda answer: answer(),
            "why": "because.",
            "alternative": "something else.",
            "seconds": 5.0,
        }
        given = usual | fields
        judge = given.pop("judge")
        judged = {
            one: given.pop(one)
            for one in ("right", "cases", "mistakes", "tolerance")
            if one in given
        }
        exercise = Exercise(
            Card(**given), **({"right": None, "cases": None, "mistakes": ()} | judged)
        )
        if not judged:
            exercise.judge = Calling(judge)
        return exercise

    return build


def shared_state() -> dict[str, Any]:
    """Return what a process shares, read without the package; of random states the next numbers."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    drawn = torch.rand(3, generator=generator, dtype=torch.float64, device="cpu")
    numpy_random, plain_random = np.random.RandomState(), random.Random()
    numpy_random.set_state(np.random.get_state())
    plain_random.setstate(random.getstate())
    torch.autocast_increment_nesting()
    return {
        "tensors": (
            torch.empty(1).dtype,
            torch.empty(1).device,
            torch._C._len_torch_function_stack(),
        ),
        "grad": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.empty(1).is_inference(),
        ),
        "autocast": [
            (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
        ],
        "depth": torch.autocast_decrement_nesting(),
        "cache": torch.is_autocast_cache_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "matmul": torch.get_float32_matmul_precision(),
        "random": (drawn.tolist(), numpy_random.rand(3).tolist(), plain_random.random()),
        "seed": torch.initial_seed(),
        "filters": list(warnings.filters),
        "interrupts": (
            signal.getsignal(signal.SIGALRM),
            signal.getsignal(signal.SIGINT),
            sys.gettrace(),
        ),
    }


@pytest.fixture
def unchanged() -> Any:
    """Fail the test if the process's state is not, at its end, what it was at its beginning."""
    before = shared_state()
    yield
    assert shared_state() == before
