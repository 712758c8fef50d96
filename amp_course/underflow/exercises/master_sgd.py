"""Exercise 5 of chapter 02: SGD on float32 copies, with updates that float32 holds exactly."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, alike, call_answer, families
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="underflow",
    name="master_sgd",
    number=5,
    title="SGD with master weights",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=9,
    task="Write the class `MasterSGD(params, lr)` with a method `step()`, and check it: "
    "`exercises.master_sgd.check(MasterSGD)`. The parameters come as any iterable. They are fp16 "
    "or bf16, even mixed, and have to keep their dtype and stay trainable. Updates are made on "
    "copies in float32 (or wider) that live as long as the optimizer does. Where a gradient is "
    "None, nothing changes. `step()` leaves the gradients as they are, and does not clear them.",
    hints=(
        "What has to be kept from one step to the next, and in which dtype?",
        "`__init__` keeps `list(params)` and one master for each: `p.detach().clone().float()`. "
        "`step` runs under `torch.no_grad()` and skips parameters whose gradient is None.",
        "For each pair: `master -= self.lr * p.grad.float()`, then `p.copy_(master)`, which "
        "rounds to the parameter's dtype.",
    ),
    why="AMP does this silently: your parameters are the float32 masters, and autocast makes the "
    "copies.",
    alternative="a subclass of `torch.optim.Optimizer` with the masters in `self.state`, like "
    "`amp_course.underflow.MasterSGD`. Note that torch casts state to the parameter's dtype when "
    "it loads a state_dict.",
)


class MasterSGD:
    """SGD with float32 master weights."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.masters = [p.detach().clone().float() for p in self.params]

    def step(self) -> None:
        with torch.no_grad():
            for p, master in zip(self.params, self.masters, strict=True):
                if p.grad is None:
                    continue
                update = self.lr * p.grad.float()
                master -= update
                p.copy_(master)


NEAR_1, UNUSED, TINY = (
    "the weights near 1",
    "the weights used at the last step only",
    "the weights near 0.0004",
)
STEPS = 24
SIZES = {1: 64, 5: 4, 6: 4, 13: 64, 24: 64}  # two of 4 in a row reveal half a remainder


