"""Answers to `keep_bn_fp32`, written without a look at its table of mistakes."""

import copy

import torch
from torch import nn

from amp_course.recipes.exercises.keep_bn_fp32 import right

BatchNorm = nn.modules.batchnorm._BatchNorm


def halve(x):
    return x.half() if torch.is_tensor(x) and x.is_floating_point() else x


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, BatchNorm)]


def applied(model, skip=BatchNorm):
    for module in model.modules():
        _ = isinstance(module, skip) or module._apply(halve, recurse=False)
    return model


def restores(model):
    saved = [copy.deepcopy(norm.state_dict()) for norm in norms_of(model)]
    for norm, state in zip(norms_of(model.half()), saved, strict=True):
        norm.float().load_state_dict(state)
    return takes_floats(model)


def takes_floats(model):
    forward = model.forward
    model.forward = lambda x: forward(halve(x)).float()
    return model


def float_around(norm):
    norm.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    return norm.register_forward_hook(lambda module, args, output: output.half())


FIRST: dict = {}
RIGHT = {
    "restores": restores,
    "`_apply`": lambda model: takes_floats(applied(model)),
    "fp32 around norms": lambda model: [*map(float_around, norms_of(model))] and right(model),
}
WRONG = {
    "each child": (
        lambda m: (
            takes_floats(m) and [isinstance(n, BatchNorm) or n.half() for n in m.children()] and m
        ),
        "children only",
    ),
    "`_apply` on a copy": (lambda model: takes_floats(applied(copy.deepcopy(model))), "a copy"),
    "the first model again": (
        lambda model: FIRST.setdefault("model", right(model)),
        "remembers an earlier call",
    ),
    "half, then float": (
        lambda m: [n.float() for n in norms_of(m.half())] and m,
        "through fp16 and back",
    ),
    "BatchNorm2d only, batch not cast": (
        lambda model: applied(model, nn.BatchNorm2d),
        "BatchNorm2d only",
    ),
    "all but layers": (
        lambda m: takes_floats(applied(m, (BatchNorm, nn.LayerNorm, nn.GroupNorm))),
        "two more",
    ),
    "new statistics": (lambda m: [n.reset_running_stats() for n in norms_of(m)] and right(m), None),
    "in a wrapper": (lambda model: nn.Sequential(right(model)), None),
    "each module": (
        lambda m: [isinstance(n, BatchNorm) or n.half() for n in m.modules()] and m,
        "everything in half",
    ),
}
