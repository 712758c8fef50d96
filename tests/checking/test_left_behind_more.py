"""Rarer things that an answer can leave behind: the tables of this file go through the tests of `test_left_behind`."""

import json
import logging
import math
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.autograd import forward_ad

from amp_course.checking.sandbox import Sandbox, sandbox
from tests.checking.test_left_behind import FAULT, NOTE, enter, replace, said

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # of the first forward-mode product
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]
Case = tuple[Callable[[], Any], Callable[[], Any], str, str]


def compiled_frames() -> int:
    """Count the graphs that `torch.compile` hands to its backend: none under the stance "force_eager"."""
    seen: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(1)
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    return len(seen)


def derivative_forward() -> Any:
    with forward_ad.dual_level():
        made = forward_ad.make_dual(torch.full((1,), 3.0), torch.ones(1))
        tangent = forward_ad.unpack_dual(made * made).tangent
        return None if tangent is None else tangent.item()


def profiles() -> Any:
    with torch.profiler.profile() as profile:
        torch.ones(1)
    return len(profile.events() or ()) > 0


def overwrites() -> bool:
    """Tell whether `Module.to` gives a model new parameters; those it has now are the optimizer's."""
    model = nn.Linear(1, 1)
    before = model.weight
    model.to(torch.float64)
    return model.weight is not before


def swaps() -> bool:
    return bool(torch.__future__.get_swap_module_params_on_conversion())


def bad_sparse() -> Any:
    return said(lambda: torch.sparse_coo_tensor(torch.tensor([[9]]), torch.ones(1), (2,)).shape)


def mode_of_new_file() -> str:
    done = subprocess.run(["/bin/sh", "-c", "umask"], capture_output=True, text=True)
    return done.stdout


def other_zone() -> None:
    os.environ["TZ"] = "XYZ+7"
    time.tzset()


def no_zone() -> None:
    os.environ.pop("TZ", None)
    os.environ["TZ"] = "XYZ+9"
    time.tzset()
    del os.environ["TZ"]
    os.environ["TZ"] = "XYZ+8"


def sharing() -> str:
    return str(torch.multiprocessing.get_sharing_strategy())


def digits() -> Any:
    return said(lambda: len(str(10**1000)))


class Trusted:
    pass


CASES: dict[str, Case] = {
    "backend by use": (
        lambda: matplotlib.use("svg"),
        lambda: (matplotlib.get_backend().lower(), type(plt.figure().canvas).__name__, plt.close("all")),
        "to the backend `svg`",
        NOTE,
    ),
    "backend by switch_backend": (
        lambda: plt.switch_backend("pdf"),
        lambda: (matplotlib.get_backend().lower(), type(plt.figure().canvas).__name__, plt.close("all")),
        "to the backend `pdf`",
        NOTE,
    ),
    "float16": (
        replace(torch, "float16", torch.bfloat16),
        lambda: torch.ones(1).to(torch.float16).element_size() + torch.finfo(torch.float16).max,
        "replaces `torch.float16`",
        FAULT,
    ),
    "math.pi": (replace(math, "pi", 3), lambda: math.cos(math.pi), "replaces `math.pi`", FAULT),
    "torch.pi": (replace(torch, "pi", 3.0), lambda: torch.pi, "replaces `torch.pi`", FAULT),
    "np.inf": (replace(np, "inf", 1e9), lambda: np.inf > 1e10, "replaces `numpy.inf`", FAULT),
    "default generator": (
        replace(torch, "default_generator", torch.Generator()),
        lambda: torch.default_generator is torch.random.default_generator,
        "replaces `torch.default_generator`",
        FAULT,
    ),
    "profiler of autograd": (
        lambda: enter(torch.autograd.profiler.profile()),
        lambda: (torch.autograd._profiler_enabled(), torch.autograd.profiler._is_profiler_enabled),
        "left a profiler on",
        NOTE,
    ),
    "profiler": (
        lambda: enter(torch.profiler.profile()),
        lambda: (torch.autograd._profiler_enabled(), torch.autograd.profiler._is_profiler_enabled),
        "left a profiler on",
        NOTE,
    ),
    "dual level": (
        forward_ad.enter_dual_level,
        lambda: said(derivative_forward),
        "forward-mode differentiation",
        FAULT,
    ),
    "no forward mode": (
        lambda: torch._C._set_fwd_grad_enabled(False),
        derivative_forward,
        "forward-mode differentiation",
        FAULT,
    ),
    "stance": (lambda: torch.compiler.set_stance("force_eager"), compiled_frames, "stance at “force_eager”", FAULT),
    "multithreading": (
        lambda: enter(torch.autograd.set_multithreading_enabled(False)),
        torch._C._is_multithreading_enabled,
        "`torch.autograd.set_multithreading_enabled`",
        NOTE,
    ),
    "view replay": (
        lambda: torch._C._set_view_replay_enabled(True),
        torch._C._is_view_replay_enabled,
        "view_tracking",
        NOTE,
    ),
    "overwrite": (
        lambda: torch.__future__.set_overwrite_module_params_on_conversion(True),
        overwrites,
        "set_overwrite_module_params_on_conversion",
        NOTE,
    ),
    "swap": (
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
        swaps,
        "set_swap_module_params_on_conversion",
        NOTE,
    ),
    "sparse": (
        torch.sparse.check_sparse_tensor_invariants.enable,
        bad_sparse,
        "check_sparse_tensor_invariants",
        NOTE,
    ),
    "endianness": (
        lambda: torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.BIG),
        torch.serialization.get_default_load_endianness,
        "set_default_load_endianness",
        NOTE,
    ),
    "safe globals": (
        lambda: torch.serialization.add_safe_globals([Trusted]),
        lambda: Trusted in torch.serialization.get_safe_globals(),
        "`torch.load` trusts",
        NOTE,
    ),
    "logger": (
        lambda: logging.getLogger("torch").setLevel(logging.CRITICAL),
        lambda: logging.getLogger("torch").isEnabledFor(logging.ERROR),
        "the logger `torch` reports",
        NOTE,
    ),
    "logger off": (
        lambda: setattr(logging.getLogger("matplotlib"), "disabled", True),
        lambda: logging.getLogger("matplotlib").isEnabledFor(logging.ERROR),
        "the logger `matplotlib` reports",
        NOTE,
    ),
    "arguments": (lambda: sys.argv.append("--mine"), lambda: list(sys.argv), "`sys.argv`", NOTE),
    "switch interval": (
        lambda: sys.setswitchinterval(0.5),
        sys.getswitchinterval,
        "`sys.setswitchinterval`",
        NOTE,
    ),
    "digits": (lambda: sys.set_int_max_str_digits(700), digits, "how many digits", NOTE),
}
if len(torch.multiprocessing.get_all_sharing_strategies()) > 1:
    CASES["sharing"] = (
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
        sharing,
        "set_sharing_strategy",
        NOTE,
    )
