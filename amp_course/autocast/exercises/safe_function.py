"""Exercise 5 of chapter 04: an autograd Function that computes in float32 wherever it is called."""

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Failed,
    Mistake,
    Wrong,
    call_answer,
    explain,
    read_tensor,
    signature,
)
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="autocast",
    name="safe_function",
    number=5,
    title="Make an autograd Function safe",
    difficulty=3,
    importance=3,
    minutes=10,
    lines=13,
    task="The given Function computes squared distances, with a matmul that is useless in 16 "
    "bits. For `safe_function`, write the class `SafeDistances`, whose forward and backward run "
    "in float32 for points on the CPU in float32, bf16 or fp16: in any region, outside of "
    "autocast, and even if somebody calls `backward()` inside the region. The result is float32.",
    hints=(
        "PyTorch has a decorator for forward and one for backward. What does the one for forward "
        "do outside of a region?",
        "In a region, `amp.custom_fwd` with `cast_inputs` casts the points and switches autocast "
        "off. See `custom_bwd`, too.",
        'Both take `device_type="cpu"`, `custom_fwd` `cast_inputs=torch.float32`; forward begins '
        "`x, c = x.float(), c.float()`.",
    ),
    why="Autograd differentiates what autocast did to ordinary ops; in a Function of your own, "
    "that is your job.",
    alternative="`with torch.autocast(x.device.type, enabled=False):` and `.float()` in forward "
    "and backward, for every device.",
)


class SafeDistances(Function):
    """The right answer."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Any, c: Any) -> Any:
        x, c = x.float(), c.float()
        ctx.save_for_backward(x, c)
        return x.square().sum(dim=1)[:, None] - 2 * x @ c.T + c.square().sum(dim=1)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Any) -> Any:
        x, c = ctx.saved_tensors
        grad_x = 2 * (x * grad.sum(dim=1)[:, None] - grad @ c)
        grad_c = 2 * (c * grad.sum(dim=0)[:, None] - grad.T @ x)
        return grad_x, grad_c


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WORDS = {  # what Python and PyTorch say → what it means
    "_fwd_used_autocast": "put `custom_fwd` on a `forward(ctx, …)`: in its ctx, it records what "
    "`custom_bwd`, on backward, needs",
    r"\.(forward|backward)\(\) (missing|takes)": "autograd calls static `forward(ctx, x, c)` and "
    "`backward(ctx, grad)`",
    "argument: 'device_type'": "`custom_fwd` and `custom_bwd` need to know the device: write "
    '`device_type="cpu"` in both',
    "invalid gradient at index": "backward returns the gradient of x first, then that of c, and "
    "each has the shape of its points",
}
PULL = (torch.arange(12.0) % 5 - 1).view(3, 4) * 129.53  # which no 16-bit format has


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Points of each dtype, in each region and in none, with backward outside and inside;
    one set is drawn.
    """
    apply = getattr(answer, "apply", None)
    alone = isinstance(answer, type) and (not apply or issubclass(answer, nn.Module))
    if alone or getattr(answer, "backward", None) is Function.backward:
        raise Wrong(
            "`SafeDistances` needs `torch.autograd.Function` as its parent, and a `backward` next "
            "to `forward`"
        )
    distances = apply or answer
    fixed = random.Random(0)
    try:
        yield _turn(distances, fixed, (FP32, FP32), None, False)
    except Failed as failed:
        for words in (words for words in WORDS if re.search(words, str(failed.__cause__))):
            raise Wrong(WORDS[words]) from None
        raise
    if not apply:
        raise Wrong(
            "`SafeDistances` has to be a class with `torch.autograd.Function` as parent: its "
            "`apply` is called"
        )
    for lower, inside in ((BF16, False), (FP16, False), (BF16, True), (FP16, True)):
        yield _turn(distances, fixed, (FP32, FP32), lower, inside)
    yield _turn(distances, draw, (FP32, FP32), BF16, True)
    for note in (
        ", called between two others",
        ", where only x requires grad",
        ", where only c requires grad",
    ):
        yield _turn(distances, fixed, (FP32, FP32), BF16, False, note=note)
    pairs = (BF16, BF16), (FP16, FP16), (FP32, BF16), (BF16, FP32)
    for region, dtypes, inside in itertools.product((BF16, FP16, None), pairs, (False, True)):
        try:
            turn = _turn(distances, fixed, dtypes, region, inside, " for 16-bit points")
            yield Case(turn.name, {"what is raised": "nothing", **turn.outputs})
        except Failed as failed:
            error, backward = cast(Exception, failed.__cause__), "`backward()`" in str(failed)
            yield Case(
                str(failed),
                {"what is raised": f"{signature(error)} {backward}"},
                {"words": explain(error)},
            )


