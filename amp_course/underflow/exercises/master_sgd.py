"""Exercise 5 of chapter 02: SGD on float32 copies, against updates that float32 holds exactly."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, alike, call_answer

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
    "or bf16, even mixed, and stay so, and trainable; updates are made on copies in float32 (or "
    "wider) that live as long as the optimizer does. Where a gradient is None, nothing changes. "
    "The gradients stay as they are: clearing them is not the job of `step()`.",
    hints=(
        "What has to survive from one step to the next, and in which dtype?",
        "`__init__` keeps `list(params)` and one master for each: `p.detach().clone().float()`. "
        "`step` runs under `@torch.no_grad()` and leaves out parameters whose gradient is None.",
        "For each pair: `master -= self.lr * p.grad.float()`, then `p.copy_(master)`, which "
        "rounds to the parameter's dtype.",
    ),
    why="AMP does this without saying so: the parameters you own are the float32 masters, and "
    "autocast makes the copies.",
    alternative="a subclass of `torch.optim.Optimizer` with the masters in `self.state`, as "
    "`amp_course.underflow.MasterSGD` is; beware that torch casts state to the parameter's dtype "
    "when it loads a state_dict.",
)


class MasterSGD:
    """The right answer."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.masters = [p.detach().clone().float() for p in self.params]

    @torch.no_grad()
    def step(self) -> None:
        for p, master in zip(self.params, self.masters, strict=True):
            if p.grad is None:
                continue
            update = self.lr * p.grad.float()
            master -= update
            p.copy_(master)


KINDS = ((torch.float16, 10, "in fp16"), (torch.bfloat16, 7, "in bf16 and fp16"))
STEPS, SIZES = (
    24,
    {1: 64, 5: 4, 6: 4, 13: 64, 24: 64},
)  # two of size 4 tell who keeps half of each remainder
NOTES = {
    9: ", where a gradient is None again",
    **dict.fromkeys((1, 13, 24), ", where the gradients are large"),
}
NEAR_1, UNUSED, TINY = (
    "the weights near 1",
    "the weights used at the last step only",
    "the weights near 0.0004",
)


