"""Answers to `masked_rows`, written without a look at its table of mistakes."""

import math

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def torchs_own(q, k, v, keep):
    cause("masked-row", "_softmax")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, :])


def in_fp32(q, k, v, keep):
    cause("masked-row", "_softmax")
    scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~keep[:, None], -1e9)
    some = keep.any(-1)[:, None, None]
    return (torch.softmax(scores, -1) * some @ v.float()).to(q.dtype)


def opens_empty_rows(q, k, v, keep):
    cause("masked-row", "_softmax")
    empty = ~keep.any(dim=-1, keepdim=True)
    open_ = (keep | empty)[:, None, :]
    scores = torch.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
    scores = torch.where(open_, scores, -torch.inf)
    out = scores.softmax(-1) @ v
    return out.masked_fill(empty[:, :, None], 0)


def sequence_after_sequence(q, k, v, keep):
    cause("masked-row", "_softmax")
    out = []
    for i in range(len(q)):
        real = keep[i]
        if real.any():
            scores = q[i] @ k[i][real].T / q.shape[-1] ** 0.5
            out.append(scores.softmax(-1) @ v[i][real])
        else:
            out.append(torch.zeros_like(q[i]))
    return torch.stack(out)


def fills_twice(q, k, v, keep):
    cause("masked-row", "_softmax")
    hidden = ~keep[:, None, :]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    out = weights @ v
    return out


CAUSE, FILL, WEIGHTS = (
    'cause("masked-row", "_softmax")',
    "scores = scores.masked_fill(~keep[:, None], -1e9)",
    "weights = scores.softmax(-1).nan_to_num(0.0)",
)
FILLED = "scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)"
MASKED = "weights = scores.softmax(-1).masked_fill(hidden, 0.0)"
LAST_OWN = "return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, :])"
OUT, LAST = "out = weights @ v", "return out.masked_fill(empty[:, :, None], 0)"
RIGHT = {
    "torch's own": torchs_own,
    "in fp32": in_fp32,
    "opens empty rows": opens_empty_rows,
    "sequence after sequence": sequence_after_sequence,
    "fills, then zeros for NaN": fills_twice,  # the backward of `masked_fill` drops the NaN
}
WRONG = {
    "another cause": (edited(torchs_own, {CAUSE: 'cause("log-of-zero")'}), None),
    "no cause": (edited(torchs_own, {CAUSE: "pass"}), None),
    "an unknown cause": (edited(torchs_own, {CAUSE: 'cause("bad luck")'}), None),
    "zeros for NaN too late": (
        edited(
            fills_twice,
            {WEIGHTS: "weights = scores.softmax(-1)", OUT: "out = (weights @ v).nan_to_num(0.0)"},
        ),
        "zeros for NaN in the output, after `masked_fill`",
    ),
    "fills with −100": (
        edited(fills_twice, {FILLED: FILLED.replace("-torch.inf", "-100.0"), WEIGHTS: MASKED}),
        "fills with too high a number",
    ),
    "adds −10,000": (
        edited(
            fills_twice,
            {
                FILLED: "scores = q @ k.mT / q.shape[-1] ** 0.5 - 10000 * hidden.to(q.dtype)",
                WEIGHTS: MASKED,
            },
        ),
        "fills with too high a number",
    ),
    "exp in fp32": (
        edited(
            fills_twice,
            {
                FILLED: "scores = (q @ k.mT / q.shape[-1] ** 0.5).float()",
                WEIGHTS: "e = scores.exp() * ~hidden\nweights = (e / (e.sum(-1, keepdim=True) + "
                "1e-3)).to(q.dtype)",
            },
        ),
        "exp of the scores",
    ),
    "−10,000 and the mean": (
        edited(fills_twice, {FILLED: FILLED.replace("-torch.inf", "-1e4")}),
        "fills with too high a number, and keeps the weights of padding",
    ),
    "masks the queries": (
        edited(
            torchs_own,
            {
                LAST_OWN: f"out = {LAST_OWN[7:]}\nsquare = q.shape[1] == k.shape[1]\n"
                "return out * keep[:, :, None] if square else out"
            },
        ),
        None,
    ),
    "−1e9 and the mean": (
        edited(
            fills_twice,
            {FILLED: FILLED.replace("-torch.inf", "-1e9"), WEIGHTS: "weights = scores.softmax(-1)"},
        ),
        "fills with −1e9, and keeps the weights of padding",
    ),
    "one score stays": (
        edited(
            opens_empty_rows,
            {
                "open_ = (keep | empty)[:, None, :]": "open_ = keep.clone()\n"
                "open_[empty[:, 0], 0] = True\nopen_ = open_[:, None, :]",
                LAST: "return out",
            },
        ),
        "attends to its first key",
    ),
    "open rows stay": (edited(opens_empty_rows, {LAST: "return out"}), "attends to the padding"),
    "by hand": (
        edited(fills_twice, {WEIGHTS: "e = scores.exp()\nweights = e / e.sum(-1, keepdim=True)"}),
        "a sum of 0",
    ),
    "no gradient": (edited(opens_empty_rows, {LAST: LAST.replace("out.", "out.detach().")}), None),
    "not scaled": (
        edited(fills_twice, {OUT: "out = (8**0.5 * scores).softmax(-1).nan_to_num(0.0) @ v"}),
        None,
    ),
    "mends only batches of padding": (
        edited(
            fills_twice,
            {WEIGHTS: "weights = scores.softmax(-1) if keep.any() else torch.zeros_like(scores)"},
        ),
        None,
    ),
}
