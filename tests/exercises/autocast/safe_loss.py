"""Answers to `safe_loss`, written without a look at its table of mistakes."""

import torch
from torch import nn
from torch.nn import functional as F


def module(head, features, targets):
    logits = head(features)
    return [
        logits.detach().float().sigmoid()[:, 0],
        nn.BCEWithLogitsLoss()(logits, targets[:, None]),
    ]


def log_sigmoid(head, features, targets, limit=1e6):
    z = head(features)[:, 0].float().clamp(-limit, limit)
    terms = targets * F.logsigmoid(z) + (1 - targets) * F.logsigmoid(-z)
    return torch.special.expit(z), -terms.mean()


RIGHT = {
    "module, a column": module,
    "logsigmoid": log_sigmoid,
    "a tuple": lambda *a: tuple(module(*a)),
}


def log_of_exp(head, features, targets):
    z = head(features)[:, 0].float()
    losses = targets * (1 + (-z).exp()).log() + (1 - targets) * (1 + z.exp()).log()
    return z.sigmoid(), losses.mean()


def eps_in_the_logarithm(head, features, targets):
    p = head(features)[:, 0].float().sigmoid()
    losses = targets * (p + 1e-8).log() + (1 - targets) * (1 - p + 1e-8).log()
    return p, -losses.mean()


SIBLINGS = {"an eps in the logarithm": (eps_in_the_logarithm, None, "the loss is 8.9")}
WRONG = {
    "log and exp": (log_of_exp, "exp overflows"),
    "log and exp of z only": (
        lambda h, f, t: (
            (z := h(f)[:, 0].float()).sigmoid(),
            torch.log(1 + torch.exp(z)).sub(z * t).mean(),
        ),
        "exp overflows",
    ),
    "squeezed, summed": (
        lambda h, f, t: (
            (z := h(f).squeeze()).sigmoid(),
            F.binary_cross_entropy_with_logits(z, t, reduction="sum"),
        ),
        "the sum, of logits without a batch",
    ),
    "all of it in an island": (
        torch.autocast("cpu", enabled=False)(log_sigmoid),
        "the head in an island",
    ),
    "BCELoss, as a module": (
        lambda h, f, t: ((p := h(f)[:, 0].sigmoid()), nn.BCELoss()(p, t)),
        "the given loss",
    ),
    "clamped logits": (lambda *a: log_sigmoid(*a, limit=20.0), None),
    "a float for the loss": (lambda *a: (module(*a)[0], module(*a)[1].item()), None),
}
