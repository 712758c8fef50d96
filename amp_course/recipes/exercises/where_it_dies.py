"""Exercise 3 of chapter 08: what dies first in a step of pure fp16."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    call_answer,
    read_pair,
    show_number,
)
from amp_course.recipes.training import HalfStep

card = Card(
    chapter="recipes",
    name="where_it_dies",
    number=3,
    title="Where does it die?",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=14,
    task="Write `where_it_dies(step)`: given the record of a step in pure fp16, return what died "
    "first, as a pair (kind, name), or None if nothing did. The kinds are, in the order of a step: "
    "activation, loss, gradient, update. A gradient or an update dies if more than half of the "
    "elements that count are lost; the table below says which count. Take both in the order of "
    "`step.gradients`.",
    hints=(
        "Ask four questions, one after the other, each with its own `return`. Which of them needs "
        "`exact_gradients`?",
        "Use `torch.isfinite(output).all()` for outputs and the loss. A gradient died where it is "
        "0 and the exact one is not. An update died where the gradient is not 0 and the new weight "
        "equals the old one.",
        "New weights in fp16 are `weight - step.lr * gradient` of fp16 tensors. “More than half” "
        "is `dead.sum() > 0.5 * there.sum()`, where `there` are the elements that count.",
    ),
    why="NaN in a loss says that something died. What died decides which remedy helps: a scaler, "
    "an op in fp32, or master weights.",
    alternative="a generator for each kind and `next(chain(…), None)`, which computes nothing "
    "after the first that it finds.",
)


def right(step: HalfStep) -> tuple[str, str] | None:
    for name, output in step.outputs.items():
        if not output.isfinite().all():
            return "activation", name
    if not step.loss.isfinite():
        return "loss", "loss"
    for name, gradient in step.gradients.items():
        there = step.exact_gradients[name] != 0
        if (there & (gradient == 0)).sum() > 0.5 * there.sum():
            return "gradient", name
    for name in step.gradients:
        gradient, weight = step.gradients[name], step.weights[name]
        moving = gradient != 0
        idle = weight - step.lr * gradient == weight
        if (moving & idle).sum() > 0.5 * moving.sum():
            return "update", name
    return None


INF, NAN, LR = torch.inf, torch.nan, 2.0**-3
# symbol → the gradient of an element in fp16 and in fp32, and its weight
ELEMENTS: dict[Any, tuple[float, float, float]] = {
    "·": (2.0**-4, 2.0**-4, 1.5),  # it moves
    "L": (0.0, 2.0**-28, 1.5),  # its gradient is lost
    "0": (0.0, 0.0, 1.5),  # its gradient is 0 in fp32, too
    "×": (0.0, 2.0**-4, 1.5),  # its gradient is lost on the way, though fp16 could hold it
    "!": (2.0**-4, 0.0, 1.5),  # its gradient is 0 in fp32, but not in fp16
    "S": (2.0**-12, 2.0**-4, 1.5),  # its update is lost, that of the exact gradient would not be
    "+": (2.0**-24, 0.6 * 2.0**-24, 1.25 * 2.0**-12),  # its gradient is rounded up
    "I": (2.0**-12, 2.0**-12, 1.5),  # its update is lost
    "¼": (2.0**-6, 2.0**-4, 1.5),  # its gradient is too small, but not lost
    "∞": (INF, 2.0**-4, 1.5),  # its gradient overflows, but is not lost
}
UPDATES = (  # parameter, size of its weights, size of updates towards 0
    ("lb", 1.0, 0.375 * 2.0**-10),
    ("lb", 1.0, -0.375 * 2.0**-10),
    ("fb", 2.0**-6, 2.0**-12),
    ("fw", 96.0, 2.0**-7),
    ("fw", 2.0**-6, 2.0**-25),
    ("lb", 1.5, 0.4375 * 2.0**-10),
)
STEPS: dict[str, dict[str, dict[str, Any]]] = {  # output → step in words → arguments of `record`
    "about activations": {
        "with inf after relu and a finite loss": dict(outputs={"relu": INF}),
        "with inf after first and NaN after relu": dict(
            outputs={"first": INF, "relu": NAN, "last": NAN}, loss=NAN
        ),
        "with -inf after relu": dict(outputs={"relu": -INF, "last": NAN}, loss=NAN),
        "with NaN after relu and a finite loss": dict(outputs={"relu": NAN, "last": NAN}),
        "of a model that is one module, named '', with inf after it": dict(outputs={"": INF}),
    },
    "about the loss": {
        "with an output of 65,504 and a loss of inf": dict(
            outputs={"relu": 65504.0}, loss=INF, lb="L" * 8
        ),
        "with a loss of NaN": dict(loss=NAN),
        "with a loss of -inf": dict(loss=-INF),
        "with a loss of 65,504, which is finite": dict(loss=65504.0),
    },
    "about gradients": {
        "where last.weight loses 5 of 8 gradients": dict(lw="LLLLL···"),
        "where last.bias has gradients of 0 that are 2^-4 in fp32": dict(lb="×" * 8),
        "where last.bias loses 1 of 3 gradients that are not 0 in fp32": dict(lb="L··00000"),
        "where last.bias loses 3 of 4 gradients that are not 0 in fp32": dict(lb="LLL·0000"),
        "where last.bias loses 4 of 8 gradients": dict(lb="LLLL····"),
        "where last.bias loses all 5 gradients that are not 0 in fp32": dict(lb="LLLLL!!!"),
        "where last.bias loses 2,049 of 4,096 gradients": dict(lb="L" * 2049 + "·" * 2047),
        "where first.weight has gradients of 0, in fp32 too": dict(fw="0" * 8),
        "where last.weight loses 5 of 8 gradients, first.weight all": dict(
            lw="LLLLL···", fw="L" * 8
        ),
        "where gradients of last.bias are a quarter of the exact ones": dict(lb="¼" * 8),
        "where 5 of 8 gradients of last.bias are inf": dict(lb="∞∞∞∞∞···"),
        "where updates of last.bias and gradients of first.bias die": dict(lb="I" * 8, fb="L" * 8),
        "where gradients of last.bias and updates of first.bias die": dict(lb="L" * 8, fb="I" * 8),
    },
    "about updates": {
        "where 5 of 8 weights of last.weight stay the same": dict(lw="···IIIII"),
        "where 4 of 8 weights of first.bias stay the same": dict(fb="····IIII"),
        "where 5 of 8 weights of last.bias stay the same, and all of first.weight": dict(
            lb="···IIIII", fw="I" * 8
        ),
        "where last.bias loses 3 of 4 updates whose gradients are not 0": dict(lb="·III0000"),
        "where last.bias loses 3 gradients, and 2 of the other 5 updates": dict(lb="LLL···II"),
        "where last.bias stays the same, but would not with exact gradients": dict(lb="S" * 8),
        **{
            f"with weights of {show_number(weight)} and updates of {show_number(abs(update))} "
            f"{'towards' if update > 0 else 'away from'} 0": {
                name: [(update / LR, update / LR, weight)] * 8
            }
            for name, weight, update in UPDATES
        },
        "with gradients of 2^-24, weights of 1.25 · 2^-12 and a learning rate of 3": dict(
            lb="+" * 8, lr=3.0
        ),
    },
}


def record(outputs: Any = (), loss: float = 0.5, lr: float = LR, **parameters: Any) -> HalfStep:
    """Return a step in which everything moves that the arguments do not set otherwise.

    parameters: lb="LL······": the elements of last.bias, as symbols or as in `ELEMENTS`
    """
    sign = torch.tensor([1.0] * 4 + [-1.0] * 4)  # the shares that are lost differ by sign
    modules = ("",) if "" in dict(outputs) else ("first", "relu", "last")
    layers = {name: (2 * sign).half() for name in modules}
    for name, value in dict(outputs).items():
        layers[name][3:5] = value
    gradients, exact, weights = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
    for name in ("last.bias", "last.weight", "first.bias", "first.weight"):
        how = parameters.get(name[0] + name.split(".")[1][0], "·" * 8)
        elements = [ELEMENTS.get(one, one) for one in how]
        gradient, exact[name], weight = torch.tensor(elements).T * sign.repeat(len(elements) // 8)
        gradients[name], weights = gradient.half(), {name: weight.half(), **weights}
    return HalfStep(layers, torch.tensor(loss).half(), gradients, exact, weights, lr)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Ask what died first in each step."""
    for output, steps in STEPS.items():
        for what, arguments in steps.items():
            case = f"for a step {what}"
            got = call_answer(answer, case, record(**arguments))
            if got is not None:
                pair = read_pair(got, case, "a pair (kind, name) or None")
                got = tuple(str(part) if isinstance(part, str) else part for part in pair)
            yield Case("", {output: Results({case: repr(got)})})


