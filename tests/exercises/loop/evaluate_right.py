"""Answers to `evaluate_right`, written without a look at its table of mistakes."""

import copy
from fractions import Fraction

import torch

from amp_course.checking import edited


def plain(model, batches):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu"):
        right = [int((model.forward(x).argmax(1) == y).sum()) for x, y in batches]
    for module, mode in modes:
        module.training = mode
    return Fraction(sum(right), sum(len(y) for _, y in batches))


HITS = "right = [int((model.forward(x).argmax(1) == y).sum()) for x, y in batches]"
MODES = "modes = [(module, module.training) for module in model.modules()]"
BACK, SET = "for module, mode in modes:", "module.training = mode"
ON = {
    MODES: "on = [module for module in model.modules() if module.training]",
    BACK: "for module in on:",
}
ONCE = {
    "model.eval()": "model.eval()\nbatches = [[torch.cat(one) for one in zip(*batches, "
    "strict=True)]]"
}
RIGHT = {
    "layer by layer, a Fraction": plain,
    "all at once, layers in train mode": edited(
        plain, {**ON, **ONCE, SET: "module.training = True"}
    ),
    "on a copy": edited(plain, {MODES: f"model = copy.deepcopy(model)\n{MODES}"}),
}
INSIDE_OUT = {BACK: "for module, mode in reversed(modes):", SET: "module.train(mode)"}
TOTALS, KEPT = [0, 0], {}


def adds_up(model, batches):
    share = plain(model, batches)
    TOTALS[0] += share.numerator * sum(len(y) for _, y in batches) // share.denominator
    TOTALS[1] += sum(len(y) for _, y in batches)
    return TOTALS[0] / TOTALS[1]


WRONG = {
    "the model's own mode": (
        edited(
            plain,
            {
                "model.eval()": "vars(model).update(training=False)",
                HITS: HITS.replace(".forward", ""),
            },
        ),
        "eval mode for the model alone",
    ),
    "adds up over calls": (adds_up, "remembers an earlier call"),
    "the first result again": (lambda *both: KEPT.setdefault("first", plain(*both)), None),
    "all layers as the model": (
        edited(plain, {BACK: "for module, _ in modes:", SET: "module.training = modes[0][1]"}),
        "one mode for all layers",
    ),
    "rounded": (edited(plain, {HITS: HITS.replace("argmax", "round().argmax")}), None),
    "put back by train(), inside out": (edited(plain, INSIDE_OUT), "one mode for all layers"),
    "a copy in bf16": (
        lambda model, batches: plain(copy.deepcopy(model).bfloat16(), batches),
        "converts the model",
    ),
}
