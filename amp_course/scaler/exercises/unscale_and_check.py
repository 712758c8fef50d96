"""Exercise 2 of chapter 05: divide every gradient by the scale, and find inf and NaN."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    families,
    read_bool,
    read_number,
)

card = Card(
    chapter="scaler",
    name="unscale_and_check",
    number=2,
    title="Unscale, and find inf",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=7,
    task="Write `unscale_and_check(optimizer, scale)`: divide every gradient of the optimizer by "
    "the scale, so that `parameter.grad` holds the result, and return whether any of them "
    "contains inf or NaN. A parameter may have no gradient. The result has to match torch's "
    "`unscale_` to the last bit.",
    hints=(
        "Where does an optimizer keep its parameters? There may be several groups. What if a "
        "parameter has no gradient?",
        "`for group in optimizer.param_groups: for parameter in group['params']: …`. Do not leave "
        "the loop at the first inf.",
        "`parameter.grad.div_(scale)`, then `found = found or not "
        "torch.isfinite(parameter.grad).all()`; return `found`.",
    ),
    why="One inf among a million gradients ruins every weight it touches, and NaN slips through "
    "every comparison.",
    alternative="`torch._foreach_div_(gradients, scale)` divides all of them in a few calls. "
    "torch's kernel also checks them.",
)


def right(optimizer: torch.optim.Optimizer, scale: float) -> bool:
    found = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(scale)
                found = found or not bool(torch.isfinite(parameter.grad).all())
    return found


INF = float("inf")
SHAPES = (3, 4), (2, 2), (5,), (), (2, 3)  # the second gets no gradient
HUGE = 3.1e38  # twice this is inf in float32, and so are a sum and a norm with it
BAD = [{place: bad} for place in (0, 2, 3, 4) for bad in ("inf", "NaN", "-inf")]


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Finite and huge gradients, then an inf, NaN or −inf in each gradient, and two at once."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for number, planted in enumerate(({}, {}, *BAD[:6], {}, *BAD[6:], {0: "inf", 3: "NaN"}, {})):
        scale, top = (1.0, HUGE) if number == 1 else (4.0 ** ((number + 4) % 5), 2e5)
        parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
        for place, p in enumerate(parameters):
            values = 2.0**-18 * torch.randn(p.numel(), generator=generator)
            values = torch.tensor([top, 0.9 * top, 1e-7, -3.0, 1e5]) if place == 2 else values
            if place in planted:
                values[number % len(values)] = float(planted[place])
            p.grad = None if place == 1 else values.reshape(p.shape[::-1]).t()  # not contiguous
        bad = [f"{bad} in gradient {place + 1} of 5" for place, bad in planted.items()]
        bad = bad or [f"finite gradients up to {top:,g}"]
        case = f"with {', '.join([f'a scale of {scale:,.0f}', *bad[:-1]])} and {bad[-1]}"
        before = [p.detach().clone() for p in parameters]
        optimizer = torch.optim.SGD([{"params": parameters[:3]}, {"params": parameters[3:]}])
        got = call_answer(answer, case, optimizer, scale)
        changed = sum(int((p != b).sum()) for p, b in zip(parameters, before, strict=True))
        grads = [None if p.grad is None else p.grad.detach().clone() for p in parameters]
        outputs = {
            "the number of changed weights": changed,
            "the gradient": grads,
            "what you return": _read_found(got, case),
        }
        yield Case(case, outputs)


def _read_found(got: Any, case: str) -> bool:
    """Return whether something was found; a number will do, as torch's kernel gives it."""
    try:
        return read_number(got, case) != 0
    except Wrong:
        return read_bool(got, case)


LOOP = "for group in optimizer.param_groups:"
HAS = "if parameter.grad is not None:"
DIVIDE = "parameter.grad.div_(scale)"
FIND = "found = found or not bool(torch.isfinite(parameter.grad).all())"


