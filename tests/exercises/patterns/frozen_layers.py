"""Answers to `frozen_layers`, written without a look at its table of mistakes."""

import copy
from typing import ClassVar

import torch
from torch import nn

from amp_course.checking import edited


class Float32Norm(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.parts = nn.ModuleDict({"head": head, "backbone": backbone})
        for module in backbone.modules():
            if isinstance(module, nn.Linear):
                module.half().register_forward_pre_hook(lambda module, given: given[0].half())
                module.register_forward_hook(lambda module, given, output: output.float())
        [parameter.requires_grad_(False) for parameter in backbone.parameters()]
        self.train()

    def forward(self, x):
        with torch.no_grad():
            x = self.parts["backbone"](x.float())
        return self.parts["head"](x)

    def train(self, mode=True):
        self.training = mode
        self.parts["head"].train(mode)
        self.parts["backbone"].train(False)
        return self

    def trainable(self):
        return [p for p in self.parameters() if p.requires_grad]


class KeepsFilter(Float32Norm):
    def __init__(self, *parts):
        super().__init__(*parts)
        self.filtered = filter(lambda parameter: parameter.requires_grad, self.parameters())

    def trainable(self):
        return self.filtered


class OneListForAll(Float32Norm):
    found: ClassVar[list] = []

    def __init__(self, *parts):
        super().__init__(*parts)
        self.found.extend(self.parts["head"].parameters())

    def trainable(self):
        return self.found


NO_GRAD, EVAL = "with torch.no_grad():", 'self.parts["backbone"].train(False)'
GIVEN = "return [p for p in self.parameters() if p.requires_grad]"
CHILD = type("Child", (Float32Norm,), {})
RIGHT = {
    "float32 norm": Float32Norm,
    "a copy": lambda *parts: Float32Norm(*copy.deepcopy(parts)),
    "inherited": CHILD,
}


class InClosure(Float32Norm):
    """Hides the backbone in a function."""

    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        hidden = self.parts.pop("backbone")
        self.run, self.quiet = (lambda x: hidden(x)), hidden.eval

    def forward(self, x):
        with torch.no_grad():
            x = self.run(x.float())
        return self.parts["head"](x)

    def train(self, mode=True):
        self.training = mode
        self.parts["head"].train(mode)
        return self


WRONG = {
    "the head's mode only": (
        edited(Float32Norm, {"self.training = mode": "pass"}),
        "its own mode stays",
    ),
    "in a closure": (InClosure, "hidden in a list"),
    "a filter that is kept": (KeepsFilter, "a generator that is used up"),
    "a list of the class": (OneListForAll, None),
    "inference mode": (edited(Float32Norm, {NO_GRAD: "with torch.inference_mode():"}), None),
    "all in one mode": (
        edited(Float32Norm, {EVAL: 'self.parts["backbone"].train(mode)'}),
        "backbone trains",
    ),
    "matrices only": (
        edited(Float32Norm, {GIVEN: GIVEN.replace("if", "if p.dim() > 1 and")}),
        "last layer only",
    ),
    "float32 after a pass": (edited(Float32Norm, {NO_GRAD: f"self.float()\n{NO_GRAD}"}), None),
}
