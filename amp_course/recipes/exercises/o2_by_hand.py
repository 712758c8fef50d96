"""Exercise 1 of chapter 08: train an fp16 model through float32 masters."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_bool
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.scene import flat

card = Card(
    chapter="recipes",
    name="o2_by_hand",
    number=1,
    title="O2 by hand",
    difficulty=4,
    importance=4,
    minutes=20,
    lines=18,
    task="Do O2 by hand: write the class `HalfTrainer` and pass it to "
    "`exercises.o2_by_hand.check`. It turns the model into fp16 and gives float32 masters to the "
    "optimizer. Its `step` computes the loss in float32, scales it, unscales the gradients into "
    "the masters, skips the update if any gradient is inf or NaN, and copies the masters back. It "
    "returns True if the step was taken and False if it was skipped.",
    hints=(
        "There are two sets of weights. Which one does the forward pass use, and which one does "
        "the optimizer know?",
        "`__init__`: `model.half()`, then `[p.detach().float() for p in model.parameters()]` for "
        "`make_optimizer`. `step`: the loss from `model(inputs.half()).float()`, then `(loss * "
        "scale).backward()`.",
        "If all `p.grad` are finite: `master.grad = p.grad.float() / scale` for each pair, "
        "`self.optimizer.step()`, and `p.copy_(master)` under `torch.no_grad()`. Skipped or not: "
        "`self.model.zero_grad()`.",
    ),
    why="This is Apex's O2. The masters are the real weights; the model's are a rounded copy. "
    "Paddle's O2 has masters too, but divides in fp16 unless you ask for `master_grad=True`, so "
    "it loses the smallest gradients on the way back.",
    alternative="make the masters before `half()`, so that they start unrounded. Apex makes them "
    "after it.",
)


class HalfTrainer:
    """The right answer."""

    def __init__(self, model: Any, make_optimizer: Any) -> None:
        self.model = model.half()
        self.masters = [p.detach().float() for p in model.parameters()]
        self.optimizer = make_optimizer(self.masters)

    def step(self, inputs: Tensor, targets: Tensor, loss_fn: Any, scale: float) -> bool:
        loss = loss_fn(self.model(inputs.half()).float(), targets)
        (loss * scale).backward()
        pairs = list(zip(self.model.parameters(), self.masters, strict=True))
        finite = all(p.grad.isfinite().all() for p, _ in pairs)
        if finite:
            for p, master in pairs:
                master.grad = p.grad.float() / scale
            self.optimizer.step()
            with torch.no_grad():
                for p, master in pairs:
                    p.copy_(master)
        self.model.zero_grad()
        return finite


def batch_of(
    number: int, draw: random.Random, generator: torch.Generator
) -> tuple[str, Tensor, Tensor, float]:
    """Return a step's case, inputs, targets and scale.
    Small inputs make gradients that are lost if nothing is scaled.
    """
    inputs = torch.randn(8, 16, generator=generator)
    targets = torch.randint(1, 9, (8, 5), generator=generator) / 8
    inputs[:, 8:] *= 2.0**-22
    scale = 2.0 ** draw.randint(6, 8)
    targets[:, 4] *= number > 0  # so that gradients that are not cleared do not overflow at step 2
    what = "with a scale of {scale:,.0f}"
    if number == 1:  # each gradient fits in fp16, but neither their norm nor their sum does
        inputs[:, :8], targets, scale = 1.0, torch.full((8, 5), 32.0), 2048.0
        targets[:, 4], targets[0, 4] = 128.0, 127.5
        what += ", where gradients reach 65,504 and are finite"
    elif number == 2:
        inputs[0, 0] = torch.nan
        what = "whose inputs hold NaN"
    elif number == 3:  # a scale beyond fp16
        targets, scale = targets / 64, 2.0**16
    elif number == 4:  # each gradient of an output fits, but their sum does not
        inputs, targets, scale = inputs * 0, torch.full((8, 5), 32.0), 2.0**15
        what = "where only gradients of the bias overflow, to inf"
    elif number == 5:
        inputs[0, 0], targets = 60000.0, torch.full((8, 5), -8.0)
        what = "where only gradients of the weight overflow, to -inf"
    return what.format(scale=scale), inputs, targets, scale


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train a model, then take one step with a second trainer and model."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    yield from _train(answer, draw, generator, steps=7)
    which = " of a second `HalfTrainer`, for another model"
    yield from _train(answer, draw, generator, steps=1, which=which)


NO_GRADIENT = "the number of masters without a gradient"


def _train(
    answer: Any, draw: random.Random, generator: torch.Generator, steps: int, which: str = ""
) -> Iterator[Case]:
    # Of a Linear, the first gradient can overflow alone, and so can the last.
    model = nn.Sequential(nn.Linear(16, 5))
    began, used, masters, missing = list[float](), list[Tensor](), list[Tensor](), list[int]()
    model.register_buffer("mean_loss", torch.zeros(()))
    for p in model.parameters():  # fp16 numbers: masters are the same before and after `half()`
        p.data = (torch.rand(p.shape, generator=generator) - 0.5).half().float()

    def before_step(*_: Any) -> None:
        missing.append(sum(m.grad is None for m in masters))
        used.append(flat(m * 0 if m.grad is None else m.grad for m in masters))

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        # Powers of two make any order exact.
        sgd = torch.optim.SGD(parameters, lr=2.0**-7, momentum=0.5)
        sgd.register_step_pre_hook(before_step)
        masters[:] = [p for group in sgd.param_groups for p in group["params"]]
        masters.sort(key=lambda m: -m.numel())
        return sgd

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = ((outputs + 1) * targets.to(outputs.dtype)).sum() / 32  # exact in fp16 as well
        if loss.requires_grad:
            loss.register_hook(lambda gradient: began.append(gradient.item()))
        return loss

    def names(tensors: Any) -> str:
        return " and ".join(sorted({dtype_name(one.dtype) for one in tensors}))

    def weights() -> dict[str, Any]:
        own = [*model.parameters()]
        return {
            "the dtype of the model's weights": names(own),
            "the dtype of the model's buffer `mean_loss`": names([model.get_buffer("mean_loss")]),
            "the number of weights that the optimizer updates": sum(m.numel() for m in masters),
            "the number of tensors that the optimizer shares with the model": sum(
                m is p for m in masters for p in own
            ),
            "the dtype of the masters": names(masters),
            "the model's mode": "training" if model.training else "evaluation",
        }

    trainer = call_answer(answer, "in `HalfTrainer(model, make_optimizer)`", model, make_optimizer)
    yield Case(f"before the first step{which}", weights())
    if list(weights().values()) != ["float16", "float16", 85, 0, "float32", "training"]:
        return  # whatever follows is only a consequence
    for number in range(steps):
        what, inputs, targets, scale = batch_of(number, draw, generator)
        case, began[:], used[:], missing[:] = f"at step {number + 1}{which}, {what}", [], [], []
        got = call_answer(trainer.step, case, inputs, targets, loss_fn, scale)
        taken = read_bool(got, case, subject="`step` returned")
        now, own = flat(masters), flat(model.parameters())
        outputs = weights()
        if "scale" in what:
            outputs["the scale of the loss in `backward()`"] = sum(began)
        outputs |= {
            "the number of optimizer steps": len(used),
            NO_GRADIENT: sum(missing),
            "the masters' gradient at the step": [*used],
            "the masters' gradients for the inputs of about 2^-22": [
                one[:80].view(5, 16)[:, 8:] for one in used
            ],
            "the masters after the step": now,
            "the number of model weights that differ from their rounded masters": int(
                (own != now.half()).sum()
            ),
            "what `step` returns": taken,
        }
        evidence = {"masters that are inf or NaN": int((~now.isfinite()).sum())}
        yield Case(case, outputs, evidence=evidence)


HALF, BACKWARD = "self.model = model.half()", "(loss * scale).backward()"
FINITE = "finite = all(p.grad.isfinite().all() for p, _ in pairs)"
UNSCALE, CLEAR = "master.grad = p.grad.float() / scale", "self.model.zero_grad()"

mistakes = [
    Mistake(
        "steps the half weights",
        "the optimizer updates the half weights, which lose small updates. Give it a float32 copy "
        "of each",
        edits={
            "self.masters = [p.detach().float() for p in model.parameters()]": "self.masters = "
            "list(model.parameters())",
            UNSCALE: "p.grad /= scale",
        },
    ),
    Mistake(
        "buffers left in float32",
        "the model's weights were cast, and its buffers were not. Call `model.half()`, which casts "
        "both",
        edits={
            HALF: "self.model = model\nfor p in model.parameters():\n    p.data = p.data.half()"
        },
        violates="turns the model into fp16",
    ),
    Mistake(
        *families.PLAIN_LOSS,
        edits={BACKWARD: "loss.backward()"},
        violates="scales it",
    ),
    Mistake(
        "loss in fp16",
        "the loss or its scale is in fp16, where 65,536 is inf. Compute both in float32, from "
        "`self.model(…).float()` on",
        edits={BACKWARD: "(loss.half() * scale).backward()"},
        violates="the loss in float32",
    ),
    *(
        Mistake(
            name,
            "the gradients were not divided by the scale. Do that in float32",
            edits={UNSCALE: f"master.grad = p.grad.float(){times}"},
            violates="unscales the gradients",
        )
        for name, times in (("not unscaled", ""), ("multiplies by the scale", " * scale"))
    ),
    Mistake(
        "unscaled in fp16",
        "the gradients were divided in fp16, which loses the small ones. Cast first: "
        "`p.grad.float() / scale`",
        edits={UNSCALE: "master.grad = (p.grad / scale).float()"},
    ),
    Mistake(
        "not cleared after a skipped step",
        "after a skipped step, later ones are skipped too. Clear the model's gradients in each "
        "step, and keep no flag from step to step",
        edits={CLEAR: f"if finite:\n    {CLEAR}"},
    ),
    Mistake(
        "model's gradients never cleared",
        "the model's gradients add up. Call `self.model.zero_grad()`; the optimizer's `zero_grad` "
        "clears only the masters",
        edits={CLEAR: "self.optimizer.zero_grad()"},
    ),
    Mistake(
        "not cleared after a step that is taken",
        "gradients of a step that was taken are added to those of the next. Clear them in each",
        edits={CLEAR: f"if not finite:\n    {CLEAR}"},
    ),
    Mistake(
        "masters' gradients add up",
        "the masters' gradients add up from step to step. Assign `master.grad` at each step, or "
        "clear it",
        edits={UNSCALE: f"old = master.grad\n{UNSCALE} + (0 if old is None else old)"},
    ),
    Mistake(
        "masters keep their first gradient",
        "the masters keep their first gradient. Do you loop over a `zip` made in `__init__`? It is "
        "empty by then",
        edits={UNSCALE: f"{UNSCALE} if master.grad is None else master.grad"},
    ),
    Mistake(
        "never skips",
        "a step was taken with gradients that are inf or NaN. Test every gradient first",
        edits={FINITE: "finite = True"},
        violates="skips the update",
    ),
    Mistake(
        "looks at the loss only",
        "a step was taken although gradients had overflowed. They can where the loss is finite, so "
        "test every `p.grad`",
        edits={FINITE: "finite = bool(loss.isfinite())"},
    ),
    Mistake(
        *families.JUDGES_BY_THE_NORM,
        edits={FINITE: "finite = bool(sum(p.grad.norm() for p, _ in pairs).isfinite())"},
    ),
    *(
        Mistake(
            f"misses {other}",
            f"a step with {found} was skipped, and one with {other} was taken. `torch.isfinite` is "
            "False for both",
            edits={FINITE: f"finite = not any(p.grad.is{found.lower()}().any() for p, _ in pairs)"},
            violates="inf or NaN",
        )
        for found, other in (("NaN", "inf"), ("inf", "NaN"))
    ),
    Mistake(
        "misses −inf",
        "a step with inf was skipped, and one with −inf was taken. `grad.max()` and `== inf` miss "
        "it, so call `isfinite()` on the gradients",
        edits={FINITE: "finite = all(bool(p.grad.max().isfinite()) for p, _ in pairs)"},
    ),
    Mistake(
        "looks at the first gradient only",
        "inf is missed in the bias's gradient. Test all gradients",
        edits={FINITE: "finite = bool(pairs[0][0].grad.isfinite().all())"},
        violates="any gradient",
    ),
    Mistake(
        "no copy back",
        "after the step, the model's weights are not the masters. Copy each one back: "
        "`parameter.copy_(master)`",
        edits={"p.copy_(master)": "pass"},
        violates="copies the masters back",
    ),
    *(
        Mistake(
            f"rounds the masters {when} the step",
            "the masters were overwritten with the model's rounded weights, so small updates are "
            "lost. Copy in one direction only, from the masters to the model",
            edits={line: new},
        )
        for when, line, new in (
            ("after", "p.copy_(master)", "p.copy_(master)\nmaster.copy_(p)"),
            ("before", UNSCALE, f"{UNSCALE}\nmaster.data.copy_(p.data)"),
        )
    ),
    Mistake(
        "float32 weights",
        "after the step the model's weights are in float32. Write `p.copy_(master)`, which keeps "
        "their dtype",
        edits={"p.copy_(master)": "p.data = master"},
    ),
    Mistake(
        "always True",
        "a step that was skipped returned True. Return False, so that the caller can lower the "
        "scale",
        edits={"return finite": "return True"},
        violates="False if it was skipped",
    ),
]

o2_by_hand = Exercise(
    card,
    HalfTrainer,
    cases,
    mistakes,
    tolerance=1e-6,
    messages={
        NO_GRADIENT: "{case}, `grad` is None for {got} of the masters. Does the loop that assigns "
        "it run? A generator like `model.parameters()`, or a `zip`, is empty at its second pass, "
        "so keep a list"
    },
)
