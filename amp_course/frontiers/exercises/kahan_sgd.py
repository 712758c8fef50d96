"""Exercise 6 of chapter 12: SGD on bf16 weights with a bf16 buffer for what is lost."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, alike, call_answer, families
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
    "parameter carries what rounding took away into the next step (Kahan's sum). What the "
    "optimizer keeps takes at most 2 bytes a number, so there are no float32 copies between two "
    "steps. Within a step, float32 is fine. The parameters come as any iterable. Where a gradient "
    "is None, nothing changes. Gradients stay as they are.",
    hints=(
        "The change that you want is −lr · gradient, plus what was lost before. The change that "
        "you get is the new weight minus the old one. What is lost?",
        "In float32: `change = lost.float() - self.lr * p.grad.float()`, then `new = (p.float() + "
        "change).bfloat16()`. What arrived is `new.float() - p.float()`: compute it while p still "
        "holds the old weight.",
        "`lost.copy_(change - arrived)`, then `p.copy_(new)`, all under `torch.no_grad()`. "
        "`lost` starts as `torch.zeros_like(p)`.",
    ),
    why="Weight and buffer take 4 bytes a number, where bf16 weights with float32 masters take 6, "
    "at nearly the same precision.",
    alternative="optimī's way: all in bf16, `y = update + lost; new = p + y; lost = y - (new - "
    "p)`. The difference `new - p` is exact there, too.",
)


class KahanSGD:
    """The right answer."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.lost: Any = [torch.zeros_like(p) for p in self.params]

    def step(self) -> None:
        with torch.no_grad():
            for p, lost in zip(self.params, self.lost, strict=True):
                if p.grad is None:
                    continue
                update = self.lr * p.grad.float()
                change = lost.float() - update
                new = (p.float() + change).bfloat16()
                arrived = new.float() - p.float()
                lost.copy_(change - arrived)
                p.copy_(new)