def finds(expression: str) -> dict[str, str]:
    """Look for something else, in each gradient `g` before it is divided."""
    return {
        LOOP: "grads = [p.grad for g in optimizer.param_groups for p in g['params']]\n"
        f"found = any(bool({expression}) for g in grads if g is not None)\n{LOOP}",
        FIND: "pass",
    }


MISSES = {
    "NaN, which is neither inf nor above a limit,": "g.isinf().any()",
    "inf, which is not NaN,": "g.isnan().any()",
    "−inf": "(g == INF).any() or g.isnan().any()",
    "the −inf next to a finite maximum": "not g.max().isfinite()",
    "NaN or −inf, neither of which equals inf,": "(g == INF).any()",
    "one bad element among good ones": "not g.isfinite().any()",
}

mistakes = [
    Mistake(
        "new tensors",
        "the gradients are unchanged. Divide each in place, `parameter.grad.div_(scale)`, or "
        "assign the quotient",
        edits={DIVIDE: "pass"},
        violates="so that `parameter.grad` holds the result",
    ),
    Mistake(
        "stops at the first parameter",
        "only the first gradient was unscaled. Look for a `return` or a `break` that ends the "
        "loop too early",
        edits={FIND: "return not bool(parameter.grad.isfinite().all())"},
        violates="divide every gradient",
    ),
    *[
        Mistake(
            name,
            "after an inf or NaN, gradients still carry the scale. No `if`, `return`, `break`, "
            "`or` or `any(…)` may skip the division",
            edits=edits,
        )
        for name, edits in {
            "returns before the rest": {
                FIND: "if not parameter.grad.isfinite().all():\n    return True"
            },
            "skips what is not finite": {
                DIVIDE: f"if parameter.grad.isfinite().all():\n    {DIVIDE}"
            },
            "skips all": {
                **finds("not g.isfinite().all()"),
                DIVIDE: f"if not found:\n    {DIVIDE}",
            },
        }.items()
    ],
    Mistake(
        *families.FIRST_GROUP_ONLY,
        edits={LOOP: LOOP.replace(":", "[:1]:")},
    ),
    Mistake(
        "cleans inf away",
        "inf and NaN were replaced by numbers. Report them and leave them in: the step is skipped "
        "anyway",
        edits={FIND: f"{FIND}\nparameter.grad.nan_to_num_()"},
    ),
    Mistake(
        *families.A_GRADIENT_IS_NONE,
        edits={HAS: "if True:"},
        violates="A parameter may have no gradient",
    ),
    *[
        Mistake(
            f"misses {what.split(',')[0]}",
            f"{what} was missed. `torch.isfinite(gradient).all()` is False for inf, −inf and NaN "
            "alike",
            edits=finds(test),
            violates="contains inf or NaN",
        )
        for what, test in MISSES.items()
    ],
    Mistake(
        "returns at a missing gradient",
        "after a parameter without a gradient, others in its group still carry the scale. Skip it "
        "with `continue`",
        edits={HAS: "if parameter.grad is None:\n    break\nif True:"},
    ),
    *[
        Mistake(
            name,
            families.JUDGES_BY_THE_NORM[1].replace("a step was skipped", "you return True"),
            edits=edits,
        )
        for name, edits in {
            families.JUDGES_BY_THE_NORM[0]: finds("not g.sum().isfinite()"),
            "looks for inf in fp16": {
                FIND: FIND.replace("parameter.grad", "parameter.grad.half()")
            },
        }.items()
    ],
    Mistake(
        "the last gradient decides",
        "only the last gradient counts. Keep what an earlier one has found: `found = found or …`",
        edits={FIND: FIND.replace("found or ", "")},
    ),
    Mistake(
        "the other way round",
        "the answer is the wrong way round. Return True if there is inf or NaN",
        edits={"return found": "return not found"},
    ),
]

unscale_and_check = Exercise(card, right, cases, mistakes)
