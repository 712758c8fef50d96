"""Exercise 6 of chapter 12: SGD on bf16 weights with a bf16 buffer for what is lost,
against updates that bf16 holds exactly.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, alike, call_answer
from amp_course.frontiers.exercises._shared import bytes_of, held_tensors

card = Card(
    chapter="frontiers",
    name="kahan_sgd",
    number=6,
    title="bf16 weights that lose nothing",
    difficulty=3,
    importance=4,
    minutes=15,
    lines=11,
    task="For `kahan_sgd`, write the class `KahanSGD(params, lr)` with a method `step()`: SGD on "
    "bf16 parameters, which stay bf16, that loses no small update. A buffer in bf16 for each "
    "parameter carries what rounding took away into the next step (Kahan's sum): what the "
    "optimizer keeps takes at most 2 bytes a number, so there are no float32 copies between two "
    "steps. Within a step, float32 is fine. The parameters come as any iterable. Where a gradient "
    "is None, nothing changes. Gradients stay as they are.",
    hints=(
        "The change that you want is −lr · gradient, plus what was lost before. The change that "
        "you get is the new weight minus the old one. What is lost?",
        "In float32: `change = lost.float() - self.lr * p.grad.float()`, then `new = (p.float() + "
        "change).bfloat16()`. What arrived is `new.float() - p.float()`: compute it while p still "
        "holds the old weight.",
        "`lost.copy_(change - arrived)`, then `p.copy_(new)`, all under `@torch.no_grad()`. "
        "`lost` starts as `torch.zeros_like(p)`.",
    ),
    why="4 bytes a number for weight and buffer, where bf16 weights with float32 masters take 6, "
    "and nearly the same precision.",
    alternative="optimī's way: all in bf16, `y = update + lost; new = p + y; lost = y - (new - "
    "p)`. The difference `new - p` is exact there, too.",
)


class KahanSGD:
    """The right answer."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.lost: Any = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self) -> None:
        for p, lost in zip(self.params, self.lost, strict=True):
            if p.grad is None:
                continue
            update = self.lr * p.grad.float()
            change = lost.float() - update
            new = (p.float() + change).bfloat16()
            arrived = new.float() - p.float()
            lost.copy_(change - arrived)
            p.copy_(new)


