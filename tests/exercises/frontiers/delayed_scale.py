"""Answers to `delayed_scale`, written without a look at its table of mistakes."""

import math

import torch

from amp_course.checking import edited

E4M3 = torch.float8_e4m3fn


class Rolled:
    """As Transformer Engine does: a tensor of zeros that is rolled."""

    def __init__(self, length):
        self.amaxes = torch.zeros(length)

    def quantize(self, x):
        largest = self.amaxes.max()
        scale = torch.where(largest > 0, largest / 448, 1.0)
        q = torch.clamp(x / scale, min=-448, max=448).to(E4M3)
        amax = x.abs().max()
        if bool(torch.isfinite(amax)):
            self.amaxes = torch.roll(self.amaxes, 1)
            self.amaxes[0] = amax
        return q, scale


class Listed:
    """A list of all amaxes, of which the last ones are looked at; the factor is the inverse one."""

    def __init__(self, length):
        self.length, self.amaxes = length, []

    def quantize(self, x):
        recent = [one for one in self.amaxes[-self.length :] if one]
        factor = 448 / max(recent) if recent else 1.0
        scaled = x * factor
        result = (
            torch.minimum(torch.maximum(scaled, torch.tensor(-448.0)), torch.tensor(448.0)).to(
                E4M3
            ),
            1 / factor,
        )
        amax = float(torch.linalg.vector_norm(x, ord=torch.inf))
        if math.isfinite(amax):
            self.amaxes.append(amax)
        return result


class Ahead:
    """The scale of the next step is computed at the end of this one."""

    def __init__(self, length):
        self.window, self.scale, self.steps = [0.0] * length, 1.0, 0

    def quantize(self, x):
        q = (x.double() / self.scale).clamp(-448, 448).float().to(E4M3)
        used = self.scale
        amax = float(x.abs().amax())
        if not (math.isinf(amax) or math.isnan(amax)):
            self.window[self.steps % len(self.window)] = amax
            self.steps += 1
        self.scale = max(self.window) / 448 or 1.0
        return q, used


FINITE, NOT_FINITE = (
    "if bool(torch.isfinite(amax)):",
    "if not (math.isinf(amax) or math.isnan(amax)):",
)
RECENT = "recent = [one for one in self.amaxes[-self.length :] if one]"
FACTOR = "factor = 448 / max(recent) if recent else 1.0"
RIGHT = {"rolled": Rolled, "listed": Listed, "ahead": Ahead}
WRONG = {
    "records inf": (edited(Rolled, {FINITE: "if True:"}), "inf is recorded in a tensor"),
    "the step counts": (
        edited(Ahead, {NOT_FINITE: "self.steps += math.isinf(amax)\nif math.isfinite(amax):"}),
        None,
    ),
    "records inf, in a list": (edited(Listed, {"if math.isfinite(amax):": "if True:"}), None),
    "current scaling": (edited(Listed, {RECENT: "recent = [x.abs().max().item()]"}), None),
    "from x at first": (
        edited(
            Listed,
            {FACTOR: "factor = 448 / (max(recent, default=0) or float(x.abs().max()) or 448)"},
        ),
        "the scale from x after zeros",
    ),
    "the latest": (
        edited(Rolled, {"largest = self.amaxes.max()": "largest = self.amaxes[0]"}),
        "only the latest",
    ),
    "one more": (
        edited(
            Listed,
            {
                "recent = [one for one in self.amaxes[-self.length :] if one]": "recent = [one for "
                "one in self.amaxes[-self.length - 1 :] if one]"
            },
        ),
        "forgets too late",
    ),
    "all": (
        edited(
            Listed,
            {
                "recent = [one for one in self.amaxes[-self.length :] if one]": "recent = [one for "
                "one in self.amaxes if one]"
            },
        ),
        "never forgets",
    ),
    "the scale stays at zeros": (
        edited(
            Ahead,
            {
                "self.scale = max(self.window) / 448 or 1.0": "self.scale = max(self.window) / 448 "
                "or self.scale"
            },
        ),
        "keeps the scale through zeros",
    ),
    "pops the newest": (
        edited(
            Listed,
            {
                "self.amaxes.append(amax)": "self.amaxes.append(amax)\n"
                "if len(self.amaxes) > self.length:\n    self.amaxes.pop()"
            },
        ),
        "drops the newest",
    ),
    "a moving average": (
        edited(
            Ahead,
            {
                "self.scale = max(self.window) / 448 or 1.0": "self.scale = 0.9 * self.scale + 0.1 "
                "* amax / 448"
            },
        ),
        None,
    ),
    "headroom": (
        edited(
            Ahead,
            {
                "self.scale = max(self.window) / 448 or 1.0": "self.scale = max(self.window) / 224 "
                "or 1.0"
            },
        ),
        None,
    ),
    "the scale that comes": (edited(Ahead, {"return q, used": "return q, self.scale"}), None),
    "one list for all": (
        edited(
            Listed,
            {
                "self.length, self.amaxes = length, []": "self.length, self.amaxes = length, "
                "Listed.__dict__.get('kept', [])\nListed.kept = self.amaxes"
            },
        ),
        "a shared history",
    ),
}
