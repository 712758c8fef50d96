"""Answers to `steady_sum`, written without a look at its table of mistakes."""

import functools

import torch


def kahan(terms):
    total = carried = torch.zeros_like(terms[0])
    for term in terms:
        wanted = term + carried
        grown = total + wanted
        total, carried = grown, wanted - (grown - total)
    return total


def rounds_each(terms):
    total = terms[0].float()
    for term in terms[1:]:
        total = (total + term).to(term.dtype)
    return total


RIGHT = {
    "torch.sum": lambda terms: torch.stack(terms).sum(dim=0),
    "in float64": lambda terms: torch.stack(terms).sum(dim=0, dtype=torch.float64),
    "Kahan": kahan,
}
WRONG = {
    "mean times number": (
        lambda terms: (
            len(terms) * (sum(terms, start=0.0 * terms[0].float()) / len(terms)).to(terms[0].dtype)
        ),
        "the mean times the number",
    ),
    "rounds each": (rounds_each, "16-bit total"),
    "starts in fp16": (
        lambda terms: sum(terms, start=torch.zeros(terms[0].shape).half()),
        "an fp16 start",
    ),
    "reduced, then cast": (
        lambda terms: functools.reduce(torch.add, terms).double(),
        "casts the result only",
    ),
    "converts in the list": (
        lambda terms: terms.__setitem__(0, terms[0].float()) or sum(terms),
        None,
    ),
    "sorts in place": (
        lambda terms: terms.sort(key=lambda term: term.abs().sum()) or kahan(terms),
        None,
    ),
}
