"""Exercise 4 of chapter 04: an island of float32, in every region."""

import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="autocast",
    name="fp32_island",
    number=4,
    title="Repair an fp32 island",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=4,
    task="The given router should compute its scores in float32 wherever it is called, but "
    "somebody forgot `.float()`. Write `fp32_island(x, weight)` so that it does: for x in "
    "float32, bf16 and fp16, in a region of either dtype or in none. It returns float32, "
    "gradients reach x and weight, and autocast is unchanged after it, even if it raises.",
    hints=(
        "`enabled=False` switches the casts off, in both directions: nothing is lowered, and "
        "nothing is cast up.",
        "An island has two halves: a nested region with `enabled=False` for the device of x, and "
        "`x.float()` before the squares.",
        "`with torch.autocast(x.device.type, enabled=False):`, in it `x = x.float()` first, then "
        "the given lines.",
    ),
    why="Either half alone fails: without `.float()` dtypes clash, without `enabled=False` the "
    "matmul is lowered again.",
    alternative="no matmul: `x.float()`, products and a sum; or a decorator, "
    '`@torch.autocast("cpu", enabled=False)`.',
)


def right(x: Any, weight: Any) -> Any:
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)
        return (x * scale) @ weight.T


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Scores are small differences of large numbers, which 16 bits lose. fp16 holds 300, but not its
# square.
FINE = torch.tensor([[1000.75, 1000.0, 999.25, 1000.0], [300.25, 300.0, 301.0, 299.75]])
COARSE = torch.tensor([[302.0, 300.0, 298.0, 300.0], [512.0, 510.0, 508.0, 510.0]])
WEIGHT = torch.tensor([[1.001, -1.0, 0.0, 0.0], [0.0, 1.0, -1.001, 0.0], [0.5, 0.5, -1.0, 0.001]])
STATE = "autocast after the call"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Tokens of every dtype in every region, zeros, drawn ones, and some with too few features."""
    for region, dtype in itertools.product((BF16, FP16, None), (FP32, FP16, BF16)):
        case = f"in a {dtype_name(region)} region" if region else "outside of autocast"
        x = (FINE if dtype == FP32 else COARSE).to(dtype)
        yield _call(answer, case, x, WEIGHT, region)
    yield _call(answer, "for a token of zeros", torch.zeros(1, 4), WEIGHT, BF16)
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    x, weight = torch.randn(5, 16, generator=generator), torch.randn(3, 16, generator=generator)
    yield _call(answer, "for five drawn tokens in a bfloat16 region", x, weight, BF16)
    with torch.autocast("cpu", dtype=BF16):
        out = "an exception"
        with suppress(Exception):
            out = f"a {type(answer(torch.ones(2, 3), WEIGHT)).__name__}"
        case = "for x with too few features, where the matmul raises"
        yield Case(case, {"autocast after the exception": _state(), "the outcome": out})


def _call(
    answer: Any, case: str, values: Tensor, weight: Tensor, region: torch.dtype | None
) -> Case:
    of = f" for {dtype_name(values.dtype)} x"
    x, weight = values.clone().requires_grad_(), weight.clone().requires_grad_()
    with torch.autocast("cpu", dtype=region or BF16, enabled=region is not None):
        got = call_answer(answer, case + of, x, weight)
        state = _state()
    scores = read_tensor(got, case)
    if got.requires_grad:
        got.sum().backward()
    # A 16-bit gradient may be rounded in another way
    grad = x.grad if x.grad is None or x.dtype == FP32 else torch.zeros_like(x)
    outputs: dict[str, Any] = {
        "the caller's x after the call": x.detach(),
        f"the table of scores{of}": scores,
        f"the gradient of the weight{of}": weight.grad,
        f"the gradient{of}": grad,
        STATE: state,
    }
    evidence = {"gradients": [x.grad is not None, weight.grad is not None]}
    return Case(case, outputs, evidence=evidence)


def _state() -> str:
    on = "on" if torch.is_autocast_enabled("cpu") else "off"
    cache = "" if torch.is_autocast_cache_enabled() else ", without its cache"
    return f"{on} ({dtype_name(torch.get_autocast_dtype('cpu'))}{cache})"


ISLAND = "with torch.autocast(x.device.type, enabled=False):"
FLOAT = "x = x.float()"
SCORES = "(x * scale) @ weight.T"
RETURN = f"return {SCORES}"

mistakes = [
    Mistake(
        "no .float()",
        "16-bit x meets the float32 weight, and the matmul raises. Cast bf16 and fp16 with "
        "`x.float()`",
        edits={FLOAT: "pass"},
        violates="for x in float32, bf16 and fp16",
    ),
    Mistake(
        "no .float() outside of autocast",
        "16-bit x is cast only in a region, and outside of autocast the matmul raises. Call "
        "`x.float()` there, too",
        edits={ISLAND: f"{ISLAND[:-1]} as region:", FLOAT: "x = x.float() if region.prev else x"},
        violates="in a region of either dtype or in none",
    ),
    Mistake(
        "no enabled=False",
        "autocast lowers the matmul. Run it in a block with `enabled=False`, for the device type "
        "of x",
        edits={ISLAND: "if True:"},
        violates="compute its scores in float32 wherever it is called",
    ),
    Mistake(
        "no enabled=False, and the result cast",
        "x is float32, but autocast still lowers the matmul, and casting its result recovers "
        "nothing. Run the matmul in a block with `enabled=False`, for the device type of x",
        edits={ISLAND: "if True:", RETURN: f"return ({SCORES}).float()"},
    ),
    Mistake(
        "casts the result only",
        "the matmul ran in 16 bits, and casting its result recovers nothing. Cast x first, and "
        "switch autocast off",
        edits={ISLAND: "if True:", FLOAT: "pass", RETURN: f"return ({SCORES}).float()"},
    ),
    Mistake(
        ".float() after the squares",
        "the squares were computed in 16 bits, where they lose digits or overflow. Put `.float()` "
        "first",
        edits={FLOAT: "pass", RETURN: "return (x.float() * scale.float()) @ weight.T"},
    ),
    Mistake(
        "returns the dtype of x",
        "the scores are cast back to the dtype of x. Leave them in float32: a softmax follows",
        edits={FLOAT: f"dtype = x.dtype\n{FLOAT}", RETURN: f"return ({SCORES}).to(dtype)"},
        violates="It returns float32",
    ),
    Mistake(
        "detaches x",
        "no gradient reaches x. `.float()` alone keeps the graph; `.data` and `.detach()` cut it",
        edits={FLOAT: "x = x.detach().float()"},
        violates="gradients reach x and weight",
    ),
    Mistake(
        "no_grad",
        "no gradient reaches x or the weight. An island switches autocast off, not autograd",
        edits={ISLAND: f"with torch.no_grad(), {ISLAND[5:]}"},
    ),
    Mistake(
        "leaves autocast off",
        "autocast is still off after the call, for the rest of the model. A `with` block switches "
        "it back on",
        edits={ISLAND: "torch.set_autocast_enabled(x.device.type, False)\nif True:"},
        violates="autocast is unchanged after it",
    ),
    Mistake(
        "leaves autocast on",
        "autocast was off before the call, and is on after it. Use a `with` block, which restores "
        "what it found",
        edits={
            ISLAND: "torch.set_autocast_enabled('cpu', False)\nif True:",
            RETURN: f"scores = {SCORES}\ntorch.set_autocast_enabled('cpu', True)\nreturn scores",
        },
    ),
    Mistake(
        "off after an exception",
        "an exception leaves autocast changed, because nothing restores it then. Use a `with` "
        "block or `try … finally`",
        edits={
            ISLAND: "was = torch.is_autocast_enabled('cpu')\n"
            "torch.set_autocast_enabled('cpu', False)\nif True:",
            RETURN: f"scores = {SCORES}\ntorch.set_autocast_enabled('cpu', was)\nreturn scores",
        },
        violates="even if it raises",
    ),
]

fp32_island = Exercise(card, right, cases, mistakes, tolerance=1e-3)
