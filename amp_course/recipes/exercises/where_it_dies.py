"""Exercise 3 of chapter 08: what dies first in a step of pure fp16,
on records in which each rule decides once.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, Results, call_answer, read_pair
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
    "first, as a pair (kind, name), or None if nothing did. The kinds are, in the order of a "
    "step: activation, loss, gradient, update. A gradient or an update dies if more than half of "
    "the elements that count are lost; the table below says which count. Take both in the order "
    "of `step.gradients`.",
    hints=(
        "Ask four questions, one after the other, each with its own `return`. Which of them needs "
        "`exact_gradients`?",
        "`torch.isfinite(output).all()` for outputs and the loss. A gradient died where it is 0 "
        "and the exact one is not; an update died where the gradient is not 0 and the new weight "
        "equals the old one.",
        "New weights in fp16: `weight - step.lr * gradient` of fp16 tensors. “More than half”: "
        "`dead.sum() > 0.5 * there.sum()`, with `there` the elements that count.",
    ),
    why="NaN in a loss says that something died; which cure helps (a scaler, an op in fp32, "
    "master weights) depends on what.",
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
# how an element of a parameter fares → its gradient in fp16 and in fp32, and its weight
ELEMENTS = {
    "·": (2.0**-4, 2.0**-4, 1.5),  # it moves
    "L": (0.0, 2.0**-28, 1.5),  # its gradient is lost
    "0": (0.0, 0.0, 1.5),  # its gradient is 0 in fp32 too
    "×": (0.0, 2.0**-4, 1.5),  # its gradient is lost on the way, and has room in fp16
    "!": (2.0**-4, 0.0, 1.5),  # its gradient is 0 in fp32, and not in fp16
    "S": (
        2.0**-12,
        2.0**-4,
        1.5,
    ),  # its update is lost, and that of the exact gradient would not be
    "+": (2.0**-24, 0.6 * 2.0**-24, 1.25 * 2.0**-12),  # its gradient is rounded up
    "I": (2.0**-12, 2.0**-12, 1.5),  # it is idle: its update is lost
    "¼": (2.0**-6, 2.0**-4, 1.5),  # its gradient is too small, and not lost
    "∞": (torch.inf, 2.0**-4, 1.5),  # its gradient overflows, and is not lost
}
CASES: dict[
    str, dict[str, dict[str, Any]]
] = {  # what is asked → a step in words → what `record` takes
    "about activations": {
        "with inf after relu and a finite loss": dict(outputs={"relu": INF}),
        "with inf after first and NaN after relu": dict(
            outputs={"first": INF, "relu": NAN, "last": NAN}, loss=NAN
        ),
        "with -inf after relu and NaN after last": dict(
            outputs={"relu": -INF, "last": NAN}, loss=NAN
        ),
        "with NaN after relu, no inf, and a finite loss": dict(outputs={"relu": NAN, "last": NAN}),
        "of a model that is one module, whose name is '', with inf after it": dict(
            outputs={"": INF}
        ),
    },
    "about the loss": {
        "with an output of 65,504 and a loss of inf": dict(
            outputs={"relu": 65504.0}, loss=INF, lb="LLLLLLLL"
        ),
        "with a loss of NaN": dict(loss=NAN),
        "with a loss of -inf": dict(loss=-INF),
        "with a loss of 65,504, which is finite": dict(loss=65504.0),
    },
    "about gradients": {
        "in which 5 of 8 gradients of last.weight are lost": dict(lw="LLLLL···"),
        "in which gradients of last.bias are 0, and 2^-4 in fp32": dict(lb="××××××××"),
        "in which last.bias has 5 gradients that are 0 in fp32 too, and loses one of the other 3": dict(
            lb="L··00000"
        ),
        "in which last.bias has 4 gradients that are 0 in fp32 too, and loses 3 of the other 4": dict(
            lb="LLL·0000"
        ),
        "in which 4 of 8 gradients of last.bias are lost": dict(lb="LLLL····"),
        "in which last.bias loses all its 5 gradients, and 3 that are 0 in fp32 are not 0": dict(
            lb="LLLLL!!!"
        ),
        "in which 2,049 of 4,096 gradients of last.bias are lost": dict(lb="L" * 2049 + "·" * 2047),
        "in which all gradients of first.weight are 0, in fp32 too": dict(fw="00000000"),
        "in which last.weight loses 5 of 8 gradients, and first.weight all": dict(
            lw="LLLLL···", fw="LLLLLLLL"
        ),
        "in which gradients of last.bias are a quarter of the exact ones": dict(lb="¼¼¼¼¼¼¼¼"),
        "in which 5 of 8 gradients of last.bias are inf, not 0": dict(lb="∞∞∞∞∞···"),
        "in which updates of last.bias die, and so do gradients of first.bias": dict(
            lb="IIIIIIII", fb="LLLLLLLL"
        ),
        "in which gradients of last.bias die, and so do updates of first.bias": dict(
            lb="LLLLLLLL", fb="IIIIIIII"
        ),
    },
    "about updates": {
        "in which 5 of 8 weights of last.weight stay the same": dict(lw="···IIIII"),
        "in which 4 of 8 weights of first.bias stay the same": dict(fb="····IIII"),
        "in which 5 of 8 weights of last.bias stay the same, and all of first.weight": dict(
            lb="···IIIII", fw="I" * 8
        ),
        "in which last.bias has 4 gradients of 0, and loses 3 of the other 4 updates": dict(
            lb="·III0000"
        ),
        "in which last.bias loses 3 gradients, and 2 updates whose gradients are not 0": dict(
            lb="LLL···II"
        ),
        "in which all weights of last.bias stay the same, and would not with the exact gradients": dict(
            lb="SSSSSSSS"
        ),
        "with weights of 1 and updates of 0.375 · 2^-10 towards 0": dict(
            lb=(1.0, 0.375 * 2.0**-10)
        ),
        "with weights of 1 and updates of 0.375 · 2^-10 away from 0": dict(
            lb=(1.0, -0.375 * 2.0**-10)
        ),
        "with weights of 2^-6 and updates of 2^-12": dict(fb=(2.0**-6, 2.0**-12)),
        "with weights of 96 and updates of 2^-7": dict(fw=(96.0, 2.0**-7)),
        "with weights of 2^-6 and updates of 2^-25": dict(fw=(2.0**-6, 2.0**-25)),
        "with weights of 1.5 and updates of 0.4375 · 2^-10": dict(lb=(1.5, 0.4375 * 2.0**-10)),
        "with gradients of 2^-24, weights of 1.25 · 2^-12 and a learning rate of 3": dict(
            lb="++++++++", lr=3.0
        ),
    },
}


def record(outputs: Any = (), loss: float = 0.5, lr: float = LR, **fares: Any) -> HalfStep:
    """Return a step in which all moves, but for the outputs, the loss and the parameters that are
    told.

    fares: lb="LL······": the elements of last.bias; lb=(1.0, 2.0**-9): the size of its weights, and
           of updates towards 0
    """
    sign = torch.tensor([1.0] * 4 + [-1.0] * 4)  # by sign, other shares are lost than in all
    layers = {
        name: (2 * sign).half()
        for name in (("",) if "" in dict(outputs) else ("first", "relu", "last"))
    }
    for name, value in dict(outputs).items():
        layers[name][3:5] = value
    gradients, exact, weights = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
    for name in ("last.bias", "last.weight", "first.bias", "first.weight"):
        how = fares.get(name[0] + name.split(".")[1][0], "········")
        elements = (
            [ELEMENTS[one] for one in how]
            if isinstance(how, str)
            else [(how[1] / LR, how[1] / LR, how[0])] * 8
        )
        gradient, exact[name], weight = torch.tensor(elements).T * sign.repeat(len(elements) // 8)
        gradients[name], weights = gradient.half(), {name: weight.half(), **weights}
    return HalfStep(layers, torch.tensor(loss).half(), gradients, exact, weights, lr)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Ask what died first in each step."""
    for stage, steps in CASES.items():
        for what, feedback in steps.items():
            case = f"for a step {what}"
            got = call_answer(answer, case, record(**feedback))
            if got is not None:
                pair = read_pair(got, case, "a pair (kind, name) or None")
                got = tuple(str(part) if isinstance(part, str) else part for part in pair)
            yield Case("", {stage: Results({case: repr(got)})})


