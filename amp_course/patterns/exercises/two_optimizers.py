"""Exercise 2 of chapter 07: two losses and two optimizers that share one scaler."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.observer import Observer
from amp_course.watching.records import Training
from amp_course.watching.scene import flat

card = Card(
    chapter="patterns",
    name="two_optimizers",
    number=2,
    title="Two losses, two optimizers, one scaler",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=11,
    task="Write `two_optimizers(body, heads, inputs, targets, loss_fn, optimizers, scaler)`: one "
    "iteration in fp16 autocast for a body with two heads, each with its own loss. The body runs "
    "once, and its gradient is that of both losses. There are two optimizers and one scaler; one "
    "optimizer's overflow must not stop the other.",
    hints=(
        "Of scale, backward, step, update and zero_grad: which once per loss, which per "
        "optimizer, which per iteration?",
        "Both losses share the body's graph, so the first `backward()` must keep it. They share "
        "the scale, so one `update`.",
        "In the region: features once, then both losses. After it: "
        "`scaler.scale(a).backward(retain_graph=True)`, `scaler.scale(b).backward()`, "
        "`scaler.step` for both, `scaler.update()` once, `zero_grad` for both.",
    ),
    why="Until `update`, the scaler remembers what it found for each optimizer: so each is "
    "skipped for its own gradients.",
    alternative="`scaler.scale(loss_a + loss_b).backward()`: one pass over the body instead of "
    "two, and no graph to retain.",
)


def right(
    body: Any, heads: Any, inputs: Any, targets: Any, loss_fn: Any, optimizers: Any, scaler: Any
) -> None:
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        features = body(inputs)
        losses = [
            loss_fn(head(features), target) for head, target in zip(heads, targets, strict=True)
        ]
    scaler.scale(losses[0]).backward(retain_graph=True)
    scaler.scale(losses[1]).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


# iteration by iteration: the factors of the gradients of the two heads' weights and of the first
# head's output, and the case
CLEAN = (1.0, 1.0, 1.0, "")
SECOND_BAD = (1.0, math.inf, 1.0, ", where the second head's gradient overflows")
FIRST_BAD = (math.nan, 1.0, 1.0, ", where the first head's gradient overflows")
LOSS_BAD = (
    1.0,
    1.0,
    1e6,
    ", where the first head's output overflows, so that its loss is not finite",
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Make seven iterations, three of which overflow in one head, and one of another training.

    After the last two clean ones the scale grows.
    """
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    yield from _train(
        answer, generator, CLEAN, SECOND_BAD, CLEAN, FIRST_BAD, LOSS_BAD, CLEAN, CLEAN
    )
    yield from _train(answer, generator, (1.0, 1.0, 1.0, " of another training"))