if os.name == "posix":
    CASES["umask"] = (lambda: os.umask(0o137), mode_of_new_file, "`os.umask`", NOTE)
if hasattr(time, "tzset"):
    CASES["zone"] = (other_zone, lambda: time.localtime(0).tm_gmtoff, "environment variable `TZ`", NOTE)
    CASES["zone in the environment only"] = (
        no_zone,
        lambda: time.localtime(0).tm_gmtoff,
        "environment variable `TZ`",
        NOTE,
    )


@pytest.fixture(autouse=True)
def chosen_backend() -> None:
    matplotlib.use("agg", force=True)  # so that there is one to come back to
    logging.getLogger("matplotlib")


@pytest.mark.parametrize("name", CASES)
def test_is_seen_told_and_undone(name: str) -> None:
    change, probe, words, kind = CASES[name]
    before = probe()
    with sandbox() as left:
        change()
        during = probe()
    assert during != before, "the change does nothing here, so this test shows nothing"
    told = {FAULT: left.leaks, NOTE: left.remarks}
    (sentence,) = told.pop(kind)
    assert words in sentence and sentence.startswith("your code ") and sentence.endswith(".") == (kind == NOTE)
    assert list(told.values()) == [[]]
    assert probe() == before
    with sandbox() as left:
        probe()
    assert left.leaks == left.remarks == []


def test_a_profiler_that_was_left_on_hinders_no_later_one() -> None:
    with sandbox():
        enter(torch.profiler.profile())
    assert profiles()


def test_a_profiler_of_the_readers_own_that_an_answer_ended_is_named() -> None:
    torch.autograd.profiler.profile().__enter__()
    with sandbox() as left:
        torch.autograd._disable_profiler()
        torch.autograd.profiler._is_profiler_enabled = False
    assert left.leaks == [] and len(left.remarks) == 1 and "cannot go on" in left.remarks[0]


def test_a_profiler_round_a_check_goes_on() -> None:
    with torch.autograd.profiler.profile() as profile:
        with sandbox() as left:
            torch.ones(1)
        assert torch.autograd._profiler_enabled()
    assert left.remarks == [] and profile.function_events


