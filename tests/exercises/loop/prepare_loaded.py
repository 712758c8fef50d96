"""Answers to `prepare_loaded`, written without a look at its table of mistakes."""

import copy

import torch
from torch import nn

from amp_course.checking import edited


def floats_all_then_back(model, lr):
    frozen = [(p, p.dtype) for p in model.parameters() if not p.requires_grad]
    model.float()
    for p, dtype in frozen:
        p.data = p.data.to(dtype)
    return torch.optim.AdamW(model.parameters(), lr=lr)


def optimizer_first(model, lr):
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr)
    for tensor in [*optimizer.param_groups[0]["params"], *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.float32)
    return optimizer


def layer_by_layer(model, lr):
    for layer in model.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            setattr(layer, name, buffer.float() if buffer.is_floating_point() else buffer)
        for p in layer.parameters(recurse=False):
            if p.requires_grad:
                p.data = p.data.float()
    groups = [{"params": [p]} for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(groups, lr=lr)


def new_parameters(model, lr):
    for layer in model.modules():
        for name, p in [*layer._parameters.items()]:
            if p is not None and p.requires_grad:
                layer._parameters[name] = nn.Parameter(p.detach().float())
        for name, buffer in [*layer._buffers.items()]:
            if buffer.is_floating_point():
                layer._buffers[name] = buffer.float()
    return torch.optim.AdamW(model.parameters(), lr=lr)


def masters(model, lr):
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW([p.detach().clone().float() for p in trained], lr=lr)


def whole_layers(model, lr):
    for layer in model.modules():
        if any(p.requires_grad for p in layer.parameters(recurse=False)):
            layer.float()
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)


def running_averages(model, lr):
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.requires_grad or "running" in name:
            tensor.data = tensor.data.float()
    return torch.optim.AdamW(model.parameters(), lr=lr)


RETURN = "return torch.optim.AdamW(model.parameters(), lr=lr)"
FIRST = "optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr)"
BACK = "p.data = p.data.to(dtype)"
BUFFER = "setattr(layer, name, buffer.float() if buffer.is_floating_point() else buffer)"
IS_FLOAT = "if tensor.is_floating_point():"
RIGHT = {
    "all to fp32, the frozen ones back": floats_all_then_back,
    "the optimizer first": optimizer_first,
    "layer by layer, a group for each": layer_by_layer,
}
WRONG = {
    "new names": (
        edited(layer_by_layer, {BUFFER: "buffer = buffer.float()"}),
        "buffers left in 16 bits",
    ),
    "as it came": (lambda model, lr: torch.optim.AdamW(model.parameters(), lr), "left in 16 bits"),
    "all to fp32": (edited(floats_all_then_back, {BACK: "pass"}), "frozen ones converted"),
    "a copy in fp32": (lambda model, lr: floats_all_then_back(copy.deepcopy(model), lr), "copies"),
    "new parameters": (new_parameters, "untied"),
    "casts every tensor": (
        edited(optimizer_first, {IS_FLOAT: "if True:"}),
        "integer buffers converted",
    ),
    "trains everything": (
        edited(floats_all_then_back, {BACK: "p.requires_grad_().data = p.data.to(dtype)"}),
        None,
    ),
    "SGD": (edited(floats_all_then_back, {RETURN: RETURN.replace("AdamW", "SGD")}), None),
    "parameters only": (
        edited(optimizer_first, {IS_FLOAT: "if tensor.requires_grad:"}),
        "buffers left in 16 bits",
    ),
    "whole layers": (whole_layers, None),
    "no buffers but the running averages": (running_averages, None),
    "one group of two": (
        edited(optimizer_first, {FIRST: FIRST.replace("p.requires_grad", "p.dim() > 1")}),
        None,
    ),
    "no optimizer": (lambda model, lr: model.float(), None),
}
SIBLINGS = {
    "buffers only": (
        edited(optimizer_first, {IS_FLOAT: "if not isinstance(tensor, nn.Parameter):"}),
        "left in 16 bits",
        "buffers",
    ),
    "fp32 masters that nothing reads": (masters, "copies", "deepcopy"),
}
