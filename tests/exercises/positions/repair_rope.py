"""Answers to `repair_rope`, written without a look at its table of mistakes."""

import functools
import math

import torch


def by_complex_numbers(x, positions):
    half = x.shape[-1] // 2
    turns = torch.outer(
        positions.double(), torch.exp(torch.arange(half).double() * (-math.log(10_000.0) / half))
    )
    turned = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(
        torch.ones_like(turns), turns
    )
    return torch.cat([turned.real, turned.imag], dim=-1).type_as(x)


@torch.autocast("cpu", enabled=False)
def autocast_off(x, positions, cast_tables=False):
    frequencies = 1.0 / 10_000.0 ** (
        torch.arange(0, x.shape[-1], 2, dtype=torch.int64).float() / x.shape[-1]
    )
    angles = (frequencies[:, None] @ positions[None, :].float()).T.repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    cos, sin = (
        table.to(x.dtype) if cast_tables else table for table in (angles.cos(), angles.sin())
    )
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


RIGHT = {
    "complex numbers": by_complex_numbers,
    "autocast off": autocast_off,
    "tables cast last": functools.partial(autocast_off, cast_tables=True),
}
WRONG = {
    "low ids": (lambda x, ids: by_complex_numbers(x, ids.to(x.dtype)), "casts the position ids"),
    "x itself at 0": (lambda x, ids: by_complex_numbers(x, ids) if ids.any() else x, None),
    "in bf16": (
        lambda x, ids: by_complex_numbers(x.bfloat16(), ids).to(x.dtype),
        "rounds to 16 bits on the way",
    ),
}


def coarse_under_autocast(x, positions):
    def rounds(values):
        return values.bfloat16().float() if torch.is_autocast_enabled("cpu") else values.float()

    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half).float() / half)
    angles = rounds(rounds(positions)[:, None] * rounds(frequencies))
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


SIBLINGS = {"rounded where autocast is on": (coarse_under_autocast, "a matmul", "your matmul")}
