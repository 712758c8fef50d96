"""The sandbox: whatever an answer leaves changed is reported and undone, however it ends."""

import importlib
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from amp_course.checking.sandbox import sandbox

pytestmark = pytest.mark.usefixtures("unchanged")


def seeds_everything() -> None:
    torch.manual_seed(torch.initial_seed() + 1)
    np.random.seed(0)
    random.seed(0)


def draws_everywhere() -> None:
    torch.rand(1000)
    np.random.rand(1000)
    random.random()


@pytest.mark.parametrize(("run", "remarks"), [(seeds_everything, 1), (draws_everywhere, 0)])
def test_random_states_go_on_as_if_nothing_had_been(run: Callable[[], None], remarks: int) -> None:
    with sandbox() as left:
        run()
    assert left.leaks == []
    assert len(left.remarks) == remarks


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_all_at_once_and_after_an_exception(kind: type[BaseException]) -> None:
    with pytest.raises(kind), sandbox() as left:
        seeds_everything()
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        torch.autocast("cpu").__enter__()
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True)
        torch.set_default_device("meta")
        warnings.simplefilter("ignore")
        raise kind
    assert len(left.leaks) == 4  # dtype, device, grad, autocast
    assert len(left.remarks) == 4  # threads, deterministic, seed, filters


def test_what_is_put_back_in_time_is_no_leak() -> None:
    with (
        sandbox() as left,
        torch.no_grad(),
        torch.autocast("cpu"),
        torch.device("meta"),
        torch.inference_mode(),
    ):
        torch.ones(1)
    assert left.leaks == left.remarks == []


def test_the_cache_of_autocast_is_emptied() -> None:
    """Oracle: a weight changed in place behind autograd's back;
    its cached bf16 copy would still hold the old one.
    """
    weight = torch.nn.Parameter(torch.ones(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with sandbox():
            torch.mm(torch.ones(2, 2), weight)
        weight.data.fill_(3)
        assert torch.mm(torch.ones(2, 2), weight).tolist() == [[6, 6], [6, 6]]


def test_warning_filters() -> None:
    with sandbox() as left:
        warnings.simplefilter("ignore")
    assert left.leaks == []
    assert left.remarks == ["your code changed the warning filters; they are as before again."]


def test_filters_of_a_library_imported_meanwhile_are_not_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy_library.py").write_text(
        "import warnings\nwarnings.filterwarnings('ignore', module='noisy')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with sandbox() as left:
        importlib.import_module("noisy_library")
    assert left.remarks == []
    del sys.modules["noisy_library"]


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
