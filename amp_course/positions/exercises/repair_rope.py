"""Exercise 3 of chapter 03: a RoPE that is right in every dtype, under autocast and far out."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor, show_value

card = Card(
    chapter="positions",
    name="repair_rope",
    number=3,
    title="Repair a RoPE",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=6,
    task="The given RoPE is right only for float32 x outside autocast. Repair it as "
    "`repair_rope(x, positions)`, for positions up to 100,000: outside autocast for x in float32, "
    "bf16 and fp16, and under bf16 autocast for x in float32 and bf16. The result is a new tensor "
    "with the dtype and the precision of x, and gradients flow back through it.",
    hints=(
        "Ask of each line in which dtype it runs if x is bf16. And under autocast?",
        "Three things are wrong: the frequencies' dtype, the positions' dtype, and `@`, which "
        "autocast runs in bf16 whatever its inputs are.",
        "`torch.arange(..., dtype=torch.float32)`, `positions.float()[:, None] * frequencies`, and "
        "`.to(x.dtype)` on the result.",
    ),
    why="Each of the three faults was shipped in a library that many models were trained with. "
    "Float32 up to the last line avoids them all.",
    alternative="`with torch.autocast(x.device.type, enabled=False):` around a matmul of float32 "
    "tensors, as Hugging Face's models do.",
)


def right(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    result = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return result.to(x.dtype)


# Relative error near 4,096, half of that near 0. In bf16, cos and sin cast last cost up to 0.0029,
# angles cast from [−π, π] 0.0034.
PRECISION = {torch.float32: 2.0**-13, torch.bfloat16: 0.0032, torch.float16: 0.0004}


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Every dtype and region, at near positions, which show the layout, and far ones."""
    places = {  # words → head size, positions
        "positions 0 to 15": (32, torch.arange(16)),
        "positions 4,088 to 4,103": (64, 4_088 + torch.arange(16)),
        "position 0, 16 times": (32, torch.zeros(16, dtype=torch.int64)),
        "positions 300 to 307, then 0 to 7": (10, torch.tensor([*range(300, 308), *range(8)])),
        "positions 65,512 to 65,527": (2 * draw.randint(4, 32), 65_512 + torch.arange(16)),
        "positions 100,000 down to 99,985": (64, 100_000 - torch.arange(16)),
    }
    regions = [*itertools.product((torch.float32, torch.bfloat16), (False, True))]
    regions += [(torch.float16, False)]  # on a CPU, bf16 autocast refuses fp16
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for place, (size, positions) in places.items():
        x = torch.randn(2, 3, 16, size, generator=generator, dtype=torch.float32)
        for dtype, on in regions:
            case = f"for {show_value(dtype)} x{' under bf16 autocast' if on else ''} at {place}"
            for judged in (_rotation, _gradient):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                    outputs = judged(answer, case, x.to(dtype).clone(), positions.clone())
                yield Case(case, outputs)


def _rotation(answer: Any, case: str, x: Tensor, positions: Tensor) -> dict[str, Any]:
    given, ids, on = x.clone(), positions.clone(), torch.is_autocast_enabled("cpu")
    got = call_answer(answer, case, given, ids)
    result = read_tensor(got, case, "the rotated x, a tensor", x.shape)
    kept = torch.equal(given, x) and torch.equal(ids, positions)
    outputs = {
        "autocast": "as before" if torch.is_autocast_enabled("cpu") == on else "switched",
        "the arguments": "as before" if kept else "changed",
        "the result": "new" if result.data_ptr() != given.data_ptr() else "x",
        "the dtype of the result": show_value(result.dtype),
        "the rotated x": result.float(),
    }
    if x.dtype == result.dtype and positions.max() < 5000:  # angles are less exact far out
        error = (result.float() - right(x.float(), positions)).norm() / x.float().norm()
        near = 1 + (positions.max() < 400)
        outputs["precision"] = "that of x" if error / near < PRECISION[x.dtype] else "less"
    return outputs


def _gradient(answer: Any, case: str, x: Tensor, positions: Tensor) -> dict[str, Any]:
    result, gradient = call_answer(answer, case, x.requires_grad_(), positions), None
    if result.requires_grad:
        loss = (result.float() * torch.linspace(-1, 1, x.shape[-1])).sum()
        (gradient,) = torch.autograd.grad(loss, x, allow_unused=True)
    return {"gradient": "missing" if gradient is None else gradient.float()}


FREQUENCIES = (
    "frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)"
)
LOW_FREQUENCIES = {FREQUENCIES: FREQUENCIES.replace("torch.float32", "x.dtype")}
ANGLES = "angles = positions.float()[:, None] * frequencies"
LOW_ANGLES = ANGLES.replace("float()", "to(x.dtype)")
MATMUL = "angles = positions.float()[:, None] @ frequencies[None]"
SPLIT = "first, second = x.float().chunk(2, dim=-1)"
ROTATE = "result = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)"

