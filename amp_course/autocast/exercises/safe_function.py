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
        'Both take `device_type="cpu"`, and `custom_fwd` takes `cast_inputs=torch.float32`. '
        "Forward "
        "begins with `x, c = x.float(), c.float()`.",
    ),
    why="Autograd differentiates what autocast did to ordinary ops. In your own Function, that is "
    "your job.",
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
MESSAGES = {  # what Python and PyTorch say → what it means
    "_fwd_used_autocast": "`custom_bwd`, on backward, needs what `custom_fwd` records in the ctx "
    "of a `forward(ctx, …)`. Put `custom_fwd` on it",
    r"\.(forward|backward)\(\) (missing|takes)": "autograd calls static `forward(ctx, x, c)` and "
    "`backward(ctx, grad)`",
    "argument: 'device_type'": "`custom_fwd` and `custom_bwd` need to know the device. Write "
    '`device_type="cpu"` in both',
    "invalid gradient at index": "backward returns the gradient of x first, then that of c, and "
    "each has the shape of its points",
}
PULL = (torch.arange(12.0) % 5 - 1).view(3, 4) * 129.53  # which no 16-bit format has


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Points of each dtype, in each region and in none, with backward outside and inside."""
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
        yield _call(distances, fixed, (FP32, FP32), None, False)
    except Failed as failed:
        for words, meaning in MESSAGES.items():
            if re.search(words, str(failed.__cause__)):
                raise Wrong(meaning) from None
        raise
    if not apply:
        raise Wrong(
            "`SafeDistances` has to be a class with `torch.autograd.Function` as parent: its "
            "`apply` is called"
        )
    for inside, lower in itertools.product((False, True), (BF16, FP16)):
        yield _call(distances, fixed, (FP32, FP32), lower, inside)
    yield _call(distances, draw, (FP32, FP32), BF16, True)
    for note in (
        ", called between two others",
        ", where only x requires grad",
        ", where only c requires grad",
    ):
        yield _call(distances, fixed, (FP32, FP32), BF16, False, note=note)
    pairs = (BF16, BF16), (FP16, FP16), (FP32, BF16), (BF16, FP32)
    for region, dtypes, inside in itertools.product((BF16, FP16, None), pairs, (False, True)):
        try:
            case = _call(distances, fixed, dtypes, region, inside, " for 16-bit points")
            yield Case(case.name, {"what is raised": "nothing", **case.outputs})
        except Failed as failed:
            error = cast(Exception, failed.__cause__)
            raised = f"{signature(error)} {'`backward()`' in str(failed)}"
            yield Case(str(failed), {"what is raised": raised}, {"words": explain(error)})


def _call(
    apply: Any, draw: Any, dtypes: Any, region: Any, inside: bool, suffix: str = "", note: str = ""
) -> Case:
    x, c = (_points(draw, number, dtype) for number, dtype in zip((3, 4), dtypes, strict=True))
    x.requires_grad_("only c" not in note)
    c.requires_grad_("only x" not in note)
    case = f"with {' and '.join(dict.fromkeys(map(dtype_name, dtypes)))} points "
    case += f"in a region of {dtype_name(region)}" if region else "outside of autocast"
    case += f"{', with backward inside' if region and inside else ''}{note}"
    pull = PULL
    with torch.autocast("cpu", dtype=region or BF16, enabled=region is not None):
        calls = (x + 1, x, x + 1) if "between" in note else (x,)
        tables = [call_answer(apply, case, one, c) for one in calls]
        got = tables[len(tables) // 2]
        state = "on" if torch.is_autocast_enabled("cpu") else "off"
        table = read_tensor(got, case)
        with torch.autocast("cpu", dtype=region or BF16, enabled=inside and region is not None):
            if got.requires_grad and got.shape == PULL.shape:
                pull = PULL.to(got.dtype, copy=True)
                call_answer(got.backward, f"{case}, in `backward()`", pull)
    outputs: dict[str, Any] = {
        f"the table of distances{suffix}": table,
        f"autocast after the call{suffix}": state,
        "the caller's x and c after the call": [x.detach(), c.detach()],
        "`grad` after `backward`": pull,
    }
    grads = list[Any]()
    for one, other, by in ((x, c, PULL), (c, x, PULL.T)):
        apart = one.detach()[:, None].double() - other.detach().double()
        exact = 2 * (by[..., None] * apart).sum(dim=1)
        # A 16-bit gradient may be rounded in another way
        near = one.grad is not None and torch.allclose(
            one.grad.double(), exact, torch.finfo(one.dtype).eps, 0.01
        )
        grads.append(exact.to(one.dtype) if near else one.grad)
        outputs[f"the gradient of {'x' if one is x else 'c'}{suffix}"] = grads[-1]
    return Case(case, outputs, evidence={} if suffix else {"gradients": grads})


def _points(draw: random.Random, number: int, dtype: torch.dtype) -> Tensor:
    """Draw close points near 6, where a matmul in 16 bits loses their differences."""
    finer = 1 / 4096 if dtype == FP32 else 0
    steps = [draw.randint(-8, 8) / 16 + finer * draw.randint(1, 255) for _ in range(8 * number)]
    return (6 + torch.tensor(steps).view(number, 8)).to(dtype)


FORWARD = '@torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)'
BACKWARD = '@torch.amp.custom_bwd(device_type="cpu")'
OFF = '@torch.autocast("cpu", enabled=False)'
ISLANDS = {FORWARD: OFF, BACKWARD: OFF}
FLOAT = "x, c = x.float(), c.float()"
SAVE = "ctx.save_for_backward(x, c)"
TABLE = "x.square().sum(dim=1)[:, None] - 2 * x @ c.T + c.square().sum(dim=1)"
LOAD = "x, c = ctx.saved_tensors"

mistakes = [
    *(
        Mistake(
            name,
            'autocast stays on in forward. `amp.custom_fwd(device_type="cpu", '
            "cast_inputs=torch.float32)` turns it off",
            edits={FORWARD: "", **more},
            violates="in any region",
        )
        for name, more in (
            ("the given Function", {BACKWARD: "", FLOAT: "pass"}),
            ("forward not protected", {BACKWARD: OFF}),
        )
    ),
    Mistake(
        "no cast_inputs",
        "forward ran in 16 bits. `custom_fwd` switches autocast off only with `cast_inputs`, here "
        "torch.float32",
        edits={FORWARD: '@torch.amp.custom_fwd(device_type="cpu")', FLOAT: "pass"},
    ),
    Mistake(
        "backward not protected",
        "called in a region, backward runs under autocast. Put "
        "`torch.amp.custom_bwd(device_type='cpu')` on it or, if forward has a `with` block that "
        "turns autocast off, the same block into it",
        edits={BACKWARD: ""},
        violates="even if somebody calls `backward()` inside the region",
    ),
    Mistake(
        "backward as it was",
        "backward runs under autocast where it is called in a region, and with 16-bit points where "
        "those came in. Turn autocast off in it, too, and call `.float()` on what `ctx` saved",
        edits={FORWARD: OFF, BACKWARD: "", FLOAT: f"{SAVE}\n{FLOAT}", SAVE: "pass"},
    ),
    Mistake(
        "casts in a region only",
        "outside of a region, nothing casts the points (`cast_inputs` does not). Call `.float()` "
        "there, too",
        edits={FLOAT: "pass"},
        violates="outside of autocast",
    ),
    Mistake(
        "an island without .float()",
        "autocast is off in forward, but the points are still 16-bit. Begin with `x, c = "
        "x.float(), c.float()`",
        edits={**ISLANDS, FLOAT: "pass"},
        violates="in float32, bf16 or fp16",
    ),
    Mistake(
        "saves what came in",
        "the points are saved before they are cast, so backward gets 16-bit ones. Save those cast "
        "to float32",
        edits={**ISLANDS, FLOAT: f"{SAVE}\n{FLOAT}", SAVE: "pass"},
        violates="forward and backward run in float32",
    ),
    Mistake(
        "saves what came in, with decorators",
        "outside of a region the points are saved in 16 bits, because `cast_inputs` casts nothing "
        "there. Save those that `.float()` gives",
        edits={FLOAT: f"{SAVE}\n{FLOAT}", SAVE: "pass"},
    ),
    Mistake(
        "returns the dtype of x",
        "the distances are cast back to the dtype of x. Return them in float32",
        edits={
            **ISLANDS,
            FLOAT: f"dtype = x.dtype\n{FLOAT}",
            f"return {TABLE}": f"return ({TABLE}).to(dtype)",
            LOAD: f"{LOAD}\ngrad = grad.float()",
        },
    ),
    Mistake(
        "keeps the points outside of ctx",
        "where the Function is called several times before `backward()`, the gradients are "
        "computed from the points of another call. Keep each call's points in `ctx`",
        edits={SAVE: "SafeDistances.kept = x, c", LOAD: "x, c = SafeDistances.kept"},
    ),
    Mistake(
        "no gradient for c",
        "no gradient reaches c. Backward returns one for each input of forward",
        edits={"return grad_x, grad_c": "return grad_x, None"},
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
