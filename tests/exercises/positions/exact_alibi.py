"""Answers to `exact_alibi`, written without a look at its table of mistakes."""

import numpy as np
import torch


def plain(slopes, queries, keys):
    return -slopes.float()[:, None, None] * (queries[:, None] - keys[None, :])


def in_float64(slopes, queries, keys):
    distance = (queries.view(-1, 1) - keys).clamp(min=0).double()
    return torch.stack([-slope * distance for slope in slopes.double()]).float()


def with_numpy(slopes, queries, keys):
    distance = np.subtract.outer(queries.numpy(), keys.numpy()).astype(np.float32)
    bias = torch.from_numpy(np.multiply.outer(-slopes.float().numpy(), distance))
    return bias.masked_fill(keys > queries[:, None], float("-inf"))


def matmul(slopes, queries, keys):
    distance = torch.outer(queries.float(), torch.ones(len(keys))) - keys.float()
    return (
        (slopes.float().neg()[:, None] @ distance.flatten()[None])
        .reshape(-1, *distance.shape)
        .to(torch.float32)
    )


RIGHT = {"plain": plain, "float64": in_float64, "NumPy, masked": with_numpy}
WRONG = {
    "matmul": (matmul, "a matmul"),
    "bf16 ids, positive": (
        lambda s, q, k: -plain(s, q.bfloat16().double(), k.bfloat16().double()).float(),
        None,
    ),
    "all as the slopes": (
        lambda s, q, k: (s.view(-1, 1, 1) * (k.to(s) - q.to(s)[:, None])).float(),
        "position ids and product as the slopes",
    ),
    "distance as the slopes": (
        lambda s, q, k: s.float().neg().view(-1, 1, 1) * q.sub(k[:, None]).T.to(s.dtype).float(),
        "casts the distance to the dtype of the slopes",
    ),
    "cdist": (
        lambda s, q, k: (
            -s.float().view(-1, 1, 1) * torch.cdist(q.float()[:, None], k.float()[:, None])
        ),
        None,
    ),
}


def coarse_under_autocast(slopes, queries, keys):
    def rounds(values):
        return values.bfloat16() if torch.is_autocast_enabled("cpu") else values.float()

    distance = rounds(queries[:, None] - keys).float()
    return rounds(-rounds(slopes).float()[:, None, None] * distance)


SIBLINGS = {"rounded where autocast is on": (coarse_under_autocast, "a matmul", "is a matmul")}