def _turn(
    apply: Any, draw: Any, dtypes: Any, region: Any, inside: bool, suffix: str = "", note: str = ""
) -> Case:
    x, c = (_points(draw, number, dtype) for number, dtype in zip((3, 4), dtypes, strict=True))
    x.requires_grad_("only c" not in note), c.requires_grad_("only x" not in note)
    case = f"with {' and '.join(dict.fromkeys(map(dtype_name, dtypes)))} points "
    case += f"in a region of {dtype_name(region)}" if region else "outside of autocast"
    case += ", with backward inside" if region and inside else ""
    case += note
    with torch.autocast("cpu", dtype=region or BF16, enabled=region is not None):
        tables = [
            call_answer(apply, case, one, c)
            for one in ((x + 1, x, x + 1) if "between" in note else (x,))
        ]
        got = tables[len(tables) // 2]
        state = "on" if torch.is_autocast_enabled("cpu") else "off"
        table = read_tensor(got, case)
        with torch.autocast("cpu", dtype=region or BF16, enabled=inside and region is not None):
            if got.requires_grad and got.shape == PULL.shape:
                call_answer(
                    got.backward, f"{case}, in `backward()`", pull := PULL.to(got.dtype, copy=True)
                )
    grads = list[Any]()
    for one, other, by in ((x, c, PULL), (c, x, PULL.T)):
        exact = 2 * (
            by[..., None] * (one.detach()[:, None].double() - other.detach().double())
        ).sum(dim=1)
        # To round a 16-bit gradient in another way is no fault.
        near = one.grad is not None and torch.allclose(
            one.grad.double(), exact, torch.finfo(one.dtype).eps, 0.01
        )
        grads.append(exact.to(one.dtype) if near else one.grad)
    outputs = {f"the table of distances{suffix}": table, f"autocast after the call{suffix}": state}
    outputs |= {
        "the caller's x and c after the call": [x.detach(), c.detach()],
        "`grad` after `backward`": pull,
    }
    outputs |= {
        f"the gradient of {name}{suffix}": grad for name, grad in zip("xc", grads, strict=True)
    }
    return Case(case, outputs, {}, {} if suffix else {"gradients": grads})


def _points(draw: random.Random, number: int, dtype: torch.dtype) -> Tensor:
    """Draw close points near 6, where a matmul in 16 bits loses their differences;
    those in float32 are finer.
    """
    steps = [
        draw.randint(-8, 8) / 16 + (dtype == FP32) * draw.randint(1, 255) / 4096
        for _ in range(8 * number)
    ]
    return (6 + torch.tensor(steps).view(number, 8)).to(dtype)


FORWARD = '@torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)'
BACKWARD, OFF = '@torch.amp.custom_bwd(device_type="cpu")', '@torch.autocast("cpu", enabled=False)'
FLOAT, SAVE = "x, c = x.float(), c.float()", "ctx.save_for_backward(x, c)"
RESULT = "return x.square().sum(dim=1)[:, None] - 2 * x @ c.T + c.square().sum(dim=1)"
LOAD, RETURN = "x, c = ctx.saved_tensors", "return grad_x, grad_c"

mistakes = [
    Mistake(
        "the given Function",
        'autocast stays on in forward: `amp.custom_fwd(device_type="cpu", '
        "cast_inputs=torch.float32)` turns it off",
        edits={FORWARD: "", BACKWARD: "", FLOAT: "pass"},
        violates="in any region",
    ),
    Mistake(
        "no cast_inputs",
        "forward ran in 16 bits: `custom_fwd` switches autocast off only with `cast_inputs`, here "
        "torch.float32",
        edits={FORWARD: '@torch.amp.custom_fwd(device_type="cpu")', FLOAT: "pass"},
    ),
    Mistake(
        "backward not protected",
        "called in a region, backward runs under autocast: put "
        "`torch.amp.custom_bwd(device_type='cpu')` on it or, if forward has a `with` block that "
        "turns autocast off, the same block into it",
        edits={BACKWARD: ""},
        violates="even if somebody calls `backward()` inside the region",
    ),
    Mistake(
        "casts in a region only",
        "outside of a region, nothing casts the points: call `.float()` there too (`cast_inputs` "
        "does not)",
        edits={FLOAT: "pass"},
        violates="outside of autocast",
    ),
    Mistake(
        "an island without .float()",
        "autocast is off in forward, but the points are still 16-bit: begin with `x, c = "
        "x.float(), c.float()`",
        edits={FORWARD: OFF, BACKWARD: OFF, FLOAT: "pass"},
        violates="in float32, bf16 or fp16",
    ),
    Mistake(
        "saves what came in",
        "the points were saved before they were cast, so backward gets 16-bit ones: save those "
        "cast to float32",
        edits={FORWARD: OFF, BACKWARD: OFF, FLOAT: f"{SAVE}\n{FLOAT}", SAVE: "pass"},
        violates="forward and backward run in float32",
    ),
    Mistake(
        "saves what came in, with decorators",
        "outside of a region, the points are saved in 16 bits, for `cast_inputs` casts nothing "
        "there: save those that `.float()` gives",
        edits={FLOAT: f"{SAVE}\n{FLOAT}", SAVE: "pass"},
    ),
    Mistake(
        "returns the dtype of x",
        "the distances are cast back to the dtype of x: return them in float32",
        edits={
            FORWARD: OFF,
            BACKWARD: OFF,
            FLOAT: f"dtype = x.dtype\n{FLOAT}",
            RESULT: f"return ({RESULT[7:]}).to(dtype)",
            LOAD: f"{LOAD}\ngrad = grad.float()",
        },
    ),
    Mistake(
        "keeps the points outside of ctx",
        "where the Function is called several times before `backward()`, the gradients are "
        "computed from the points of another call: keep each call's own points in `ctx`",
        edits={SAVE: "SafeDistances.kept = x, c", LOAD: "x, c = SafeDistances.kept"},
    ),
    Mistake(
        "no gradient for c",
        "no gradient reaches c: backward returns one for each input of forward",
        edits={RETURN: "return grad_x, None"},
    ),
]

safe_function = Exercise(
    card,
    SafeDistances,
    cases,
    mistakes,
    tolerance=1e-3,
    messages={"what is raised": "{words}. This happened {case}"},
)