@pytest.mark.parametrize(("backend", "remarks"), [("agg", 1), ("module://matplotlib_inline.backend_inline", 0)])
def test_figures_that_stay_open_are_named(backend: str, remarks: int) -> None:
    """A notebook shows them after the cell and closes them: there they are nobody's concern."""
    matplotlib.use(backend, force=True)
    plt.close("all")
    with sandbox() as left:
        plt.figure()
        plt.figure()
    assert left.leaks == [] and len(left.remarks) == remarks and len(plt.get_fignums()) == 2
    assert all("left 2 figures of pyplot open" in remark for remark in left.remarks)
    plt.close("all")
    matplotlib.use("agg", force=True)


def test_settings_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn")
    before = sklearn.get_config()
    with sandbox() as left:
        sklearn.set_config(assume_finite=True, working_memory=7)
    assert sklearn.get_config() == before
    assert left.leaks == [] and len(left.remarks) == 1 and "scikit-learn" in left.remarks[0]


def printed(code: str, **environment: str) -> str:
    """Run code in a process of its own, with these variables in its environment; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )
    return done.stdout


@pytest.mark.slow
def test_libraries_that_an_answer_is_the_first_to_load_are_not_its_doing() -> None:
    code = """
import matplotlib
from amp_course.checking.sandbox import Sandbox, sandbox
import torch
with sandbox() as left:
    import matplotlib.pyplot as plt
    plt.close(plt.figure())
    torch.compiler.set_stance("default")
    import sklearn
print(left.leaks, left.remarks)
"""
    assert printed(code, MPLBACKEND="") == "[] []\n"


@pytest.mark.slow
def test_the_first_compiled_function_of_a_process_is_not_accused() -> None:
    """PyTorch puts an `__init__` of its own into `nn.Module` then."""
    code = """
import torch
from amp_course.checking.sandbox import Sandbox, sandbox
from amp_course.checking.warmup import load_lazy_modules
load_lazy_modules()
before = torch.nn.Module.__init__
with sandbox() as left:
    torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))
print(left.leaks, left.remarks, torch.nn.Module.__init__ is not before)
"""
    assert printed(code) == "[] [] True\n"


@pytest.mark.slow
def test_a_backend_that_the_answer_chooses_before_pyplot_is_loaded() -> None:
    code = """
import matplotlib
from amp_course.checking.sandbox import Sandbox, sandbox
with sandbox() as left:
    import matplotlib.pyplot as plt
    plt.switch_backend("svg")
print(matplotlib.get_backend().lower(), type(plt.figure().canvas).__name__, len(left.leaks), len(left.remarks))
"""
    assert printed(code, MPLBACKEND="agg") == "agg FigureCanvasAgg 0 1\n"


def test_what_torch_and_python_change_themselves_is_not_accused() -> None:
    weight = nn.Parameter(torch.ones(2))
    with sandbox() as left:
        weight.register_hook(lambda grad: grad).remove()  # counts its handles in a public name of a class
        with torch.profiler.profile(), torch.autograd.set_multithreading_enabled(False), forward_ad.dual_level():
            torch.ones(1)
        with plt.rc_context({"font.size": 3}):
            plt.close(plt.figure())
    assert left.leaks == left.remarks == []


def test_what_torch_counts_in_its_classes_is_not_the_answers_doing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with sandbox() as used:
        for _ in range(3):
            with FakeTensorMode():
                torch.ones(2) + torch.ones(2)
        FakeTensorMode.cache_hits += 1
    assert not used.leaks and not used.remarks


def told(left: Sandbox) -> str:
    return " ".join(left.leaks + left.remarks)


def test_a_module_that_has_changed_before_is_still_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "new_here", "harmless", raising=False)
    with sandbox() as left:
        pass
    assert left.leaks == []
    monkeypatch.setattr(json, "newer", print, raising=False)
    original = json.dumps
    for _ in range(2):
        with sandbox() as left:
            json.dumps = lambda value: ""
        assert "`json.dumps`" in told(left) and json.dumps is original


def test_a_sandbox_in_a_sandbox_that_found_something() -> None:
    softmax, dumps = torch.softmax, json.dumps
    with sandbox() as outer:
        with sandbox() as inner:
            torch.softmax = abs
        json.new_in_between = "harmless"
        json.dumps = repr
    del json.new_in_between
    assert "`torch.softmax`" in told(inner) and "dumps" not in told(inner)
    assert "`json.dumps`" in told(outer) and "softmax" not in told(outer)
    assert torch.softmax is softmax and json.dumps is dumps


def test_a_module_under_another_name_is_lost_under_its_own() -> None:
    name, module = "made_up_and_last", types.ModuleType("made_up_and_last")
    sys.modules[name] = module
    with sandbox() as left:
        sys.modules["renamed"] = sys.modules.pop(name)
    assert f"`{name}`" in told(left) and sys.modules.pop(name) is module
    del sys.modules["renamed"]
