"""The sandbox: whatever an answer leaves changed is reported and undone, however it ends."""

import importlib
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

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