def _train(answer: Any, generator: torch.Generator, *iterations: tuple[Any, ...]) -> Iterator[Case]:
    body, heads = nn.Sequential(nn.Linear(12, 8), nn.Tanh()), [nn.Linear(8, 4), nn.Linear(8, 3)]
    parameters = [p for model in (body, *heads) for p in model.parameters()]
    for parameter in parameters:
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    optimizers: list[Any] = [
        torch.optim.SGD(own, lr=0.05, momentum=0.9) for own in (parameters[:4], parameters[4:])
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    factors, runs, outputs, losses = [1.0, 1.0, 1.0], list[str](), list[str](), list[str]()
    body[0].register_forward_hook(
        lambda module, args, output: runs.append(dtype_name(output.dtype))
    )
    for place, head in enumerate(heads):
        head.register_forward_hook(
            lambda module, args, output: outputs.append(dtype_name(output.dtype))
        )
        head.weight.register_hook(lambda gradient, place=place: gradient * factors[place])
    heads[0].register_forward_hook(lambda module, args, output: output * factors[2])

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        losses.append(dtype_name((loss := nn.functional.cross_entropy(output, target)).dtype))
        return loss

    for number, (*factors[:], where) in enumerate(iterations, 1):
        case = f"in iteration {number}{where}"
        runs[:], outputs[:], losses[:] = [], [], []
        inputs = torch.randn(8, 12, generator=generator)
        targets = [torch.randint(0, classes, (8,), generator=generator) for classes in (4, 3)]
        with Observer(Training(lambda: None, [body, *heads], optimizers, [scaler], [])) as observer:
            call_answer(answer, case, body, heads, inputs, targets, loss_fn, optimizers, scaler)
        gradients = [
            [step.gradient.values.clone() for step in observer.update.steps(place)]
            for place in (0, 1)
        ]
        yield Case(
            case,
            {
                "the number of forward passes of the body": len(runs),
                "the dtype that body and heads compute in": " and ".join(sorted({*runs, *outputs})),
                "the dtype that the losses are computed in": " and ".join(sorted({*losses}))
                or "unknown",
                "the dtype of the weights": " and ".join(
                    sorted({dtype_name(p.dtype) for p in parameters})
                ),
                "the number of backward passes in the region": sum(
                    one.in_autocast for one in observer.update.backwards
                ),
                "the number of steps of the two optimizers": [len(own) for own in gradients],
                "the gradient at the first optimizer's step": gradients[0],
                "the gradient at the second optimizer's step": gradients[1],
                "the loss scale after the iteration": scaler.get_scale(),
                "the weights after the iteration": flat(parameters),
            },
            evidence={"gradients": gradients},
        )


REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
LOSSES = (
    "losses = [loss_fn(head(features), target) for head, target in zip(heads, targets, "
    "strict=True)]"
)
FIRST, SECOND = (
    "scaler.scale(losses[0]).backward(retain_graph=True)",
    "scaler.scale(losses[1]).backward()",
)
STEP, UPDATE, CLEAR = "scaler.step(optimizer)", "scaler.update()", "optimizer.zero_grad()"

mistakes = [
    Mistake(
        "runs the body twice",
        "the body ran once for each head: both heads can use the same features",
        edits={
            SECOND: f"{REGION}\n    losses[1] = loss_fn(heads[1](body(inputs)), "
            f"targets[1])\n{SECOND}"
        },
        violates="The body runs once",
    ),
    Mistake(
        "backward inside the region",
        "`backward()` ran inside the autocast region: end the `with` block before it",
        edits={FIRST: f"{REGION}\n    {FIRST}", SECOND: f"{REGION}\n    {SECOND}"},
    ),
    Mistake(
        "frees the graph",
        "the first `backward()` freed the body's graph: pass it `retain_graph=True`, or call it "
        "once, on the sum",
        edits={FIRST: FIRST.replace("retain_graph=True", "")},
    ),
    Mistake(
        "second loss misses the body",
        "the body's gradient lacks the second loss: detach no features, and step only after both "
        "backward passes",
        edits={
            LOSSES: LOSSES.replace(
                "head(features)", "head(features if head is heads[0] else features.detach())"
            )
        },
        violates="its gradient is that of both losses",
    ),
    Mistake(
        "first loss is lost",
        "only the second loss is in the gradients at the step: call `backward()` on both, and "
        "then clear once",
        edits={SECOND: f"optimizers[0].zero_grad()\n{SECOND}"},
    ),
    Mistake(
        "averages the losses",
        "these are the gradients of the mean of the losses: take their sum",
        edits={LOSSES: f"{LOSSES}\nlosses = [loss / 2 for loss in losses]"},
    ),
    Mistake(
        "scales only the first loss",
        "the second loss was not scaled, and the body adds up gradients of two scales: scale both",
        edits={SECOND: "losses[1].backward()"},
    ),
    Mistake(
        "scales no loss",
        "the gradients were divided by the scale once too often: scale both losses, and let only "
        "the scaler divide",
        edits={
            FIRST: "scaler.scale(torch.ones(()))\nlosses[0].backward(retain_graph=True)",
            SECOND: "losses[1].backward()",
        },
    ),
    Mistake(
        "a scaler for each",
        "the second loss has another scale, and the body adds up the gradients of both: use the "
        "one scaler",
        edits={SECOND: "torch.amp.GradScaler('cpu').scale(losses[1]).backward()"},
        violates="one scaler",
    ),
    Mistake(
        "an update for each",
        "`scaler.update()` ran more than once, with a step between: call it once per iteration, "
        "after both steps",
        edits={STEP: f"{STEP}\n{UPDATE}", UPDATE: "pass"},
    ),
    Mistake(
        "no update",
        "`scaler.update()` did not run after the steps: call it once per iteration, after both",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "skips both",
        "one optimizer's overflow stopped the other, too: call `scaler.step` for both, whatever "
        "was found",
        edits={
            STEP: "scaler.unscale_(optimizer)\nif all(p.grad.isfinite().all() for m in (body, "
            "*heads) "
            f"for p in m.parameters()):\n    {STEP}"
        },
        violates="one optimizer's overflow must not stop the other",
    ),
    Mistake(
        "returns at a bad loss",
        "one head's loss was not finite, and no optimizer stepped: go on, and leave the test to "
        "the scaler",
        edits={FIRST: f"if not sum(losses).isfinite():\n    return\n{FIRST}"},
    ),
    Mistake(
        "leaves out a bad loss",
        "a loss that was not finite was left out, and the body stepped on the other: call "
        "`backward()` on both",
        edits={FIRST: f"if losses[0].isfinite():\n    {FIRST}"},
    ),
    Mistake(
        "steps both by hand",
        "`scaler.update()` found no `scaler.step` since the last update: call that for both, then "
        "update once",
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "unscales, own steps",
        "an optimizer stepped on gradients that hold inf or NaN: `unscale_` finds them, and only "
        "`scaler.step` skips because of them. Call `scaler.step` for both, not `optimizer.step()`",
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
    ),
    Mistake(
        "steps the second by hand",
        "the second optimizer applied scaled gradients, and even inf: call `scaler.step` for "
        "both, not `step()`",
        edits={STEP: f"{STEP} if optimizer is optimizers[0] else optimizer.step()"},
    ),
    Mistake(
        "never clears",
        "the gradients of earlier iterations are still in the sum: call `zero_grad()` on both in "
        "each iteration",
        edits={CLEAR: "pass"},
    ),
    Mistake(
        "clears the second only",
        "the first optimizer's gradients were not cleared, and new ones are added: call "
        "`zero_grad()` on both",
        edits={CLEAR: "optimizers[1].zero_grad()"},
    ),
    Mistake(
        "clears the first only",
        "the second optimizer's gradients were not cleared, and keep an inf for good: call "
        "`zero_grad()` on both",
        edits={CLEAR: "optimizers[0].zero_grad()"},
    ),
]

two_optimizers = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        "the dtype that body and heads compute in": "{case}, body and heads compute in {got}: put "
        "them and their losses into the autocast region, and name its dtype, `torch.float16`"
    },
)
