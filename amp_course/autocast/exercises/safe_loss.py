"""Exercise 6 of chapter 04: probabilities and their loss, for logits small and large."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_pair, read_tensor
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="autocast",
    name="safe_loss",
    number=6,
    title="Replace sigmoid and BCELoss",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=3,
    task="Write `safe_loss(head, features, targets)`: return the probabilities, and their mean "
    "binary cross-entropy with the targets. For moderate logits the loss equals the given one; "
    "for logits of ±100 it is still right and has a gradient; both hold in any region, and there "
    "the features may be in 16 bits. `head(features)` has the shape (batch, 1), probabilities and "
    "targets (from 0 to 1) the shape (batch,).",
    hints=(
        "Where is a large logit lost: in the head, in sigmoid, or in the logarithm?",
        "Sigmoid and logarithm in one function: `F.binary_cross_entropy_with_logits`, which takes "
        "logits, not probabilities.",
        "`logits = head(features).squeeze(-1)`, then return `torch.sigmoid(logits)` and the loss "
        "of `logits` and `targets`.",
    ),
    why="CUDA's autocast refuses BCELoss. The CPU's accepts it, and a confident mistake gets no "
    "gradient, or NaN in fp16.",
    alternative="`(F.softplus(z) - z * targets).mean()` with `z = logits.float()`: the same "
    "formula, written out.",
)


def right(head: Any, features: Any, targets: Any) -> Any:
    logits = head(features).squeeze(-1)
    probabilities = torch.sigmoid(logits)
    loss = F.binary_cross_entropy_with_logits(logits, targets)
    return probabilities, loss


# Exact in 16 bits. The model is sure of the last eleven, and wrong about nine of them.
LOGITS = torch.tensor([1.0, 2, -2, 2, -2, 1, 60, -60, 30, -30, 60, -60, 9, -13, 14, 100, -100])
TARGETS = torch.tensor([0.0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1])
# Not exact: 16 bits round them by a thousandth, and a small loss changes as much.
MODERATE = torch.tensor([-5.0019, -2.0009, 2.0009, 5.0019])
CAPPED = "whether the loss is too small and without a gradient where the model is sure and wrong"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Moderate logits; large ones in each region and alone; 16-bit features; drawn logits."""
    sure, soft = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.25, 0.1, 0.4, 0.8])
    yield _call(answer, "for moderate logits", MODERATE, sure, exact=True)
    for region in (None, torch.bfloat16, torch.float16):
        where = f"in a region of {dtype_name(region)}" if region else "outside of autocast"
        yield _call(answer, f"for logits from ±1 to ±100 {where}", LOGITS, TARGETS, region)
        for one in (6, 7):
            logit, target = LOGITS[one : one + 1], TARGETS[one : one + 1]
            case = f"for a batch of one with logit {logit.item():g} {where}"
            yield _call(answer, case, logit, target, region)
    case = "for bfloat16 features, as the layer before gives them in a region of bfloat16"
    yield _call(answer, case, LOGITS, TARGETS, torch.bfloat16, dtype=torch.bfloat16)
    yield _call(answer, "for soft targets", MODERATE, soft, exact=True)
    # Not 0, where formulas have a kink
    logits = torch.tensor([draw.randint(-24, 23) / 4 + 0.125 for _ in range(10)])
    targets = torch.tensor([float(draw.random() < 0.5) for _ in range(10)])
    yield _call(answer, "for ten drawn logits", logits, targets, exact=True)


def _call(
    answer: Any,
    case: str,
    logits: Tensor,
    targets: Tensor,
    region: Any = None,
    exact: bool = False,
    dtype: Any = torch.float32,
) -> Case:
    head, calls = nn.Linear(4, 1).train(exact), list[bool]()
    head.register_forward_hook(lambda *_: calls.append(head.training))
    head.weight.data, head.bias.data = torch.ones(1, 4), torch.zeros(1)
    features = (logits[:, None].expand(-1, 4) / 4).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=region or torch.bfloat16, enabled=region is not None):
        got = call_answer(answer, case, head, features, targets.clone())
        state = "on" if torch.is_autocast_enabled("cpu") else "off"
    first, loss = read_pair(got, case, "the pair (probabilities, loss)")
    probabilities = read_tensor(first, case, subject="the first item of your pair is").double()
    value = read_tensor(loss, case, subject="the second item of your pair is").double()
    gradient: Any = "None"
    if loss.requires_grad and loss.numel() == 1:
        call_answer(loss.backward, case)
        if features.grad is not None:  # that at the logits, as the head's weights are 1
            gradient = features.grad[:, 0].float() * len(logits)
    flat = isinstance(gradient, Tensor) and bool((gradient[logits.abs() == 60].abs() < 1e-3).all())
    outputs: dict[str, Any] = {"the tensor of probabilities": probabilities}
    if not exact:  # as 16 bits have them
        outputs["the tensor of probabilities"] = (probabilities * 10).round() / 10
        gradient = (gradient * 10).round() / 10 if isinstance(gradient, Tensor) else gradient
        least = 0.95 * float(F.binary_cross_entropy_with_logits(logits, targets))
        outputs[CAPPED] = flat and bool((value < least).all())
    outputs |= {
        "the loss": value.reshape(()) if value.numel() == 1 else value,
        "the gradient of the summed loss at the logits": gradient,
        "the number of calls of `head`": max(len(calls), 1),
        "autocast after the call": state,
        "the mode of `head`": "unchanged" if {*calls, head.training} == {exact} else "changed",
    }
    return Case(case, outputs)