def make(answer: Callable[..., Any], params: Iterable[nn.Parameter], lr: float) -> Any:
    optimizer = call_answer(answer, "at `MasterSGD(params, lr)`", params, lr)
    if not callable(getattr(optimizer, "step", None)):
        raise Wrong("`MasterSGD(params, lr)` has no method `step()`")
    return optimizer


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Small updates and large ones, such that float32 rounds none: a right answer has the same
    bits, however it computes.

    Parameters come as an iterator first, then as a list. One has a gradient before the optimizer is
    made, one has none at step 9, and one gets its first at the last step: in bf16 it is too large
    for fp16.
    """
    pair = [
        nn.Parameter(torch.full((2, 2), weight, dtype=torch.bfloat16)) for weight in (64.0, 1.0)
    ]
    for number, optimizer in enumerate([make(answer, [p], 2**-26 / 3) for p in pair]):
        pair[number].grad = (
            torch.tensor([[3.0 - 2 * number, -1], [0, 0]], dtype=torch.bfloat16) * 2**26
        )
        call_answer(optimizer.step, "at the first step of two optimizers")
    yield Case(
        "", {"masters": "shared" if pair[0][1, 0] == 1 or pair[1][1, 0] == 64 else "their own"}
    )

    for dtype, digits, kind in KINDS:
        lr, top = 3 * 2.0 ** -(digits + 5), 2**digits - 1

        def row(first: int, low: int, high: int) -> Tensor:
            return torch.tensor(
                [first, *(draw.randint(low, high) for _ in range(3))], dtype=torch.float64
            )

        weights = {
            what: 1 + row(top // 2 + 1, 0, top) / (top + 1) for what in (NEAR_1, UNUSED, TINY)
        }
        params = {what: nn.Parameter(one.to(dtype)) for what, one in weights.items()}
        params[TINY] = nn.Parameter((weights[TINY] * 2.0**-12).half())
        params[NEAR_1].grad = torch.ones_like(params[NEAR_1])
        given = iter(params.values()) if dtype == torch.float16 else list(params.values())
        optimizer = make(answer, given, lr)
        for number in range(1, STEPS + 1):
            size, last = SIZES.get(number, 1), 64.0 if dtype == torch.float16 else 2.0**27
            params[NEAR_1].grad = (row(120, 65, 127) * size / 128).to(dtype)
            tiny = (row(139, 86, 170) * size / 2**19).half()  # 139: lr times it is rounded to a tie
            params[TINY].grad = None if number == 9 else tiny
            params[UNUSED].grad = torch.full((4,), last, dtype=dtype) if number == STEPS else None
            before = [None if p.grad is None else p.grad.clone() for p in params.values()]
            case = f"at step {number} {kind}{NOTES.get(number, '')}"
            call_answer(optimizer.step, case)
            kept = "unchanged" if alike([p.grad for p in params.values()], before) else "changed"
            dtypes = {
                f"the dtype of {what}": str(p.dtype).removeprefix("torch.")
                for what, p in params.items()
            }
            values = {what: p.detach().double() for what, p in params.items()}
            trainable = {
                "`requires_grad`": [p.requires_grad and p.is_leaf for p in params.values()]
            }
            yield Case(case, {**dtypes, **values, "the gradients": kept, **trainable})
    case = "at a step with `lr` = 5e-9, where one gradient adds up to 0"
    yield Case(case, {"the weights": [p.detach().double() for p in pair]})


KEEP, MASTERS = (
    "self.params = list(params)",
    "self.masters = [p.detach().clone().float() for p in self.params]",
)
PAIRS = "zip(self.params, self.masters, strict=True)"
NO_GRAD, ZIP = "@torch.no_grad()", f"for p, master in {PAIRS}:"
IF, CONTINUE = "if p.grad is None:", "continue"
AT_FIRST = (
    "for p in self.params:\n    master = self.masters.setdefault(p, p.detach().clone().float())"
)
STALE = "master.grad = master.grad if p.grad is None else p.grad.float()\nif master.grad is None:"
SAID = {
    "masters": "two optimizers share their masters: make these in `__init__`, as an attribute of "
    "`self` and not of the class",
    "`requires_grad`": "{case}, a parameter is no longer trainable, so the next `backward()` "
    "gives it no gradient: leave `requires_grad` on, and change parameters under `torch.no_grad()`",
    "the gradients": "{case}, the gradients are changed or cleared: `step()` has to leave them as "
    "they are",
}
PRODUCT, UPDATE, COPY = "update = self.lr * p.grad.float()", "master -= update", "p.copy_(master)"

mistakes = [
    Mistake(
        "keeps no fp32 copy between steps",
        "what rounding to 16 bits takes away in one step is missing in the next, as if every step "
        "started from the parameters. Make float32 copies once, in `__init__`, and never write a "
        "rounded parameter back into them",
        edits={UPDATE: "master = p.float() - update"},
        violates="copies in float32 (or wider) that live as long as the optimizer does",
    ),
    Mistake(
        "a new tensor at each step",
        "each step starts from the first weights. `master = master - …` makes a new tensor, and a "
        "list keeps the old one: use `master -= …`, or put the new one into the list",
        edits={UPDATE: "master = master - update"},
    ),
    Mistake(
        "plain SGD",
        "each update is added to the 16-bit parameter itself, and small ones are lost: update a "
        "float32 copy, made in `__init__`, and copy the whole of it into the parameter "
        "(`p.copy_(master)`), not just the change",
        edits={PRODUCT: "update = self.lr * p.grad", UPDATE: "pass", COPY: "p -= update"},
        violates="updates are made on copies",
    ),
    Mistake(
        "the product in 16 bits",
        "the product `lr * gradient` is rounded to 16 bits: compute it from `p.grad.float()`, all "
        "in float32",
        edits={PRODUCT: "update = self.lr * p.grad"},
    ),
    Mistake(
        "the first one's dtype for all",
        "a parameter changes its dtype where dtypes are mixed: `p.copy_(master)` rounds to each "
        "parameter's own",
        edits={COPY: "p.data = master.to(self.params[0].dtype)"},
        violates="even mixed",
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
        "nothing moves after the first step if `params` is an iterator: it can be read only once. "
        "Keep a list",
        edits={KEEP: "self.params = params", MASTERS: "self.masters = {}", ZIP: AT_FIRST},
    ),
    Mistake(
        "keeps what `zip` gives",
        "nothing moves after the first step. Is an iterator kept, such as `zip(…)`? It can be "
        "read only once",
        edits={MASTERS: f"{MASTERS}\nself.all = {PAIRS}", ZIP: "for p, master in self.all:"},
    ),
    Mistake(
        "those with a gradient at first",
        "what has no gradient when the masters are made never changes: its first may come later. "
        "Keep them all",
        edits={KEEP: "self.params = [p for p in params if p.grad is not None]"},
    ),
    Mistake(
        "never writes back",
        "the parameters never change: `step()` has to update each master and write it into the "
        "parameter itself, `p.copy_(master)`",
        edits={COPY: "pass"},
    ),
    Mistake(
        "writes back first",
        "the parameters are one step behind: write each master into its parameter after the "
        "update, not before it",
        edits={UPDATE: "p.copy_(master)", COPY: "master -= update"},
    ),
    Mistake(
        "the parameter becomes float32",
        "the parameters become float32: `p.copy_(master)` rounds to the parameter's own dtype",
        edits={COPY: "p.data = master.clone()"},
        violates="and stay so",
    ),
    Mistake(
        "goes up the gradient",
        "the step goes up the gradient: subtract `lr * gradient`",
        edits={UPDATE: "master += update"},
    ),
    Mistake(
        "a gradient is None",
        "the step fails at a gradient that is None, such as that of an unused layer: leave that "
        "parameter out",
        edits={IF: "if False:"},
        violates="Where a gradient is None",
    ),
    Mistake(
        "an old gradient",
        "where a gradient is None, the one before it is used again: set the master's gradient to "
        "None there too",
        edits={IF: STALE, PRODUCT: "update = self.lr * master.grad"},
    ),
    Mistake(
        "returns at a missing gradient",
        "the step ends at the first parameter without a gradient: pass over that one alone, with "
        "`continue`",
        edits={CONTINUE: "return"},
        violates="nothing changes",
    ),
    Mistake(
        "freezes the parameters",
        "the parameters do not require gradients after the step, so the next `backward()` gives "
        "them none: change them under `@torch.no_grad()` instead",
        edits={NO_GRAD: "", COPY: "p.requires_grad_(False).copy_(master)"},
        violates="trainable",
    ),
    Mistake(
        "autograd watches",
        "a parameter was changed in place while autograd was recording: write `@torch.no_grad()` "
        "above `step`",
        edits={NO_GRAD: ""},
    ),
]

master_sgd = Exercise(card, MasterSGD, cases, mistakes, messages=SAID)
