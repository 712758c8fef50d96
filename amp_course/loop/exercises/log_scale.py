"""Exercise 4 of chapter 06: log the scale and the skipped steps."""

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
    call_answer,
    families,
    read_bool,
    read_number,
    read_pair,
)
from amp_course.loop.exercises.add_autocast import COUNT, MESSAGES
from amp_course.watching.scene import flat

card = Card(
    chapter="loop",
    name="log_scale",
    number=4,
    title="Log the scale and the skipped steps",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=5,
    task="Write `log_scale(scaler, optimizer)`, to be called instead of `scaler.step(optimizer)` "
    "and `scaler.update()`: it does both and nothing else, and returns the pair (the scale that "
    "this step used, whether the step was skipped), whatever the scaler's factors and the "
    "optimizer's groups are. Some parameters may have no gradient.",
    hints=(
        "The scaler does not report that it skipped. What does `update()` do after a skip, and "
        "only then?",
        "Call `scaler.get_scale()` before and after the update: only a skip makes it smaller.",
        "`used = scaler.get_scale()`, then step and update, then `return used, scaler.get_scale() "
        "< used`.",
    ),
    why="A scale that keeps falling is the first sign of a layer that overflows, long before the "
    "loss shows anything.",
    alternative="`optimizer.register_step_post_hook` and a flag: the hook runs only if the "
    "optimizer really stepped.",
)


def right(scaler: Any, optimizer: Any) -> tuple[Any, Any]:
    used = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return used, scaler.get_scale() < used


INF, NAN, LARGE = float("inf"), float("nan"), 2.5e38  # float32 ends at 3.4e38
# One number of each gradient, unscaled. The scale grows after every second clean step.
GRADIENTS = {
    "with finite gradients": (1.0, 1.0, 1.0),
    "after which the scale grows": (2.0, 0.5, 1.0),
    "with inf in the second gradient": (1.0, INF, 1.0),
    "with NaN in the second gradient": (1.0, NAN, 1.0),
    "after `scaler.update(1.25)`, with gradients of 0": (0.0, 0.0, 0.0),
    "with -inf in the first gradient": (-INF, 1.0, 1.0),
    "with finite gradients whose sum is inf": (LARGE, LARGE, LARGE),
    "with NaN in all gradients": (NAN, NAN, NAN),
    "with inf in the second parameter group": (1.0, 1.0, INF),
    "with finite gradients at last": (2.0, 1.0, 1.0),
    "with a new optimizer and a new scaler": (1.0, 2.0, 0.5),
}
LEFT = "the gradients that are left"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take steps from weights of 1, of four parameters in two groups; the last has no gradient."""
    for number, (what, gradients) in enumerate(GRADIENTS.items(), 1):
        case = f"at step {number}, {what}"
        if number == 1 or "new" in what:
            parameters = [nn.Parameter(torch.ones(2)) for _ in range(4)]
            groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
            optimizer = torch.optim.SGD(groups, lr=0.5)
            start = 1.5 if number == 1 else 3.0
            scaler = torch.amp.GradScaler(
                "cpu", start, 4.0, backoff_factor=0.9375, growth_interval=2
            )
        scaler.scale(torch.ones(()))
        if number == 5:
            scaler.update(1.25)  # so that a scale that was kept from the last call is wrong
        for parameter, gradient in zip(parameters, (*gradients, None), strict=True):
            parameter.data = torch.ones(2)
            if gradient is not None:
                other = LARGE if gradient == LARGE else draw.random() * (gradient != 0.0)
                parameter.grad = scaler.get_scale() * torch.tensor([other, gradient])
        got = call_answer(answer, case, scaler, optimizer)
        scale, skipped = read_pair(got, case, "the pair (scale, skipped)")
        subject = "what you return for “skipped”"
        hooks = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
        wrapped = getattr(optimizer.step, "__func__", None) is not type(optimizer).step
        outputs = {
            "the vector of weights after the step": flat(parameters),
            LEFT: sum(parameter.grad is not None for parameter in parameters),
            "the scale for the next step": scaler.get_scale(),
            COUNT: scaler._get_growth_tracker(),
            "the scale that you return": read_number(scale, case, "the scale that you return is"),
            subject: read_bool(skipped, case, subject=f"{subject} is"),
            "the number of hooks and wrappers that you leave on the optimizer": hooks + wrapped,
        }
        yield Case(case, outputs)


STEP = "scaler.step(optimizer)"
RETURN = "return used, scaler.get_scale() < used"


def decides(test: str) -> dict[str, str]:
    """Decide by a test of the gradients, `grads`."""
    own = "[p.grad for group in optimizer.param_groups for p in group['params']]"
    return {RETURN: f"grads = [g for g in {own} if g is not None]\nreturn used, {test}"}


mistakes = [
    Mistake(
        "scale read after the update",
        "that is the next step's scale. Call `get_scale()` before the update (`scaler._scale` "
        "changes in place)",
        edits={RETURN: RETURN.replace("used,", "scaler.get_scale(),")},
    ),
    Mistake(
        "takes growth for a skip",
        "this step was taken, and then the scale grew. Only a scale that became smaller means a "
        "skip",
        edits={RETURN: RETURN.replace("<", "!=")},
    ),
    Mistake(
        *families.NO_UPDATE,
        edits={"scaler.update()": "pass"},
    ),
    Mistake(
        "an unchanged scale is a skip",
        "this step was taken, and the scale stayed as it was. Only a scale that became smaller "
        "means a skip",
        edits={RETURN: RETURN.replace("<", "<=")},
    ),
    Mistake(
        "always skipped",
        "“skipped” is True at every step. Compare the scale before and after `update()`: only a "
        "skip makes it smaller",
        edits={STEP: f"skipped = {STEP} is None", RETURN: "return used, skipped"},
    ),
    Mistake(
        "whether the step was taken",
        "your second value is True when the step was taken. Return the opposite",
        edits={RETURN: RETURN.replace("<", ">=")},
        violates="whether the step was skipped",
    ),
    Mistake(
        "never skipped",
        "“skipped” misses a skip. Check whether `update()` made the scale smaller, by whatever "
        "factor (not just by 0.5)",
        edits={RETURN: "return used, False"},
    ),
    Mistake(
        "misses NaN",
        "NaN makes the scaler skip, not just inf. `isfinite` finds both",
        edits=decides("any(g.isinf().any() for g in grads)"),
    ),
    *[
        Mistake(
            f"looks at {part} only",
            "your test missed a number that is not finite. One in any gradient of any group makes "
            "the scaler skip",
            edits=decides(test),
        )
        for part, test in {
            "the first gradient": "not grads[0].isfinite().all()",
            "the last gradient": "not grads[-1].isfinite().all()",
            "the first group": "not all(g.isfinite().all() for g in grads[:2])",
        }.items()
    ],
    Mistake(
        "judges by the norm",
        "this step was taken, because each gradient is finite, even where their norm, their sum or "
        "an fp16 copy of them is not. Compare the scale before and after `update()`",
        edits=decides("not torch.nn.utils.get_total_norm(grads).isfinite()"),
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
        violates="it does both",
    ),
]

log_scale = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        COUNT: MESSAGES[COUNT],
        LEFT: "your code cleared gradients. Leave that to the caller",
    },
)