LR, STEPS = 2.0**-6, 40
SIZES = {
    "the weights near 1": 1.0,
    "the weights near 1e-7": 2.0**-23,
    "the weights used at the last step only": 1.0,
}
SIGNS = torch.tensor([[1, -1, 1], [-1, 1, 1]])
BYTES = "the bytes kept a number"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Updates of up to half an ulp, in steps of ulp / 256, so that bf16 holds change, sum and loss;
    one at the end is two ulps.

    Parameters come as an iterator first, then as a list.
    """

    def grid(low: int, high: int) -> Tensor:
        return torch.tensor([draw.randint(low, high) for _ in range(6)]).view(2, 3).double()

    for kind in ("an iterator", "a list"):
        params = {
            what: nn.Parameter((grid(170, 210) / 128 * size).bfloat16())
            for what, size in SIZES.items()
        }
        near_1, _, unused = params.values()
        start = unused.detach().clone()
        given: Any = iter(params.values()) if kind == "an iterator" else list(params.values())
        optimizer = call_answer(answer, "at `KahanSGD(params, lr)`", given, LR)
        if not callable(getattr(optimizer, "step", None)):
            raise Wrong("`KahanSGD(params, lr)` has no method `step()`")
        for number in range(1, STEPS + 1):
            for what, p in params.items():  # lr times it is a multiple of ulp / 256
                p.grad = (grid(1, 127) * SIGNS * 2.0**-9 * SIZES[what]).bfloat16()
            if number < STEPS:
                unused.grad = None
            else:
                unused.grad = SIGNS.bfloat16()  # moves weights by two ulps
            if number == 9:
                near_1.grad = None
            before = [None if p.grad is None else p.grad.clone() for p in params.values()]
            case = f"at step {number}, with parameters that come as {kind}"
            call_answer(optimizer.step, case)
            same = alike([p.grad for p in params.values()], before)
            outputs: dict[str, Any] = {
                f"the dtype of {what}": str(p.dtype).removeprefix("torch.")
                for what, p in params.items()
            }
            outputs |= {what: p.detach().double() for what, p in params.items()}
            outputs["the gradients"] = "unchanged" if same else "changed"
            moves = alike([unused.detach()], [start])
            yield Case(case, outputs, evidence={"large updates": moves})

        known = [*params.values(), *(p.grad for p in params.values() if p.grad is not None)]
        ours = {one.untyped_storage().data_ptr() for one in known}
        kept = [  # a step count, or lr, does not matter
            one
            for one in held_tensors(optimizer, *params.values())
            if one.numel() > 1 and one.untyped_storage().data_ptr() not in ours
        ]
        each = bytes_of(kept) / sum(p.numel() for p in params.values())
        largest = max((float(one.detach().abs().max()) for one in kept), default=-1.0)
        what = "losses" if largest > 0 else "zeros" if kept else "nothing"
        what = "weights" if largest > 0.5 else what
        yield Case("", {BYTES: "at most 2" if each <= 2 else each}, evidence={"what is kept": what})


PARAMS = "self.params = list(params)"
LOST = "self.lost: Any = [torch.zeros_like(p) for p in self.params]"
ZIP = "for p, lost in zip(self.params, self.lost, strict=True):"
UPDATE = "update = self.lr * p.grad.float()"
CHANGE = "change = lost.float() - update"
NEW = "new = (p.float() + change).bfloat16()"
ARRIVED = "arrived = new.float() - p.float()"
REMEMBER = "lost.copy_(change - arrived)"
COPY = "p.copy_(new)"

mistakes = [
    Mistake(
        "plain SGD",
        "updates below half an ulp are lost, and nothing is kept of them. Keep what rounding takes "
        "away in a buffer, and add it to the next change",
        edits={
            LOST: "self.lost = [0.0] * len(self.params)",
            CHANGE: "change = -update",
            REMEMBER: "pass",
        },
        violates="that loses no small update",
    ),
    Mistake(
        "never used",
        "what is lost is computed, but does not reach the next change. Either it is not added, or "
        "the buffer is reset first",
        edits={CHANGE: "change = -update"},
        violates="into the next step",
    ),
    Mistake(
        "reset at each step",
        "the buffer is 0 after each step, so nothing reaches the next one. Is it reset, is what "
        "was lost assigned to a name instead of copied (`lost.copy_(…)`), or is it computed all in "
        "bf16, or from a sum that is not yet rounded?",
        edits={REMEMBER: "lost.zero_()"},
    ),
    Mistake(
        "the wrong sign",
        "what was lost comes back with the wrong sign, so each loss counts twice. Add what is "
        "lost, which is the change that you want minus the one that arrived",
        edits={CHANGE: "change = -lost.float() - update"},
    ),
    Mistake(
        "after the copy",
        "what arrived is computed after the parameter was overwritten, and is 0, so the whole "
        "change counts again. Compute it while p holds the old weight",
        edits={ARRIVED: f"{COPY}\n{ARRIVED}"},
    ),
    Mistake(
        "adds to the buffer",
        "what is lost is added to the buffer, but `change` already includes the old content. "
        "Overwrite it",
        edits={REMEMBER: "lost.add_(change - arrived)"},
    ),
    Mistake(
        "forgets the old loss",
        "the new loss is computed from the update alone. What was lost before is a part of the "
        "change, too, and may be lost again. Write `change - arrived`",
        edits={REMEMBER: "lost.copy_(-update - arrived)"},
    ),
    Mistake(
        "never writes back",
        "the parameters never change: `p = new` only gives another tensor the name. Write the sum "
        "into the parameter with `p.copy_(new)`",
        edits={COPY: "p = new"},
    ),
    Mistake(
        "a buffer in float32",
        "the buffer is in float32, and takes 4 bytes a number. `torch.zeros_like(p)` has the dtype "
        "of p",
        edits={LOST: LOST.replace("(p)", "(p).float()")},
        violates="A buffer in bf16",
    ),
    Mistake(
        "master weights",
        "float32 weights are kept between two steps. They lose nothing, but take 4 bytes a "
        "number. Keep only what rounding to bf16 takes away, in bf16",
        edits={
            LOST: "self.lost = [p.detach().clone().float() for p in self.params]",
            CHANGE: "lost -= update",
            NEW: "new = lost.bfloat16()",
            REMEMBER: "pass",
        },
        violates="no float32 copies between two steps",
    ),
    Mistake(
        "a buffer in fp16",
        "the buffer is in fp16, where what small weights lose becomes 0. `torch.zeros_like(p)` has "
        "the dtype of p",
        edits={LOST: LOST.replace("(p)", "(p).half()")},
    ),
    Mistake(
        "the parameters become float32",
        "the parameters become float32. Round the sum to bf16",
        edits={COPY: "p.data = p.float() + change"},
        violates="which stay bf16",
    ),
    Mistake(
        *families.GOES_UP_THE_GRADIENT,
        edits={CHANGE: "change = lost.float() + update"},
    ),
    Mistake(
        *families.A_GRADIENT_IS_NONE,
        edits={"if p.grad is None:": "if False:"},
        violates="Where a gradient is None",
    ),
    Mistake(
        *families.RETURNS_AT_A_MISSING_GRADIENT,
        edits={"continue": "return"},
        violates="nothing changes",
    ),
    Mistake(
        *families.USED_UP_IN_INIT,
        edits={PARAMS: "self.params = params", ZIP: ZIP.replace("True", "False")},
        violates="any iterable",
    ),
    Mistake(
        *families.USED_UP_BY_THE_FIRST_STEP,
        edits={
            PARAMS: "self.params = params",
            LOST: "self.lost: Any = {}",
            ZIP: "for p in self.params:\n    lost = self.lost.setdefault(p, torch.zeros_like(p))",
        },
    ),
    Mistake(
        "changes the gradients",
        "the gradient is changed or cleared. Make a new tensor, and leave clearing to `zero_grad`",
        edits={UPDATE: "update = p.grad.mul_(self.lr).float()"},
        violates="Gradients stay as they are",
    ),
    Mistake(
        *families.AUTOGRAD_WATCHES,
        edits={"with torch.no_grad():": "if True:"},
    ),
]

kahan_sgd = Exercise(
    card,
    KahanSGD,
    cases,
    mistakes,
    messages={
        "the gradients": "{case}, the gradients are changed. `step()` has to leave them alone",
        BYTES: "what the optimizer keeps between two steps takes {got} bytes a number. A buffer "
        "in bf16 takes 2",
    },
)
