"""Answers to `safe_function`, written without a look at its table of mistakes."""

import torch
from torch.autograd import Function

fwd = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
bwd = torch.amp.custom_bwd(device_type="cpu")
off = torch.autocast("cpu", enabled=False)


def in_float(ctx, x, c):
    x, c = x.to(torch.float32), c.to(torch.float32)
    ctx.save_for_backward(x, c)
    return x.pow(2).sum(1, True) + c.pow(2).sum(1) - 2 * torch.einsum("nf,mf->nm", x, c)


def keeps_what_came(ctx, x, c):
    ctx.save_for_backward(x, c)
    return differences(x, c)


def backward(ctx, grad):
    x, c = ctx.saved_tensors
    return 2 * (x * grad.sum(1)[:, None] - grad @ c), 2 * (c * grad.sum(0)[:, None] - grad.T @ x)


def differences(x, c):
    return (x.float()[:, None, :] - c.float()).square().sum(dim=-1)


def function(forward, backward):
    return type(
        "Distances",
        (Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )


RIGHT = {
    "decorators": function(fwd(in_float), bwd(backward)),
    "islands": function(off(in_float), off(backward)),
    "plain ops without a matmul": type("Distances", (), {"apply": staticmethod(differences)}),
}
WRONG = {
    "only forward": (function(off(keeps_what_came), backward), "backward as it was"),
    "decorators, keeps what came": (
        function(fwd(keeps_what_came), bwd(backward)),
        "saves what came in, with decorators",
    ),
    "a function": (differences, None),
    "only .float()": (function(in_float, backward), "the given Function"),
    "only backward": (function(in_float, off(backward)), "forward not protected"),
    "the gradients swapped": (function(fwd(in_float), bwd(lambda *a: backward(*a)[::-1])), None),
}
