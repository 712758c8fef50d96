"""Exercise 7 of chapter 04: ask a matmul which dtype a region runs it in."""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from amp_course.autocast.region import region
from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer
from amp_course.checking.sandbox import sandbox
from amp_course.checking.torch_state import TORCH

card = Card(
    chapter="autocast",
    name="matmul_dtype",
    number=7,
    title="What the setting did",
    difficulty=2,
    importance=3,
    minutes=5,
    lines=4,
    task="Write `matmul_dtype(make_region)`: `make_region()` makes a context manager, "
    "`torch.autocast` or any other. Return the dtype, a `torch.dtype`, that a matmul of float32 "
    "tensors on the CPU really gives inside it. The region has ended when your function returns.",
    hints=(
        "A setting can be there and have no effect. What shows its effect?",
        "Multiply two matrices inside the region, and look at the result. In which dtype, and "
        "where, do you make them?",
        "`x = torch.ones(2, 2, dtype=torch.float32)`, then `with make_region(): product = x @ x`, "
        "then `return product.dtype`.",
    ),
    why="Settings are wishes: for another device, switched off with a warning, or overridden by an "
    "inner region. The result of an op is a fact.",
    alternative="the output of an `nn.Linear` inside the region, or `trace` of this chapter, which "
    "reports it for every op of a model.",
)


def right(make_region: Any) -> Any:
    # before the region, which may change the default dtype
    x = torch.ones(2, 2, dtype=torch.float32)
    with make_region():
        product = x @ x
    return product.dtype


@contextmanager
def cpu_around_cuda() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class LowerMatmul(TorchDispatchMode):
    """Run matrix products in fp16, as a library's own mixed precision may, without autocast."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"):
            args = tree_map_only(torch.Tensor, lambda one: one.half(), args)
        return func(*args, **(kwargs or {}))


REGIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "in `torch.autocast('cpu')`": lambda: torch.autocast("cpu"),
    "in `torch.autocast('cpu', dtype=torch.float16)`": lambda: torch.autocast("cpu", torch.float16),
    "in `torch.autocast('cpu', enabled=False)`": lambda: torch.autocast("cpu", enabled=False),
    "in `torch.autocast('cpu', dtype=torch.float32)`": lambda: torch.autocast("cpu", torch.float32),
    "in a bf16 region for CUDA": lambda: region("cuda", torch.bfloat16),
    "in a bf16 region for the CPU, with one for CUDA that is off inside": cpu_around_cuda,
    "in `contextlib.nullcontext()`": nullcontext,
    "in a region whose default dtype is bfloat16": default_dtype,
    "in a library's own fp16 region, without autocast": LowerMatmul,
}
FIRST, *_ = REGIONS
DTYPE, AFTER = "the dtype", "what is still on after your function returned"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Ask about each of the regions."""
    for case, make_region in REGIONS.items():
        # torch warns of a region that it switches off
        with sandbox(TORCH) as left, warnings.catch_warnings(action="ignore"):
            got = call_answer(answer, case, make_region)
        if not isinstance(got, torch.dtype):
            kind = type(got).__name__
            raise Wrong(f"{case}, your function returned an object of type {kind}, no dtype")
        outputs: dict[str, Any] = {DTYPE: got}
        if case == FIRST:  # of the others, some end when nothing holds them any more
            outputs[AFTER] = "; ".join(left.leaks) or "nothing"
        yield Case(case, outputs)


def asks(setting: str) -> dict[str, str]:
    """Return a setting that is read inside the region."""
    return {"product = x @ x": f"found = {setting}", "return product.dtype": "return found"}


SET = 'torch.get_autocast_dtype("cpu")'
LOOK = "Look at the dtype of a product that was computed inside the region"

mistakes = [
    Mistake(
        "always float32",
        "you return float32 for every region. An addition is not lowered, and neither are the "
        f"inputs themselves or what runs outside. {LOOK}",
        edits=asks("(x + x).dtype"),
        violates="inside it",
    ),
    Mistake(
        "always bfloat16",
        f"you return bfloat16 for every region. That is autocast's default on the CPU. {LOOK}",
        answer=lambda make_region: torch.get_autocast_dtype("cpu"),
    ),
    Mistake(
        "the dtype that is set",
        "this is the dtype that is set for autocast, but autocast is off here, so it has no "
        f"effect. {LOOK}",
        edits=asks(SET),
        violates="really gives",
    ),
    Mistake(
        "the setting, if autocast is on",
        f"autocast is off here, and yet the region lowers matmuls, by other means. {LOOK}",
        edits=asks(f'{SET} if torch.is_autocast_enabled("cpu") else torch.float32'),
        violates="or any other",
    ),
    Mistake(
        "whether it is on for CUDA",
        "your answer depends on whether autocast is on for CUDA, and these tensors are on the CPU. "
        f"`torch.is_autocast_enabled()` without a device asks for CUDA. {LOOK}",
        edits=asks(f"{SET} if torch.is_autocast_enabled() else torch.float32"),
        violates="on the CPU",
    ),
    Mistake(
        "16-bit inputs",
        "the product is in bfloat16 because its inputs are, in a region that lowers nothing. Start "
        "from float32",
        edits={"x = torch.ones(2, 2, dtype=torch.float32)": "x = torch.ones(2, 2).bfloat16()"},
        violates="of float32 tensors",
    ),
    Mistake(
        "inputs in the default dtype",
        "the matrices are made inside, where the default dtype is bfloat16. Make them before the "
        "region, or pass `dtype=torch.float32`",
        edits={"product = x @ x": "product = torch.ones(2, 2) @ torch.ones(2, 2)"},
    ),
    Mistake(
        "leaves the region open",
        "the region is still open when your function returns, and whatever runs next is in it. "
        "Open it with `with`, which ends it again",
        edits={"with make_region():": "opened = make_region()\nopened.__enter__()\nif True:"},
        violates="The region has ended",
    ),
]

matmul_dtype = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        DTYPE: f"{{case}}, you return {{got}}, and a matmul there gives {{want}}. {LOOK}",
        AFTER: "{case}, the region is not ended: {got}",
    },
)