mistakes = [
    *(
        Mistake(
            name,
            "positions, frequencies and angles are in the dtype of x. Compute them in float32, "
            "without a matmul, and cast last",
            edits={**LOW_FREQUENCIES, ANGLES: angles},
            violates="float32, bf16 and fp16",
        )
        for name, angles in {
            "as given": MATMUL.replace("float()", "to(x.dtype)"),
            "only the matmul is replaced": LOW_ANGLES,
        }.items()
    ),
    Mistake(
        "a matmul",
        "under autocast the angles come out in bf16, like any matmul's result. Multiply "
        "elementwise, or switch autocast off for `x.device.type`",
        edits={ANGLES: f"{MATMUL}\nangles = angles.float()"},
        violates="under bf16 autocast",
    ),
    *(
        Mistake(
            name,
            "position ids are cast to 16 bits, where neighbours become one. Use "
            "`positions.float()`",
            edits={ANGLES: angles},
        )
        for name, angles in {
            "casts the position ids": LOW_ANGLES,
            "positions in bf16": ANGLES.replace("float()", "bfloat16()"),
        }.items()
    ),
    Mistake(
        "computes the frequencies in the dtype of x",
        "the frequencies are computed in the dtype of x, and positions multiply their errors. Use "
        "float32",
        edits=LOW_FREQUENCIES,
    ),
    Mistake(
        "computes the exponents in the dtype of x",
        "the exponents of the frequencies are rounded to the dtype of x, which shows where d/2 is "
        "no power of two. Start with `torch.arange(…, dtype=torch.float32)`",
        edits={FREQUENCIES: LOW_FREQUENCIES[FREQUENCIES] + ".float()"},
    ),
    Mistake(
        "casts the angles",
        "the angles are cast before cos and sin, so thousands of radians lose the fraction of a "
        "turn. Cast after them",
        edits={ANGLES: f"{ANGLES}\nangles = angles.to(x.dtype)"},
    ),
    Mistake(
        "reduces the angles, then casts",
        "{case}, digits are missing, as if angles below 2π had been cast before cos and sin. Cast "
        "after them",
        edits={ANGLES: f"{ANGLES}\nangles = (angles % 6.283185307179586).to(x.dtype)"},
    ),
    Mistake(
        "returns float32",
        "the result is float32 whatever x is, but attention expects q, k and v in one dtype. Cast "
        "last",
        edits={"return result.to(x.dtype)": "return result"},
        violates="with the dtype",
    ),
    Mistake(
        "rounds to 16 bits on the way",
        "x, cos and sin, or the result are rounded to bf16, and no cast restores what is lost. Use "
        "float32",
        edits={SPLIT: SPLIT.replace("float()", "bfloat16().float()")},
        violates="the precision of x",
    ),
    Mistake(
        "pairs neighbouring channels",
        "you pair channels 2c and 2c + 1. That is a RoPE too (GPT-J's), but the given one pairs c "
        "and c + d/2",
        edits={
            SPLIT: "first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)",
            ROTATE: ROTATE.replace("cat", "stack") + ".flatten(-2)",
        },
    ),
    Mistake(
        "turns the other way",
        "x is rotated in the other direction. Check the signs, above all that of sin",
        edits={"cos, sin = angles.cos(), angles.sin()": "cos, sin = angles.cos(), -angles.sin()"},
    ),
    Mistake(
        "wraps positions",
        "positions are taken modulo 4,096, so far tokens count as near ones. Use them as they are",
        edits={ANGLES: ANGLES.replace("positions", "(positions % 4096)")},
        violates="for positions up to 100,000",
    ),
    Mistake(
        "consecutive",
        "the positions are assumed to be consecutive. They may also restart or run backwards, so "
        "use them as they are",
        edits={
            ANGLES: ANGLES.replace("positions", "(positions[0] + torch.arange(len(positions)))")
        },
    ),
    Mistake(
        "cuts the gradient",
        "no gradient flows back to x, so earlier layers never learn. Look for `no_grad`, `detach`, "
        "`.data` or NumPy",
        edits={SPLIT: SPLIT.replace("x.float()", "x.detach().float()")},
        violates="gradients flow back through it",
    ),
]

repair_rope = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=0.02,
    messages={
        "autocast": "{case}, autocast stays switched after your function. Use `with "
        "torch.autocast(…, enabled=False):`",
        "the arguments": "{case}, your function changes its arguments, which the caller still "
        "needs. Return a new tensor",
        "the result": "{case}, your function returns x itself, and the caller may change one of "
        "the two. Return a new tensor",
        "precision": "{case}, the result has fewer right digits than its dtype holds, as if it had "
        "been rounded on the way",
        "gradient": "{case}, the gradient that flows back to x is not that of the rotation",
    },
)
