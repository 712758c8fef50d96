"""Answers to `late_anomaly`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def filled(x, alpha):
    cause("unused-branch", "exp")
    below = torch.expm1(x.masked_fill(x > 0, 0.0))
    return torch.where(x > 0, x, alpha * below)


def in_places(x, alpha):
    cause("unused-branch", "exp")
    result = x.clone()
    low = x <= 0
    result[low] = alpha * (x[low].exp() - 1)
    return result


CAUSE, BELOW, END = (
    'cause("unused-branch", "exp")',
    "below = torch.expm1(x.masked_fill(x > 0, 0.0))",
    "return torch.where(x > 0, x, alpha * below)",
)
RIGHT = {
    "filled": filled,
    "in places": in_places,
    "where": edited(filled, {BELOW: "below = torch.exp(torch.where(x > 0, 0.0, x)) - 1"}),
    "clamped further up": edited(filled, {BELOW: "below = torch.exp(x.clamp(max=50)) - 1"}),
    "torch's": edited(filled, {BELOW: "below = torch.nn.functional.elu(x)"}),
    "a ReLU and the rest": edited(filled, {END: "return torch.relu(x) + alpha * below"}),
}
WRONG = {
    "another cause": (edited(filled, {CAUSE: 'cause("nan-in-data")'}), None),
    "no cause": (edited(filled, {CAUSE: "pass"}), None),
    "expm1 alone": (edited(filled, {BELOW: "below = torch.expm1(x)"}), "unchanged"),
    "replaces the inf": (
        edited(filled, {BELOW: "below = torch.nan_to_num(torch.exp(x)) - 1"}),
        "limits the curve",
    ),
    "replaces what is left": (
        edited(filled, {BELOW: "below = torch.exp(x) - 1", END: f"{END}.nan_to_num()"}),
        "unchanged",
    ),
    "a limit of 89": (
        edited(filled, {BELOW: "below = torch.exp(x.clamp(max=89)) - 1"}),
        "unchanged",
    ),
    "the cause of another": (
        edited(filled, {BELOW: "below = torch.expm1(x)", CAUSE: 'cause("log-of-zero")'}),
        "unchanged",
    ),
    "0 below, by masked_fill": (
        edited(filled, {BELOW: "below = torch.expm1(x.masked_fill(x >= 0, 0.0))"}),
        "a ReLU",
    ),
    "0 below, by where": (
        edited(filled, {BELOW: "below = torch.expm1(torch.where(x < 0, x, 0.0))"}),
        "a ReLU",
    ),
    "of −|x|": (edited(filled, {BELOW: "below = torch.expm1(-x.abs())"}), "a ReLU"),
    "in fp64, by expm1": (
        edited(filled, {BELOW: "below = torch.expm1(x.double()).float()"}),
        "unchanged",
    ),
    "two clamps": (
        edited(filled, {END: "return torch.where(x >= 0, x, 0.0) + alpha * below"}),
        "a sum of two clamps",
    ),
    "alpha forgotten": (edited(filled, {END: "return torch.where(x > 0, x, below)"}), None),
    "a number for alpha": (
        edited(filled, {END: "return torch.where(x > 0, x, alpha.item() * below)"}),
        None,
    ),
    "nothing": (edited(filled, {END: "torch.where(x > 0, x, alpha * below)"}), None),
}

# At a tie, the derivative of `clamp` was 1, and is 0 in torch 2.15.
CLAMPED = edited(filled, {BELOW: "below = torch.expm1(x.clamp(max=0))"})
if torch.__version__ < (2, 14):
    RIGHT["clamped"] = CLAMPED
elif torch.__version__ >= (2, 15):
    WRONG["clamped"] = (CLAMPED, "a ReLU")