OUTPUT, LOSS = "if not output.isfinite().all():", "if not step.loss.isfinite():"
EXACT = "there = step.exact_gradients[name] != 0"
DEAD = "if (there & (gradient == 0)).sum() > 0.5 * there.sum():"
MOVING, IDLE = "moving = gradient != 0", "idle = weight - step.lr * gradient == weight"
IDLE_MOST = "if (moving & idle).sum() > 0.5 * moving.sum():"


def share_mistakes(kind: str, line: str, counts: str) -> list[Mistake]:
    """Return mistakes about the share that is lost; `counts` are the elements that count."""
    at_least = line.replace(">", ">=")
    more = "of those that count are lost, and the task says more than half"
    return [
        Mistake(
            f"{kind}s: {share}",
            f"{kind}s were called dead {feedback}",
            edits={line: instead},
            violates="more than half",
        )
        for share, feedback, instead in (
            (
                "exactly half",
                f"where exactly half {more}",
                at_least.replace("if", f"if {counts}.any() and"),
            ),
            ("half, or 0 of 0,", f"where half, or 0 of 0, {more}", at_least),
            ("one is enough", f"where only some {more}", line.replace("0.5", "0.0")),
            (
                "half of all elements",
                "only if more than half of all elements are lost. Divide by the number of those "
                "that count",
                line.replace(f"{counts}.sum()", f"{counts}.numel()"),
            ),
        )
    ]