BF16, LR, STEPS = torch.bfloat16, 2.0**-6, 40
NEAR_1, TINY, UNUSED = (
    "the weights near 1",
    "the weights near 1e-7",
    "the weights used at the last step only",
)
SIZES = {TINY: 2.0**-23, NEAR_1: 1.0, UNUSED: 1.0}
BYTES, MISSING = "the bytes kept a number", 9


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Updates of up to half an ulp, in steps of ulp / 256: change, sum and loss are exact in bf16,
    in whatever way computed.

    Parameters come as an iterator first, then as a list.
    """
    for kind in ("an iterator", "a list"):

        def grid(low: int, high: int, *shape: int) -> Tensor:
            numbers = [draw.randint(low, high) for _ in range(torch.Size(shape).numel())]
            return torch.tensor(numbers, dtype=torch.float64).view(shape)

        params = {
            what: nn.Parameter((grid(170, 210, 2, 3) / 128 * size).to(BF16))
            for what, size in SIZES.items()
        }
        given: Any = iter(params.values()) if kind == "an iterator" else list(params.values())
        optimizer = call_answer(answer, "at `KahanSGD(params, lr)`", given, LR)
        if not callable(getattr(optimizer, "step", None)):
            raise Wrong("`KahanSGD(params, lr)` has no method `step()`")
        signs = torch.tensor([[1, -1, 1], [-1, 1, 1]]).double()
        for number in range(1, STEPS + 1):
            for what, p in params.items():  # lr times it is a multiple of ulp / 256
                p.grad = (grid(1, 127, 2, 3) * signs * 2.0**-9 * SIZES[what]).to(BF16)
            params[UNUSED].grad = params[UNUSED].grad if number == STEPS else None
            params[TINY].grad = None if number == MISSING else params[TINY].grad
            before = [None if p.grad is None else p.grad.clone() for p in params.values()]
            case = f"at step {number}, with parameters that come as {kind}"
            call_answer(optimizer.step, case)
            same = alike([p.grad for p in params.values()], before)
            dtypes = {
                f"the dtype of {what}": str(p.dtype).removeprefix("torch.")
                for what, p in params.items()
            }
            values = {what: params[what].detach().double() for what in (NEAR_1, TINY, UNUSED)}
            yield Case(
                case, {**dtypes, **values, "the gradients": "unchanged" if same else "changed"}
            )
        ours = {p.untyped_storage().data_ptr() for p in params.values()}
        ours |= {p.grad.untyped_storage().data_ptr() for p in params.values() if p.grad is not None}
        kept = [
            one
            for one in held_tensors(optimizer, *params.values())
            if one.untyped_storage().data_ptr() not in ours
        ]
        numbers = sum(p.numel() for p in params.values())
        each = (
            bytes_of(kept) - 8 * sum(one.numel() == 1 for one in kept)
        ) / numbers  # a step count, or lr, is no matter
        largest = max(
            (float(one.detach().abs().max()) for one in kept if one.numel() > 1), default=-1.0
        )
        what = (
            "nothing"
            if largest < 0
            else "zeros"
            if largest == 0
            else "weights"
            if largest > 0.5
            else "losses"
        )
        yield Case("", {BYTES: "at most 2" if each <= 2 else each}, evidence={"what is kept": what})


KEEP, LOST = (
    "self.params = list(params)",
    "self.lost: Any = [torch.zeros_like(p) for p in self.params]",
)
NO_GRAD, ZIP = "@torch.no_grad()", "for p, lost in zip(self.params, self.lost, strict=True):"
IF, CONTINUE = "if p.grad is None:", "continue"
UPDATE, CHANGE = "update = self.lr * p.grad.float()", "change = lost.float() - update"
NEW, ARRIVED = "new = (p.float() + change).bfloat16()", "arrived = new.float() - p.float()"
REMEMBER, COPY = "lost.copy_(change - arrived)", "p.copy_(new)"
MASTERS = {LOST: "self.lost = [p.detach().clone().float() for p in self.params]", REMEMBER: "pass"}

mistakes = [
    Mistake(
        "plain SGD",
        "updates below half an ulp are lost, and nothing is kept of them: keep what rounding "
        "takes in a buffer, and add it to the next change",
        edits={
            LOST: "self.lost = [0.0] * len(self.params)",
            CHANGE: "change = -update",
            REMEMBER: "pass",
        },
        violates="that loses no small update",
    ),
    Mistake(
        "never used",
        "what is lost is computed, but never gets into the next change: either it is not added, "
        "or the buffer is reset before it is",
        edits={CHANGE: "change = -update"},
        violates="into the next step",
    ),
    Mistake(
        "reset at each step",
        "the buffer is 0 after each step, so nothing reaches the next one. Is it reset, or is "
        "what was lost assigned to a name, instead of copied into the buffer (`lost.copy_(…)`)?",
        edits={REMEMBER: "lost.zero_()"},
    ),
    Mistake(
        "the wrong sign",
        "what was lost comes back with the wrong sign, so each loss counts twice: what is lost is "
        "the change that you want minus the one that arrived, and it is added",
        edits={CHANGE: "change = -lost.float() - update"},
    ),
    Mistake(
        "after the copy",
        "what arrived is computed after the parameter was overwritten, and is 0: so the whole "
        "change counts again. Compute it while p holds the old weight",
        edits={ARRIVED: f"{COPY}\n{ARRIVED}"},
    ),
    Mistake(
        "adds to the buffer",
        "what is lost is added to the buffer. Its old content is in `change` already: overwrite it",
        edits={REMEMBER: "lost.add_(change - arrived)"},
    ),
    Mistake(
        "forgets the old loss",
        "the new loss is computed from the update alone. What was lost before is a part of the "
        "change, too, and may be lost again: `change - arrived`",
        edits={REMEMBER: "lost.copy_(-update - arrived)"},
    ),
    Mistake(
        "a buffer in float32",
        "the buffer is in float32, and takes 4 bytes a number: `torch.zeros_like(p)` has the "
        "dtype of p",
        edits={LOST: LOST.replace("zeros_like(p)", "zeros_like(p).float()")},
        violates="A buffer in bf16",
    ),
    Mistake(
        "master weights",
        "float32 weights are kept between two steps. They lose nothing, but take 4 bytes a "
        "number: keep only what bf16 has rounded away, in bf16",
        edits={**MASTERS, CHANGE: "lost -= update", NEW: "new = lost.bfloat16()"},
        violates="no float32 copies between two steps",
    ),
    Mistake(
        "a buffer in fp16",
        "the buffer is in fp16, where what small weights lose is 0: `torch.zeros_like(p)` has the "
        "dtype of p",
        edits={LOST: LOST.replace("zeros_like(p)", "zeros_like(p).half()")},
    ),
    Mistake(
        "float32 weights",
        "the parameters become float32: round the sum to bf16",
        edits={COPY: "p.data = p.float() + change"},
        violates="which stay bf16",
    ),
    Mistake(
        "goes up the gradient",
        "the step goes up the gradient: subtract `lr * gradient`",
        edits={CHANGE: "change = lost.float() + update"},
    ),
    Mistake(
        "a gradient is None",
        "the step fails at a gradient that is None, such as that of an unused layer: leave that "
        "parameter out",
        edits={IF: "if False:"},
        violates="Where a gradient is None",
    ),
    Mistake(
        "returns at a missing gradient",
        "the step ends at the first parameter without a gradient: pass over that one alone, with "
        "`continue`",
        edits={CONTINUE: "return"},
        violates="nothing changes",
    ),
    Mistake(
        "used up in `__init__`",
        "nothing moves if `params` is an iterator, as `model.parameters()` is: read it only once, "
        "into a list",
        edits={KEEP: "self.params = params", ZIP: ZIP.replace("True", "False")},
        violates="any iterable",
    ),
    Mistake(
        "used up by the first step",
        "only the first step moves anything if `params` is an iterator, as `model.parameters()` "
        "is: read it only once, into a list",
        edits={
            KEEP: "self.params = params",
            LOST: "self.lost: Any = {}",
            ZIP: "for p in self.params:\n    lost = self.lost.setdefault(p, torch.zeros_like(p))",
        },
    ),
    Mistake(
        "changes the gradients",
        "the gradient is changed, as `mul_` does it: make a new tensor, and leave clearing it to "
        "`zero_grad`",
        edits={UPDATE: "update = p.grad.mul_(self.lr).float()"},
        violates="Gradients stay as they are",
    ),
    Mistake(
        "autograd watches",
        "a parameter was changed in place while autograd was recording: write `@torch.no_grad()` "
        "above `step`",
        edits={NO_GRAD: ""},
    ),
]

kahan_sgd = Exercise(
    card,
    KahanSGD,
    cases,
    mistakes,
    messages={
        "the gradients": "{case}, the gradients are changed: `step()` has to leave them as they "
        "are",
        BYTES: "what the optimizer keeps between two steps takes {got} bytes a number. A buffer "
        "in bf16 takes 2",
    },
)
