"""Patient 8 of chapter 11: NaN from the second step on,
and an anomaly mode that blames a sound line.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.late_anomaly import elu as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, run_answer

card = Card(
    chapter="debugging",
    name="late_anomaly",
    number=8,
    title="Anomaly mode blames a sound line",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=4,
    task="Write `late_anomaly(x, alpha)`, an `elu` without the fault: the same values, and right "
    "gradients for `x` and for `alpha`, for `x` up to 1,000. At x = 0, the gradient for `x` is "
    "`alpha`. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "Anomaly mode looks for NaN in gradients, and not for inf. What are `growth` and `curve` "
        "at x = 100?",
        "`torch.where` sends a gradient of 0 into the branch that it does not take, and 0 · inf "
        "is NaN. So replacing the result comes too late: this branch must never see such an x.",
        "Use `torch.where` twice: `safe = torch.where(x > 0, 0.0, x)` goes into `exp`; the cause "
        "is 'infinite-derivative'.",
    ),
    why="`torch.where` selects values. Its backward pass still runs both branches, one of them "
    "with a gradient of 0.",
    alternative="`torch.exp(x.clamp(max=0))`. At a tie, the derivative of `clamp` is 1, and that "
    "of `torch.minimum` 1/2.",
)


def right(x: Any, alpha: Any) -> Any:
    cause("infinite-derivative")
    safe = torch.where(x > 0, 0.0, x)
    curve = alpha * (torch.exp(safe) - 1)
    return torch.where(x > 0, x, curve)


CASES = (
    ("for x from -3 to 3", (-3.0, -1.0, -0.25, 0.5, 3.0)),
    ("for x from -0.01 to 0.01", (-0.01, -0.001, 0.001, 0.01)),
    ("for x = 0", (0.0, 0.0)),
    ("for x up to 80", (-80.0, -2.0, 40.0, 80.0)),
    ("for x up to 200", (-200.0, -1.5, 1.0, 89.0, 200.0)),
    ("for x up to 1,000", (-1000.0, -0.5, 2.0, 1000.0)),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take values and gradients near 0 and far from it."""
    causes = []
    for case, numbers in CASES:
        moved = [number * draw.uniform(0.98, 1.0) for number in numbers]
        x = torch.tensor(moved, requires_grad=True)
        alpha = torch.tensor(draw.uniform(1.5, 2.5), requires_grad=True)
        got, named = run_answer(answer, case, x, alpha)
        result = read_tensor(got, case, "a tensor like `x`", x.shape)
        arriving = torch.tensor(
            [draw.uniform(0.5, 1.5) for _ in numbers]
        )  # positive, so that nothing cancels for alpha
        if got.requires_grad:
            got.backward(arriving.to(got.dtype))
        yield Case(
            case,
            {
                "the result": result,
                "the gradient for `alpha`": "missing" if alpha.grad is None else alpha.grad,
                "the gradient for `x`": "missing"
                if x.grad is None
                else x.grad / arriving + 0.0,  # 0.0 for -0.0
            },
        )
        causes.append(named)
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


SAFE, CURVE = "safe = torch.where(x > 0, 0.0, x)", "curve = alpha * (torch.exp(safe) - 1)"
RETURN, UNSAFE = "return torch.where(x > 0, x, curve)", "safe = x"
HOOKS = "[one.register_hook(torch.nan_to_num) for one in (x, alpha)]"
BRANCH = (
    "the exponential still gets numbers above 88.7, and gives inf. `torch.where` does not take it, "
    "but sends a gradient of 0 into that branch, and 0 · inf is NaN: limit what goes into `exp`"
)

mistakes = [
    Mistake("unchanged", BRANCH, answer=patient, violates="an `elu` without the fault"),
    Mistake(
        "limits the curve",
        "the result of `exp` is finite now, but its derivative is still inf for large x: limit "
        "its argument",
        edits={SAFE: UNSAFE, CURVE: "curve = alpha * (torch.exp(x).clamp(max=1e30) - 1)"},
    ),
    Mistake(
        "in fp64",
        "the exponential overflows only later now, as it does in fp64 from 709.7 on: give it a "
        "safe argument instead",
        edits={SAFE: "safe = x.double()", RETURN: "return torch.where(x > 0, x, curve).float()"},
        violates="up to 1,000",
    ),
    Mistake(
        "replaces NaN gradients",
        "the gradients are finite now, but wrong: a NaN that is replaced by 0 loses the true "
        "gradient. Make sure that no NaN arises",
        edits={SAFE: f"{UNSAFE}\n{HOOKS}"},
        violates="right gradients",
    ),
    Mistake(
        "limits x",
        "large values of x are cut off in the result, too: limit only what goes into `exp`",
        edits={SAFE: "x = safe = x.clamp(max=80)"},
        violates="the same values",
    ),
    Mistake(
        "a mask",
        "a product with 0 does not remove an inf, since 0 · inf is NaN: give `exp` a safe argument",
        edits={SAFE: UNSAFE, RETURN: "return (x > 0) * x + (x <= 0) * curve"},
    ),
    Mistake(
        "torch.minimum",
        "at x = 0 only half of the gradient comes through, as at a tie in `torch.minimum`: take "
        "`torch.where` or `clamp`",
        edits={SAFE: "safe = torch.minimum(x, torch.zeros_like(x))"},
        violates="At x = 0, the gradient for `x` is `alpha`",
    ),
    Mistake(
        "a ReLU",
        "at x = 0 no gradient comes through the curve. The derivative of `relu` and of `abs` is 0 "
        "there, and so is that of a constant in x's place: replace x only where x > 0",
        edits={SAFE: "safe = -torch.relu(-x)"},
    ),
    Mistake(
        "0 counted as positive",
        "at x = 0 the gradient is 1, as that of the line, and the card asks for the curve's: test "
        "for `x > 0`",
        edits={SAFE: SAFE.replace(">", ">="), RETURN: RETURN.replace(">", ">=")},
    ),
    Mistake(
        "a sum of two clamps",
        "at x = 0 the gradients of both branches add up to 1 + alpha: let `torch.where` choose one",
        edits={RETURN: "return x.clamp(min=0) + curve"},
    ),
    Mistake(
        "leaves out the curve",
        "below 0 the result is 0 now, as in a ReLU: the curve has to stay",
        edits={RETURN: "return torch.where(x > 0, x, 0.0 * curve)"},
    ),
    Mistake(
        "without gradients",
        "no gradient for `x` passes through `exp`, although it should below 0: is there a "
        "`detach` or a `no_grad`?",
        edits={CURVE: "curve = alpha * (torch.exp(safe.detach()) - 1)"},
    ),
]

late_anomaly = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages=describe_cause(
        "In the patient, the loss is finite in step 1, and so are the data. At x = 200, the values "
        "of `curve`, which nobody uses, are inf."
    ),
)