mistakes = [
    *(
        Mistake(
            f"{what} {found} only",
            f"{what} {other} was passed over, and {what} {found} was found. `torch.isfinite` is "
            "False for both",
            edits={line: f"if {tensor}.is{found.lower()}().any():"},
        )
        for what, line, tensor in (
            ("an output with", OUTPUT, "output"),
            ("a loss of", LOSS, "step.loss"),
        )
        for found, other in (("NaN", "inf"), ("inf", "NaN"))
    ),
    Mistake(
        "activations passed over",
        "an output that holds inf or NaN was passed over. One such element is enough, whatever the "
        "loss is",
        edits={OUTPUT: "if False:"},
        violates="activation",
    ),
    Mistake(
        "the last module",
        "the last module with inf or NaN was returned. They spread from layer to layer, so look "
        "for the first",
        edits={
            "for name, output in step.outputs.items():": "for name, output in "
            "reversed(step.outputs.items()):"
        },
        violates="what died first",
    ),
    Mistake(
        "the loss before the activations",
        "the loss was returned where an activation had died before it. Look at the activations "
        "first",
        answer=lambda step: right(step) if step.loss.isfinite() else ("loss", "loss"),
        violates="in the order of a step",
    ),
    Mistake(
        "loss not looked at",
        "a loss of inf or NaN was passed over. It can overflow although every output is finite",
        edits={LOSS: "if False:"},
        violates="loss",
    ),
    Mistake(
        "gradients by the exact ones",
        "a gradient was called lost only if its exact value would be 0 in fp16. Look at "
        "`step.gradients`",
        edits={DEAD: DEAD.replace("(gradient", "(step.exact_gradients[name].half()")},
    ),
    Mistake(
        "counts right zeros",
        "gradients that are 0 in fp32, too, are not lost. Count only elements whose "
        "`exact_gradients` are not 0",
        edits={EXACT: "there = gradient == gradient"},
        violates="elements that count",
    ),
    *share_mistakes("gradient", DEAD, "there"),
    *share_mistakes("update", IDLE_MOST, "moving"),
    Mistake(
        "name by name",
        "an update was found before the gradient of a later parameter. A step computes all "
        "gradients before it updates anything, so look through all gradients first, then through "
        "all updates",
        edits={
            "for name in step.gradients:": "for name in ():",
            DEAD: f"""weight = step.weights[name]
{MOVING}
{IDLE}
{IDLE_MOST[:-1]} and not {DEAD[3:-1]}:
    return "update", name
{DEAD}""",
        },
        violates="in the order of a step",
    ),
    Mistake(
        "in the order of the weights",
        "the first one in another order than that of `step.gradients` was returned. Backward "
        "starts at the last layer, so loop over `step.gradients`",
        edits={
            "for name, gradient in step.gradients.items():": "for name, gradient in ((name, "
            "step.gradients[name]) for name in step.weights):"
        },
        violates="in the order of `step.gradients`",
    ),
    Mistake(
        "no update dies",
        "no update was found dead. Compare new and old weights, both in fp16, since float32 keeps "
        "small updates",
        edits={IDLE: "idle = ~moving"},
        violates="update",
    ),
    Mistake(
        "updates of all elements",
        "weights without a gradient rightly stay the same. Count only elements whose fp16 gradient "
        "is not 0",
        edits={MOVING: "moving = gradient == gradient"},
    ),
    Mistake(
        "zeros among the dead updates",
        "weights whose fp16 gradient is 0 were called lost, though not among those that count. "
        "Leave them out of both numbers, `(moving & idle).sum()` and `moving.sum()`",
        edits={IDLE_MOST: "if idle.sum() > 0.5 * moving.sum():"},
    ),
    Mistake(
        "updates by exact gradients",
        "elements whose fp16 gradient is lost were counted. Count those whose fp16 gradient is not "
        "0",
        edits={MOVING: "moving = step.exact_gradients[name] != 0"},
    ),
    *(
        Mistake(
            f"update {limit}",
            "updates were compared with a number or a share of the weight. Compare the new fp16 "
            "weight with the old one",
            edits={IDLE: f"idle = (step.lr * gradient).abs() {limit}"},
        )
        for limit in (
            "== 0",
            "< 2**-10",
            "< 2**-10 * weight.abs()",
            "< 2**-11 * weight.abs()",
            "<= 2**-12 * weight.abs()",
        )
    ),
]

where_it_dies = Exercise(card, right, cases, mistakes)