def make(answer: Callable[..., Any], params: Iterable[nn.Parameter], lr: float) -> Any:
    optimizer = call_answer(answer, "at `MasterSGD(params, lr)`", params, lr)
    if not callable(getattr(optimizer, "step", None)):
        raise Wrong("`MasterSGD(params, lr)` has no method `step()`")
    return optimizer


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Small and large updates that float32 never rounds, so all right answers have the same bits.

    Parameters come as an iterator first, then as a list. One has a gradient before the optimizer is
    made, one has none at step 9, and one gets its first at the last step: in bf16, this gradient is
    too large for fp16.
    """
    pair = [nn.Parameter(torch.full((2, 2), weight).bfloat16()) for weight in (64.0, 1.0)]
    optimizers = [make(answer, [p], 2**-26 / 3) for p in pair]
    for p, optimizer, first in zip(pair, optimizers, (3.0, 1.0), strict=True):
        p.grad = torch.tensor([[first, -1], [0, 0]]).bfloat16() * 2**26
        call_answer(optimizer.step, "at the first step of two optimizers")
    shared = pair[0][1, 0] == 1 or pair[1][1, 0] == 64
    yield Case("", {"masters": "shared" if shared else "their own"})

    for dtype, digits, last, kind in (
        (torch.float16, 10, 64.0, "in fp16"),
        (torch.bfloat16, 7, 2.0**27, "in bf16 and fp16"),
    ):
        lr, top = 3 * 2.0 ** -(digits + 5), 2**digits - 1

        def row(first: int, low: int, high: int) -> Tensor:
            numbers = [first, *(draw.randint(low, high) for _ in range(3))]
            return torch.tensor(numbers, dtype=torch.float64)

        weights = [1 + row(top // 2 + 1, 0, top) / (top + 1) for _ in range(3)]
        params = {
            NEAR_1: nn.Parameter(weights[0].to(dtype)),
            UNUSED: nn.Parameter(weights[1].to(dtype)),
            TINY: nn.Parameter((weights[2] * 2.0**-12).half()),
        }
        params[NEAR_1].grad = torch.ones_like(params[NEAR_1])
        given = iter(params.values()) if dtype == torch.float16 else list(params.values())
        optimizer = make(answer, given, lr)
        for number in range(1, STEPS + 1):
            size = SIZES.get(number, 1)
            params[NEAR_1].grad = (row(120, 65, 127) * size / 128).to(dtype)
            tiny = (row(139, 86, 170) * size / 2**19).half()  # lr times 139 is rounded to a tie
            params[TINY].grad = None if number == 9 else tiny
            params[UNUSED].grad = torch.full((4,), last, dtype=dtype) if number == STEPS else None
            before = [None if p.grad is None else p.grad.clone() for p in params.values()]
            case = f"at step {number} {kind}"
            case += ", where a gradient is None again" if number == 9 else ""
            case += ", where the gradients are large" if size == 64 else ""
            call_answer(optimizer.step, case)
            kept = alike([p.grad for p in params.values()], before)
            outputs: dict[str, Any] = {
                f"the dtype of {what}": dtype_name(p.dtype) for what, p in params.items()
            }
            outputs |= {what: p.detach().double() for what, p in params.items()}
            outputs["the gradients"] = "unchanged" if kept else "changed"
            outputs["`requires_grad`"] = [p.requires_grad and p.is_leaf for p in params.values()]
            yield Case(case, outputs)
    case = "at a step with `lr` = 5e-9, where one gradient adds up to 0"
    yield Case(case, {"the weights": [p.detach().double() for p in pair]})


KEEP = "self.params = list(params)"
MASTERS = "self.masters = [p.detach().clone().float() for p in self.params]"
PAIRS = "zip(self.params, self.masters, strict=True)"
NO_GRAD, ZIP = "with torch.no_grad():", f"for p, master in {PAIRS}:"
IF, CONTINUE = "if p.grad is None:", "continue"
PRODUCT, UPDATE, COPY = "update = self.lr * p.grad.float()", "master -= update", "p.copy_(master)"

mistakes = [
    Mistake(
        "keeps no fp32 copy between steps",
        "what rounding to 16 bits cuts off in one step is missing in the next, as if every step "
        "started from the parameters. Make float32 copies once, in `__init__`, and never write a "
        "rounded parameter back into them",
        edits={UPDATE: "master = p.float() - update"},
        violates="copies in float32 (or wider) that live as long as the optimizer does",
    ),
    Mistake(
        "a new tensor at each step",
        "each step starts from the first weights. `master = master - …` makes a new tensor, but a "
        "list keeps the old one: use `master -= …`, or put the new one into the list",
        edits={UPDATE: "master = master - update"},
    ),
    Mistake(
        "plain SGD",
        "each update is added to the 16-bit parameter itself, so small ones are lost: update a "
        "float32 copy, made in `__init__`, and copy all of it into the parameter with "
        "`p.copy_(master)`",
        edits={PRODUCT: "update = self.lr * p.grad", UPDATE: "pass", COPY: "p -= update"},
        violates="Updates are made on copies",
    ),
    Mistake(
        "the product in 16 bits",
        "the product `lr * gradient` is rounded to 16 bits: compute it in float32, from "
        "`p.grad.float()`",
        edits={PRODUCT: "update = self.lr * p.grad"},
    ),
    Mistake(
        "the first one's dtype for all",
        "a parameter changes its dtype if dtypes are mixed: use `p.copy_(master)`, which rounds to "
        "the parameter's own",
        edits={COPY: "p.data = master.to(self.params[0].dtype)"},
        violates="even mixed",
    ),
    Mistake(
        *families.USED_UP_IN_INIT,
        edits={KEEP: "self.params = params", ZIP: ZIP.replace("True", "False")},
        violates="any iterable",
    ),
    Mistake(
        *families.USED_UP_BY_THE_FIRST_STEP,
        edits={
            KEEP: "self.params = params",
            MASTERS: "self.masters = {}",
            ZIP: "for p in self.params:\n"
            "    master = self.masters.setdefault(p, p.detach().clone().float())",
        },
    ),
    Mistake(
        "keeps what `zip` gives",
        "nothing changes after the first step. Do you keep an iterator, such as `zip(…)`? It can "
        "be read only once",
        edits={MASTERS: f"{MASTERS}\nself.all = {PAIRS}", ZIP: "for p, master in self.all:"},
    ),
    Mistake(
        "those with a gradient at first",
        "a parameter without a gradient at the start never changes, but it may get one later: keep "
        "all parameters",
        edits={KEEP: "self.params = [p for p in params if p.grad is not None]"},
    ),
    Mistake(
        "never writes back",
        "the parameters never change: in `step()`, update each master and write it into the "
        "parameter with `p.copy_(master)`",
        edits={COPY: "pass"},
    ),
    Mistake(
        "writes back first",
        "the parameters are one step behind: write each master into its parameter after the "
        "update, not before",
        edits={UPDATE: COPY, COPY: UPDATE},
    ),
    Mistake(
        "the parameters become float32",
        "the parameters become float32: use `p.copy_(master)`, which rounds to the parameter's "
        "own dtype",
        edits={COPY: "p.data = master.clone()"},
        violates="have to keep their dtype",
    ),
    Mistake(
        *families.GOES_UP_THE_GRADIENT,
        edits={UPDATE: "master += update"},
    ),
    Mistake(
        *families.A_GRADIENT_IS_NONE,
        edits={IF: "if False:"},
        violates="Where a gradient is None",
    ),
    Mistake(
        "an old gradient",
        "where a gradient is None, the previous one is used again: set the master's gradient to "
        "None too",
        edits={
            IF: "master.grad = master.grad if p.grad is None else p.grad.float()\n"
            "if master.grad is None:",
            PRODUCT: "update = self.lr * master.grad",
        },
    ),
    Mistake(
        *families.RETURNS_AT_A_MISSING_GRADIENT,
        edits={CONTINUE: "return"},
        violates="nothing changes",
    ),
    Mistake(
        "freezes the parameters",
        "the parameters no longer require gradients after the step, so the next `backward()` gives "
        "them none: change them under `torch.no_grad()` instead",
        edits={NO_GRAD: "if True:", COPY: "p.requires_grad_(False).copy_(master)"},
        violates="stay trainable",
    ),
    Mistake(
        *families.AUTOGRAD_WATCHES,
        edits={NO_GRAD: "if True:"},
    ),
]

master_sgd = Exercise(
    card,
    MasterSGD,
    cases,
    mistakes,
    messages={
        "masters": "two optimizers share their masters: make them in `__init__`, as an attribute "
        "of `self`, not of the class",
        "`requires_grad`": "{case}, a parameter is no longer trainable, so the next `backward()` "
        "gives it no gradient: leave `requires_grad` on, and change parameters under "
        "`torch.no_grad()`",
        "the gradients": "{case}, the gradients are changed or cleared: `step()` has to leave them "
        "as they are",
    },
)
