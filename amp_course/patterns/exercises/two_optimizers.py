"""Exercise 2 of chapter 07: two losses and two optimizers that share one scaler."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families
from amp_course.patterns.exercises._shared import both_steps, observe
from amp_course.watching.scene import dtype_names, flat

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
        "Of scale, backward, step, update and zero_grad: which run once per loss, which once per "
        "optimizer, which once per iteration?",
        "Both losses share the body's graph, so the first `backward()` must keep it. They share "
        "the scale, so call `update` once.",
        "In the region, compute the features once, then both losses. After it: "
        "`scaler.scale(a).backward(retain_graph=True)`, `scaler.scale(b).backward()`, "
        "`scaler.step` for both, `scaler.update()` once, `zero_grad` for both.",
    ),
    why="The scaler remembers until `update` what it found for each optimizer, so each step is "
    "skipped only for its own gradients.",
    alternative="`scaler.scale(loss_a + loss_b).backward()`: one backward pass over the body "
    "instead of two, and no graph to retain.",
)


def right(
    body: Any, heads: Any, inputs: Any, targets: Any, loss_fn: Any, optimizers: Any, scaler: Any
) -> None:
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        features = body(inputs)
        losses = [loss_fn(head(features), t) for head, t in zip(heads, targets, strict=True)]
    scaler.scale(losses[0]).backward(retain_graph=True)
    scaler.scale(losses[1]).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


# factors of the gradients of both heads' weights and of the first head's output, and the case
CLEAN = (1.0, 1.0, 1.0, "")
ITERATIONS = (
    CLEAN,
    (1.0, math.inf, 1.0, ", where the second head's gradient overflows"),
    CLEAN,
    (math.nan, 1.0, 1.0, ", where the first head's gradient overflows"),
    (1.0, 1.0, 1e6, ", where the first head's output overflows, so its loss is not finite"),
    CLEAN,
    CLEAN,  # after which the scale grows
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train with overflows in one head or the other, then run one iteration of a new training."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    yield from _train(answer, generator, ITERATIONS)
    yield from _train(answer, generator, [(1.0, 1.0, 1.0, " of another training")])


def _train(answer: Any, generator: torch.Generator, iterations: Any) -> Iterator[Case]:
    body, heads = nn.Sequential(nn.Linear(12, 8), nn.Tanh()), [nn.Linear(8, 4), nn.Linear(8, 3)]
    parameters = [p for model in (body, *heads) for p in model.parameters()]
    for parameter in parameters:
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    optimizers: list[Any] = [
        torch.optim.SGD(own, lr=0.05, momentum=0.9) for own in (parameters[:4], parameters[4:])
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    factors, ran = [1.0, 1.0, 1.0], list[tuple[str, torch.dtype]]()

    for name, module in (("body", body[0]), ("head", heads[0]), ("head", heads[1])):
        module.register_forward_hook(
            lambda module, args, output, name=name: ran.append((name, output.dtype))
        )
    for place, head in enumerate(heads):
        head.weight.register_hook(lambda gradient, place=place: gradient * factors[place])
    heads[0].register_forward_hook(lambda module, args, output: output * factors[2])

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        ran.append(("loss", loss.dtype))
        return loss

    for number, (*factors[:], where) in enumerate(iterations, 1):
        case = f"in iteration {number}{where}"
        ran.clear()
        inputs = torch.randn(8, 12, generator=generator)
        targets = [torch.randint(0, classes, (8,), generator=generator) for classes in (4, 3)]
        with observe([body, *heads], optimizers, scaler) as observer:
            call_answer(answer, case, body, heads, inputs, targets, loss_fn, optimizers, scaler)
        steps = both_steps(observer.update)
        yield Case(
            case,
            {
                "the number of forward passes of the body": sum(name == "body" for name, _ in ran),
                "the dtype that body and heads compute in": dtype_names(
                    dtype for name, dtype in ran if name != "loss"
                ),
                "the dtype that the losses are computed in": dtype_names(
                    dtype for name, dtype in ran if name == "loss"
                )
                or "unknown",
                "the dtype of the weights": dtype_names(p.dtype for p in parameters),
                "the number of backward passes in the region": sum(
                    one.in_autocast for one in observer.update.backwards
                ),
                **steps,
                "the loss scale after the iteration": scaler.get_scale(),
                "the weights after the iteration": flat(parameters),
            },
            evidence=steps,
        )


REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
LOSSES = "losses = [loss_fn(head(features), t) for head, t in zip(heads, targets, strict=True)]"
FIRST = "scaler.scale(losses[0]).backward(retain_graph=True)"
SECOND = "scaler.scale(losses[1]).backward()"
STEP, UPDATE, CLEAR = "scaler.step(optimizer)", "scaler.update()", "optimizer.zero_grad()"
FINITE = "all(p.grad.isfinite().all() for m in (body, *heads) for p in m.parameters())"
OWN = """scaler.unscale_(optimizer)
own = [p for group in optimizer.param_groups for p in group["params"]]"""
AGAIN = f"{REGION}\n    losses[1] = loss_fn(heads[1](body(inputs)), targets[1])"

mistakes = [
    Mistake(
        "runs the body twice",
        "the body ran once for each head. Both heads can use the same features",
        edits={SECOND: f"{AGAIN}\n{SECOND}"},
        violates="The body runs once",
    ),
    Mistake(
        *families.BACKWARD_INSIDE,
        edits={FIRST: f"{REGION}\n    {FIRST}", SECOND: f"{REGION}\n    {SECOND}"},
    ),
    Mistake(
        "frees the graph",
        "the first `backward()` freed the body's graph. Pass it `retain_graph=True`, or call it "
        "once on the sum",
        edits={FIRST: "scaler.scale(losses[0]).backward()"},
    ),
    Mistake(
        "second loss misses the body",
        "the body's gradient lacks the second loss. Detach no features, and step only after both "
        "backward passes",
        edits={
            LOSSES: LOSSES.replace("(features)", "(features if t is targets[0] else features.data)")
        },
        violates="its gradient is that of both losses",
    ),
    Mistake(
        "first loss is lost",
        "only the second loss is in the gradients at the step. Call `backward()` on both, and "
        "clear only after the steps",
        edits={SECOND: f"optimizers[0].zero_grad()\n{SECOND}"},
    ),
    Mistake(
        "averages the losses",
        "these are the gradients of the mean of the losses. Take their sum",
        edits={LOSSES: f"{LOSSES}\nlosses = [loss / 2 for loss in losses]"},
    ),
    Mistake(
        "loss not scaled",
        "the gradients were divided by the scale once too often. Scale both losses, and let only "
        "the scaler divide",
        edits={
            FIRST: "scaler.scale(torch.ones(()))\nlosses[0].backward(retain_graph=True)",
            SECOND: "losses[1].backward()",
        },
    ),
    *(
        Mistake(
            name,
            "the losses have two scales, and the body adds up gradients of both. Scale both losses "
            "with the one scaler",
            edits=edits,
            violates="one scaler",
        )
        for name, edits in (
            ("scales only the first loss", {SECOND: "losses[1].backward()"}),
            ("scales only the second loss", {FIRST: "losses[0].backward(retain_graph=True)"}),
            ("a scaler for each", {SECOND: f"torch.amp.GradScaler('cpu'){SECOND[6:]}"}),
        )
    ),
    *(
        Mistake(
            name,
            families.AN_UPDATE_FOR_EACH[1],
            edits={STEP: f"{STEP}\n{when}{UPDATE}", UPDATE: "pass"},
        )
        for name, when in (
            (families.AN_UPDATE_FOR_EACH[0], ""),
            ("updates between the steps", "if optimizer is optimizers[0]:\n    "),
        )
    ),
    Mistake(
        *families.NO_UPDATE_AFTER_BOTH,
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "skips both",
        "one optimizer's overflow stopped the other, too. Call `scaler.step` for both, whatever "
        "was found",
        edits={STEP: f"scaler.unscale_(optimizer)\nif {FINITE}:\n    {STEP}"},
        violates="one optimizer's overflow must not stop the other",
    ),
    Mistake(
        "calls step for neither",
        "one optimizer's overflow stopped both, and `scaler.update()` raised an error, as no "
        "`scaler.step` had run. Call it for both, whatever was found",
        edits={STEP: f"if {FINITE}:\n    {STEP}"},
    ),
    Mistake(
        "stops at the first overflow",
        "after the first optimizer's overflow, the second did not step either. Go on to "
        "`scaler.step` for it, without a `break` or `return`",
        edits={
            STEP: f"{OWN}\nif not all(p.grad.isfinite().all() for p in own):\n    break\n{STEP}"
        },
    ),
    Mistake(
        "returns at a bad loss",
        "one head's loss was not finite, and no optimizer stepped. Go on and leave the test to the "
        "scaler",
        edits={FIRST: f"if not sum(losses).isfinite():\n    return\n{FIRST}"},
    ),
    Mistake(
        "leaves out a bad loss",
        "a loss that was not finite was left out, and the body stepped on the other. Call "
        "`backward()` on both",
        edits={FIRST: f"if losses[0].isfinite():\n    {FIRST}"},
    ),
    Mistake(
        "steps by hand",
        "`scaler.update()` found no `scaler.step` since the last update. Call `scaler.step` for "
        "both, then update once",
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "unscales, own steps",
        "an optimizer stepped on gradients that hold inf or NaN. `unscale_` finds them, but only "
        "`scaler.step` skips the step, so call it for both instead of `optimizer.step()`",
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
    ),
    Mistake(
        "steps the second by hand",
        "the second optimizer applied scaled gradients, even inf. Call `scaler.step` for both, not "
        "`step()`",
        edits={STEP: f"{STEP} if optimizer is optimizers[0] else optimizer.step()"},
    ),
    Mistake(
        "never clears",
        "the gradients of earlier iterations are still in the sum. Call `zero_grad()` on both in "
        "each iteration",
        edits={CLEAR: "pass"},
    ),
    *(
        Mistake(
            f"clears the {cleared} only",
            f"the {kept} optimizer's gradients were not cleared, {effect}. Call `zero_grad()` on "
            "both",
            edits={CLEAR: f"optimizers[{place}].zero_grad()"},
        )
        for place, cleared, kept, effect in (
            (1, "second", "first", "and new ones are added to them"),
            (0, "first", "second", "so an inf stays in them for good"),
        )
    ),
]

two_optimizers = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        "the dtype that body and heads compute in": "{case}, body and heads compute in {got}. Run "
        "them and their losses in the autocast region, and name its dtype, `torch.float16`"
    },
)
