"""Answers to `late_anomaly`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def clamped(x, alpha):
    cause("unused-branch", "exp")
    below = torch.expm1(x.clamp(max=0))
    return torch.where(x > 0, x, alpha * below)


def in_places(x, alpha):
    cause("unused-branch", "exp")
    result = x.clone()
    low = x <= 0
    result[low] = alpha * (x[low].exp() - 1)
    return result


CAUSE, BELOW, END = (
    'cause("unused-branch", "exp")',
    "below = torch.expm1(x.clamp(max=0))",
    "return torch.where(x > 0, x, alpha * below)",
)
RIGHT = {
    "clamped": clamped,
    "in places": in_places,
    "masked": edited(clamped, {BELOW: "below = torch.exp(x.masked_fill(x > 0, 0)) - 1"}),
    "clamped further up": edited(clamped, {BELOW: "below = torch.exp(x.clamp(max=50)) - 1"}),
    "torch's": edited(clamped, {BELOW: "below = torch.nn.functional.elu(x)"}),
    "a ReLU and the rest": edited(clamped, {END: "return torch.relu(x) + alpha * below"}),
}
WRONG = {
    "another cause": (edited(clamped, {CAUSE: 'cause("nan-in-data")'}), None),
    "no cause": (edited(clamped, {CAUSE: "pass"}), None),
    "expm1 alone": (edited(clamped, {BELOW: "below = torch.expm1(x)"}), "unchanged"),
    "replaces the inf": (
        edited(clamped, {BELOW: "below = torch.nan_to_num(torch.exp(x)) - 1"}),
        "limits the curve",
    ),
    "replaces what is left": (
        edited(clamped, {BELOW: "below = torch.exp(x) - 1", END: f"{END}.nan_to_num()"}),
        "unchanged",
    ),
    "a limit of 89": (
        edited(clamped, {BELOW: "below = torch.exp(x.clamp(max=89)) - 1"}),
        "unchanged",
    ),
    "the cause of another": (
        edited(clamped, {BELOW: "below = torch.expm1(x)", CAUSE: 'cause("log-of-zero")'}),
        "unchanged",
    ),
    "0 below, by masked_fill": (
        edited(clamped, {BELOW: "below = torch.expm1(x.masked_fill(x >= 0, 0.0))"}),
        "a ReLU",
    ),
    "0 below, by where": (
        edited(clamped, {BELOW: "below = torch.expm1(torch.where(x < 0, x, 0.0))"}),
        "a ReLU",
    ),
    "of −|x|": (edited(clamped, {BELOW: "below = torch.expm1(-x.abs())"}), "a ReLU"),
    "in fp64, by expm1": (
        edited(clamped, {BELOW: "below = torch.expm1(x.double()).float()"}),
        "unchanged",
    ),
    "two clamps": (
        edited(clamped, {END: "return x.clamp(min=0) + alpha * below"}),
        "a sum of two clamps",
    ),
    "alpha forgotten": (edited(clamped, {END: "return torch.where(x > 0, x, below)"}), None),
    "a number for alpha": (
        edited(clamped, {END: "return torch.where(x > 0, x, alpha.item() * below)"}),
        None,
    ),
    "nothing": (edited(clamped, {END: "torch.where(x > 0, x, alpha * below)"}), None),
}