LOGIT = "logits = head(features).squeeze(-1)"
PROBABILITIES = "probabilities = torch.sigmoid(logits)"
LOSS = "loss = F.binary_cross_entropy_with_logits(logits, targets)"
RETURN = "return probabilities, loss"
BCE = "loss = F.binary_cross_entropy(probabilities, targets)"
CUT = "and BCELoss cuts log(0) at −100. Give the logits to `F.binary_cross_entropy_with_logits`"

mistakes = [
    Mistake(
        "the given loss",
        f"sigmoid saturates: it is 1 for large logits, its slope is 0, {CUT}",
        edits={LOSS: BCE},
        violates="for logits of ±100 it is still right",
    ),
    Mistake(
        "BCELoss in float32",
        f"float32 does not help: from 17 on its sigmoid is exactly 1, {CUT}",
        edits={PROBABILITIES: PROBABILITIES.replace("logits", "logits.float()"), LOSS: BCE},
    ),
    Mistake(
        "BCELoss in float64",
        f"float64 does not help: from 37 on its sigmoid is exactly 1, {CUT}",
        edits={LOSS: "loss = F.binary_cross_entropy(logits.double().sigmoid(), targets.double())"},
    ),
    Mistake(
        "probabilities for logits",
        "the loss was given probabilities, but `…_with_logits` applies sigmoid itself. Give it the "
        "logits",
        edits={LOSS: LOSS.replace("logits,", "probabilities,")},
        violates="For moderate logits the loss equals the given one",
    ),
    Mistake(
        "swapped arguments",
        "the arguments of the loss are swapped. The logits come first, then the targets",
        edits={LOSS: LOSS.replace("logits, targets", "targets, logits")},
    ),
    *(
        Mistake(
            name,
            "the loss is the sum over the examples, which grows with the batch. Take the mean, as "
            "BCELoss does",
            edits={LOSS: LOSS.replace(")", ', reduction="sum")'), LOGIT: logit},
            violates="their mean binary cross-entropy",
        )
        for name, logit in (
            ("the sum", LOGIT),
            ("the sum, of logits without a batch", LOGIT.replace("-1", "")),
        )
    ),
    Mistake(
        "exp overflows",
        "`exp` overflows in float32 from logits of 89 on. Give the logits to "
        "`F.binary_cross_entropy_with_logits`, or write `F.softplus(z)` for `log(1 + exp(z))`",
        edits={LOSS: "z = logits.float()\nloss = ((1 + z.exp()).log() - z * targets).mean()"},
    ),
    Mistake(
        "a formula in 16 bits",
        "the formula is right, but in a region its loss has 16 bits. Use `logits.float()`, and "
        "keep float32",
        edits={
            LOSS: "loss = (F.softplus(logits) - logits * targets.to(logits.dtype)).mean()",
        },
        violates="both hold in any region",
    ),
    Mistake(
        "the head in an island",
        "the head runs where autocast is off, and there 16-bit features meet its float32 weights. "
        "Call it in the caller's region, and apply `.float()` to its logits",
        edits={LOGIT: f"with torch.autocast('cpu', enabled=False):\n    {LOGIT}"},
        violates="the features may be in 16 bits",
    ),
    Mistake(
        "a column of probabilities",
        "the probabilities have the shape (batch, 1). Give sigmoid the logits after `squeeze(-1)`",
        edits={PROBABILITIES: f"{PROBABILITIES}[:, None]"},
        violates="the shape (batch,)",
    ),
    Mistake(
        "a column of logits",
        "the logits have the shape (batch, 1), and the targets (batch,). Apply `squeeze(-1)` to "
        "the logits",
        edits={LOGIT: "logits = head(features)"},
    ),
    Mistake(
        "squeezes the batch away",
        "in a batch of one, the batch is lost with the last dimension. Squeeze only that one, "
        "`squeeze(-1)`",
        edits={LOGIT: "logits = head(features).squeeze()"},
    ),
    Mistake(
        "all pairs",
        "(batch, 1) meets (batch,) in the loss, which broadcasts to all pairs. Give both the shape "
        "(batch,)",
        edits={
            LOSS: "loss = (F.softplus(logits.float()) - logits.float() * targets[:, None]).mean()"
        },
    ),
    Mistake(
        "logits for probabilities",
        "what you return first are the logits. Only the loss takes them, so return "
        "`torch.sigmoid(logits)`",
        edits={RETURN: "return logits, loss"},
        violates="return the probabilities",
    ),
    Mistake(
        "the loss first",
        "the pair is in the wrong order. The probabilities come first, one for each example, then "
        "the loss",
        edits={RETURN: "return loss, probabilities"},
    ),
    Mistake(
        "detached",
        "no gradient reaches the head, because the graph is cut before the loss. Is there a "
        "`.detach()` or `no_grad`?",
        edits={LOGIT: f"{LOGIT}.detach()"},
    ),
]

safe_loss = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        CAPPED: "where the model is sure and wrong, the loss is too small and flat, as after a "
        "clamp or with an eps. Give the logits to `F.binary_cross_entropy_with_logits`"
    },
)