OUTPUT, LOSS = "if not output.isfinite().all():", "if not step.loss.isfinite():"
DEAD = "if (there & (gradient == 0)).sum() > 0.5 * there.sum():"
STILL = "if (moving & idle).sum() > 0.5 * moving.sum():"
MOVING, IDLE = "moving = gradient != 0", "idle = weight - step.lr * gradient == weight"

mistakes = [
    *(
        Mistake(
            f"{what} {seen} only",
            f"{what} {other} was passed over, and {what} {seen} was found. `torch.isfinite` is "
            f"False for both",
            edits={line: f"if {tested}.is{seen.lower()}().any():"},
        )
        for what, line, tested in (
            ("an output with", OUTPUT, "output"),
            ("a loss of", LOSS, "step.loss"),
        )
        for seen, other in (("NaN", "inf"), ("inf", "NaN"))
    ),
    Mistake(
        "activations passed over",
        "an output that holds inf or NaN was passed over. One such element is enough, whatever "
        "the loss is",
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
        "the loss was looked at before the activations, and they come first in a step",
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
        "a gradient was called lost only if its exact value would be 0 in fp16: look into "
        "`step.gradients`",
        edits={DEAD: DEAD.replace("(gradient", "(step.exact_gradients[name].half()")},
    ),
    Mistake(
        "counts right zeros",
        "gradients that are 0 in fp32 too are not lost. Count only elements whose "
        "`exact_gradients` are not 0",
        edits={"there = step.exact_gradients[name] != 0": "there = gradient == gradient"},
        violates="elements that count",
    ),
    *(
        Mistake(
            f"{kind}s: {much}",
            f"{kind}s were called dead where {much} of those that count are lost, and the card "
            f"says more than half",
            edits={line: line.replace(">", ">=").replace("if", guard)},
            violates="more than half",
        )
        for kind, line, counts in (("gradient", DEAD, "there"), ("update", STILL, "moving"))
        for much, guard in (("exactly half", f"if {counts}.any() and"), ("half, or 0 of 0,", "if"))
    ),
    *(
        Mistake(
            f"{kind}s: half of all elements",
            f"{kind}s were called dead only if more than half of all elements are lost: divide by "
            f"the number of "
            "those that count",
            edits={line: line.replace(f"{counts}.sum()", f"{counts}.numel()")},
        )
        for kind, line, counts in (("gradient", DEAD, "there"), ("update", STILL, "moving"))
    ),
    *(
        Mistake(
            f"{kind}s: one is enough",
            f"{kind}s were called dead where only some of those that count are lost, and the card "
            f"says more than "
            "half",
            edits={line: line.replace("0.5", "0.0")},
        )
        for kind, line in (("gradient", DEAD), ("update", STILL))
    ),
    Mistake(
        "name by name",
        "an update was found before the gradient of a later parameter: a step computes all "
        "gradients before it updates anything, so look through all gradients first, and then "
        "through all updates",
        edits={
            "for name in step.gradients:": "for name in ():",
            DEAD: "moving = gradient != 0\nidle = (step.weights[name] - step.lr * gradient == "
            "step.weights[name]) & moving\nif idle.sum() > 0.5 * moving.sum() and not (there & "
            "(gradient == 0)).sum() > 0.5 * there.sum():\n"
            '    return "update", name\n' + DEAD,
        },
        violates="in the order of a step",
    ),
    Mistake(
        "in the order of the weights",
        "the first one in another order than that of `step.gradients` was returned: backward "
        "starts at the last layer, so loop over `step.gradients`",
        edits={
            "for name, gradient in step.gradients.items():": "for name, gradient in ((name, "
            "step.gradients[name]) for name in step.weights):"
        },
        violates="in the order of `step.gradients`",
    ),
    Mistake(
        "no update dies",
        "no update was found dead. Compare new and old weights, both in fp16: float32 would keep "
        "small updates",
        edits={IDLE: "idle = ~moving"},
        violates="update",
    ),
    Mistake(
        "updates of all elements",
        "weights without a gradient stay the same, and rightly. Count only elements whose fp16 "
        "gradient is not 0",
        edits={MOVING: "moving = gradient == gradient"},
    ),
    Mistake(
        "updates by exact gradients",
        "elements whose fp16 gradient is lost were counted. Count those whose fp16 gradient is "
        "not 0",
        edits={MOVING: "moving = step.exact_gradients[name] != 0"},
    ),
    *(
        Mistake(
            f"update {limit}",
            "updates were compared with a number or share of the weight: compare the new fp16 "
            "weight with the old one",
            edits={IDLE: f"idle = (step.lr * gradient).abs() {limit}"},
        )
        for limit in (
            "== 0",
            "< 2**-10",
            *(f"{less} * weight.abs()" for less in ("< 2**-10", "< 2**-11", "<= 2**-12")),
        )
    ),
]

where_it_dies = Exercise(card, right, cases, mistakes)
