"""Exercise 8 of chapter 11: NaN from the second step on, while anomaly mode blames a line that is
right.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.late_anomaly import elu as faulty
from amp_course.debugging.clinic.trials import Runner, describe_cause

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
    "`alpha`. Name the fault, and the op that `first_nonfinite` names, in its first line, "
    'with `cause("…", "…")`.',
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
    alternative="`torch.exp(x.masked_fill(x > 0, 0))`. At a tie, the derivative of `torch.minimum` "
    "is 1/2, and that of `clamp` 1 in torch 2.13, but 0 in 2.15.",
)


def right(x: Any, alpha: Any) -> Any:
    cause("infinite-derivative", "exp")
    safe = torch.where(x > 0, 0.0, x)
    curve = alpha * (torch.exp(safe) - 1)
    return torch.where(x > 0, x, curve)


WITHOUT = "what gets no gradient"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take values and gradients near 0 and far from it."""
    run = Runner(answer)
    for case, *numbers in (
        ("for x from -3 to 3", -3.0, -1.0, -0.25, 0.5, 3.0),
        ("for x from -0.01 to 0.01", -0.01, -0.001, 0.001, 0.01),
        ("for x = 0", 0.0, 0.0),
        ("for x up to 80", -80.0, -2.0, 40.0, 80.0),
        ("for x up to 200", -200.0, -1.5, 1.0, 89.0, 200.0),
        ("for x up to 1,000", -1000.0, -0.5, 2.0, 1000.0),
    ):
        x = torch.tensor([one * draw.uniform(0.98, 1.0) for one in numbers], requires_grad=True)
        alpha = torch.tensor(draw.uniform(1.5, 2.5), requires_grad=True)
        leaves = {"`x`": x, "`alpha`": alpha}
        got = run(case, x, alpha)
        result = read_tensor(got, case, "a tensor like `x`", x.shape)
        # positive, so that nothing cancels for alpha
        arriving = torch.tensor([draw.uniform(0.5, 1.5) for _ in numbers])
        if got.requires_grad:
            got.backward(arriving.to(got.dtype))
        yield Case(
            case,
            {
                "the result": result,
                WITHOUT: " and ".join(name for name, one in leaves.items() if one.grad is None),
                "the gradient for `alpha`": alpha.grad,
                # + 0.0 makes 0.0 of -0.0
                "the gradient for `x`": None if x.grad is None else x.grad / arriving + 0.0,
            },
        )
    yield run.last_case(with_op=True)


SAFE, CURVE = "safe = torch.where(x > 0, 0.0, x)", "curve = alpha * (torch.exp(safe) - 1)"
RETURN, UNSAFE = "return torch.where(x > 0, x, curve)", "safe = x"

mistakes = [
    Mistake(
        "unchanged",
        "`exp` still gets numbers above 88.7, and gives inf. `torch.where` does not select that "
        "branch, but sends a gradient of 0 into it, and 0 · inf is NaN. Limit the argument of "
        "`exp`",
        answer=faulty,
        violates="an `elu` without the fault",
    ),
    Mistake(
        "limits the curve",
        "`exp` gives a finite result, but its derivative is still inf. Limit its argument",
        edits={SAFE: UNSAFE, CURVE: "curve = alpha * (torch.exp(x).clamp(max=1e30) - 1)"},
    ),
    Mistake(
        "in fp64",
        "the exponential still overflows, in fp64 from 709.7 on. Give it a safe argument",
        edits={SAFE: "safe = x.double()", RETURN: "return torch.where(x > 0, x, curve).float()"},
        violates="up to 1,000",
    ),
    Mistake(
        "replaces NaN gradients",
        "replacing NaN by 0 loses the true gradient. Make sure that no NaN arises",
        edits={SAFE: f"{UNSAFE}\n[one.register_hook(torch.nan_to_num) for one in (x, alpha)]"},
        violates="right gradients",
    ),
    Mistake(
        "limits x",
        "large values of x are limited in the result too. Limit only the argument of `exp`",
        edits={SAFE: "x = safe = x.clamp(max=80)"},
        violates="the same values",
    ),
    Mistake(
        "a mask",
        "0 · inf is NaN, so a factor of 0 removes no inf. Give `exp` a safe argument",
        edits={SAFE: UNSAFE, RETURN: "return (x > 0) * x + (x <= 0) * curve"},
    ),
    Mistake(
        "torch.minimum",
        "at x = 0 half of the gradient is lost, as in `torch.minimum`. Use `torch.where`",
        edits={SAFE: "safe = torch.minimum(x, torch.zeros_like(x))"},
        violates="At x = 0, the gradient for `x` is `alpha`",
    ),
    Mistake(
        "a ReLU",
        "at x = 0 no gradient comes through the curve. The derivatives of `relu`, `abs` and, in "
        "torch 2.15, `clamp` are 0 there, and so is that of a constant in place of x. Replace x "
        "only where x > 0",
        edits={SAFE: "safe = -torch.relu(-x)"},
    ),
    Mistake(
        "0 counted as positive",
        "at x = 0 the gradient is 1, that of the line, not that of the curve. Test for `x > 0`",
        edits={SAFE: SAFE.replace(">", ">="), RETURN: RETURN.replace(">", ">=")},
    ),
    Mistake(
        "a sum of two clamps",
        "at x = 0 the gradients of both branches add up to 1 + alpha. Let `torch.where` choose one",
        edits={RETURN: "return torch.where(x >= 0, x, 0.0) + curve"},
    ),
    Mistake(
        "leaves out the curve",
        "below 0 the result is 0, as in a ReLU. Keep the curve",
        edits={RETURN: "return torch.where(x > 0, x, 0.0 * curve)"},
    ),
    Mistake(
        "without gradients",
        "no gradient for `x` comes through `exp`. Is there a `detach` or a `no_grad`?",
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
        "In the faulty script, the loss of step 1 is finite, and so are the data. At x = 200, the "
        "values of `curve`, which are not used, are inf."
    )
    | {
        WITHOUT: "{case}, no gradient reaches {got}. Is there a `detach`, an `item()` or a "
        "`no_grad`?"
    },
)
