"""Answers to `pad_vocabulary`, written without a look at its table of mistakes."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Cut(nn.Module):
    """Cuts the logits."""

    def __init__(self, head, multiple):
        super().__init__()
        self.vocabulary, features = head.weight.shape
        rows = math.ceil(self.vocabulary / multiple) * multiple
        self.linear = nn.Linear(features, rows, bias=head.bias is not None, dtype=head.weight.dtype)
        with torch.no_grad():
            self.linear.weight[: self.vocabulary] = head.weight  # the other rows stay random
            if head.bias is not None:
                self.linear.bias[: self.vocabulary] = head.bias

    def forward(self, inputs):
        return self.linear(inputs)[..., : self.vocabulary]


class Masked(nn.Module):
    """Masks the logits by a bias that is not trained."""

    def __init__(self, head, multiple):
        super().__init__()
        vocabulary = len(head.weight)
        rows = (vocabulary + multiple - 1) // multiple * multiple
        self.weight = nn.Parameter(
            torch.cat(
                [head.weight.detach(), head.weight.new_zeros(rows - vocabulary, head.in_features)]
            )
        )
        self.bias = nn.Parameter(head.bias.detach().clone()) if head.bias is not None else None
        self.register_buffer(
            "mask",
            head.weight.new_zeros(rows).index_fill_(0, torch.arange(vocabulary, rows), -math.inf),
        )

    def forward(self, inputs):
        logits = inputs @ self.weight.mT + self.mask
        return (
            logits
            if self.bias is None
            else logits + F.pad(self.bias, (0, len(self.mask) - len(self.bias)))
        )


def sequential(head, multiple):
    cut = Cut(head, multiple)
    return nn.Sequential(cut.linear, nn.Identity()) if len(head.weight) % multiple == 0 else cut


class Infinite(Cut):
    """Has rows of -inf, and cuts the logits."""

    def __init__(self, head, multiple):
        super().__init__(head, multiple)
        self.linear.weight.data[self.vocabulary :] = -math.inf


class Twice(Cut):
    """Adds the padding by a second matmul."""

    def forward(self, inputs):
        rows = self.linear.weight[self.vocabulary :]
        return torch.cat(
            [F.linear(inputs, self.linear.weight[: self.vocabulary]), inputs @ rows.T], dim=-1
        )


def smallest(head, multiple):
    masked = Masked(head, multiple)
    masked.mask.nan_to_num_(neginf=-1e3)
    return masked


def hidden_by_bias(value):
    def pad(head, multiple):
        linear, vocabulary = Cut(head, multiple).linear, len(head.weight)
        if head.bias is not None:
            linear.bias.data[vocabulary:] = value
        linear.weight.data[vocabulary:] = 0
        return linear

    return pad


RIGHT = {"cuts the logits": Cut, "a mask": Masked, "a sequence, if nothing is missing": sequential}


class Forgetful(Masked):
    """Keeps the bias, but does not add it."""

    def forward(self, inputs):
        return inputs @ self.weight.mT + self.mask


WRONG = {
    "a bias that is not added": (Forgetful, "the bias not added"),
    "rows of -inf": (Infinite, "rows not filled"),
    "no cut": (lambda head, multiple: Cut(head, multiple).linear, "padded logits take probability"),
    "a bias of -inf": (hidden_by_bias(-math.inf), "a bias of -torch.inf hides them"),
    "a bias of -10,000": (hidden_by_bias(-1e4), "a bias of -1e4 hides them"),
    "two matmuls": (Twice, None),
    "a constant": (smallest, "a finite constant"),
    "at least one row": (
        lambda head, m: Cut(head, (len(head.weight) // m + 1) * m),
        "a multiple more",
    ),
    "the weight alone": (
        lambda head, multiple: F.pad(head.weight, (0, 0, 0, -len(head.weight) % multiple)),
        None,
    ),
}
