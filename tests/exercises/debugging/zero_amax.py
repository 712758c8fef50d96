"""Answers to `zero_amax`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def floored(x):
    cause("division-by-zero")
    largest = x.abs().max(dim=1, keepdim=True).values
    scale = 448.0 / largest.clamp(min=1.4e-36)
    with torch.no_grad():
        rounded = (x * scale).to(torch.float8_e4m3fn).float() / scale
    return x + (rounded - x).detach()


class Rounded(torch.autograd.Function):
    """Round to float8 and back; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, x):
        scale = (x.abs().amax(1, keepdim=True) / 448).clamp(min=torch.finfo(x.dtype).tiny)
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def by_a_function(x):
    cause("division-by-zero")
    return Rounded.apply(x)


CAUSE, SCALE = 'cause("division-by-zero")', "scale = 448.0 / largest.clamp(min=1.4e-36)"
END = "return x + (rounded - x).detach()"
TWO = "scale = 448.0 / torch.maximum(largest, torch.tensor(2e-36))"
INF = "scale = 448.0 / largest\nscale = torch.where(scale.isinf(), 3e38, scale)"
RIGHT = {
    "floored": floored,
    "by a function": by_a_function,
    "the gradient of x": edited(floored, {END: "return rounded + (x - x.detach())"}),
    "the larger of two": edited(floored, {SCALE: TWO}),
    "where the scale is inf": edited(floored, {SCALE: INF}),
}
INFINITE = "scale = 448 / largest"
WRONG = {
    "another cause": (edited(by_a_function, {CAUSE: 'cause("masked-row")'}), None),
    "no cause": (edited(by_a_function, {CAUSE: "pass"}), None),
    "the smallest normal number": (
        edited(floored, {SCALE: "scale = 448.0 / largest.clamp(min=1.18e-38)"}),
        "unchanged",
    ),
    "a scale of 0 for inf": (
        edited(floored, {SCALE: "scale = (448.0 / largest).nan_to_num(posinf=0.0)"}),
        "unchanged",
    ),
    "an epsilon of 1e-45": (
        edited(floored, {SCALE: "scale = 448.0 / (largest + 1e-45)"}),
        "unchanged",
    ),
    "a floor of 1e-8": (edited(floored, {SCALE: "scale = 448.0 / largest.clamp(min=1e-8)"}), None),
    "a floor of 1e-30": (
        edited(floored, {SCALE: "scale = 448.0 / largest.clamp(min=1e-30)"}),
        "zeros for tiny rows",
    ),
    "any": (
        edited(floored, {SCALE: "scale = 448.0 / largest if x.any() else torch.ones(())"}),
        None,
    ),
    "zeros by where": (
        edited(
            floored,
            {SCALE: INFINITE, END: f"rounded = torch.where(largest > 0, rounded, 0)\n{END}"},
        ),
        "tests for zero",
    ),
    "zeros for NaN": (
        edited(floored, {SCALE: INFINITE, END: f"rounded = rounded.nan_to_num()\n{END}"}),
        "zeros for tiny rows",
    ),
    "a NaN becomes zero": (edited(by_a_function, {CAUSE: f"{CAUSE}\nx = x.nan_to_num()"}), None),
    "no gradient": (edited(floored, {END: "return rounded"}), None),
}
