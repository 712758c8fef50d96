"""Patient 4 of chapter 11: a loss that is NaN in fp16, and only there."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.t5_overflow import Block
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, run_answer

card = Card(
    chapter="debugging",
    name="t5_overflow",
    number=4,
    title="NaN after some steps, in fp16 only",
    difficulty=3,
    importance=5,
    minutes=8,
    lines=5,
    task="Write `t5_overflow(block, hidden)`, a `Block.forward` without the fault. It is called "
    "in a region of fp16 autocast, with `hidden` in fp32 or in fp16. It returns fp32, right to "
    "1%, also where `hidden` or the result is beyond 65,504. The matmul of `wi` stays in fp16, "
    "and gradients reach `wi`, `wo` and `hidden`. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "Which module is the first to give something that is not finite? What does the same "
        "module give in fp32?",
        "In fp16, everything above 65,504 is inf. `wo` runs in fp16 although its weights are in "
        "fp32, and it would do so for an fp32 input, too. What chooses its dtype?",
        'In `with torch.autocast("cpu", enabled=False):`, compute `hidden + '
        "block.wo(inner.float())`; the cause is 'beyond-fp16'.",
    ),
    why="A loss scale only moves gradients. What overflows in the forward pass is inf before "
    "there is a loss to scale.",
    alternative="run `wo` in a region of bf16 autocast, which has fp32's range, and add its "
    "output to `hidden.float()`.",
)


def right(block: Any, hidden: Any) -> Any:
    cause("beyond-fp16")
    inner = torch.relu(block.wi(block.norm(hidden)))
    with torch.autocast("cpu", enabled=False):
        change = block.wo(inner.float())
    return hidden.float() + change


# the case; the dtype of the hidden states, how large they are, and the largest output of `wo`
CASES = (
    ("where all results are small", torch.float32, 1.0, 30.0),
    ("where `wo` gives up to 150,000", torch.float32, 1.0, 150_000.0),
    (
        "where `hidden` holds up to 40,000, in fp16, and `wo` gives up to 50,000",
        torch.float16,
        40_000.0,
        50_000.0,
    ),
    (
        "where `hidden` holds up to 100,000, in fp32, and `wo` up to 50,000",
        torch.float32,
        100_000.0,
        50_000.0,
    ),
)


class Products(TorchDispatchMode):
    """Notes the dtypes of all products of matrices with a given number of rows or columns."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and note its dtype if it is a product."""
        out = op(*args, **(kwargs or {}))
        if any(word in op.name() for word in ("mm", "linear", "matmul")) and self.size in out.shape:
            self.dtypes.add(str(out.dtype)[6:])
        return out


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run a block on hidden states, forward and backward, with outputs of a known size."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    causes = []
    for case, dtype, size, largest in CASES:
        block = Block(8, 16)
        for weight in block.parameters():
            weight.data = torch.randn(weight.shape, generator=generator) * 2
        signs = torch.randint(0, 2, (5, 8), generator=generator) * 2.0 - 1
        hidden = (signs * size * (0.9 + 0.1 * torch.rand(5, 8, generator=generator))).to(dtype)
        # scale and case `wo`, so that its largest output has the same sign as the hidden state
        # there
        with torch.no_grad():
            change = block.wo(torch.relu(block.wi(block.norm(hidden.float()))))
            token, place = divmod(int(change.abs().argmax()), 8)
            block.wo.weight *= largest / float(change.abs().max())
            block.wo.weight[place] *= float(signs[token, place] * change[token, place].sign())
        arriving = torch.randn(5, 8, generator=generator) * 0.01
        hidden.requires_grad_()
        with torch.autocast("cpu", dtype=torch.float16), Products(16) as products:
            got, named = run_answer(answer, case, block, hidden)
        result = read_tensor(got, case, "a tensor like `hidden`", (5, 8))
        if got.requires_grad:
            got.backward(arriving.to(got.dtype))
        gradients = {"wi": block.wi.weight.grad, "wo": block.wo.weight.grad, "hidden": hidden.grad}
        matmul = " and ".join(sorted(products.dtypes)) or "none"
        yield Case(
            case,
            {
                "the result": result.double() if result.is_floating_point() else result,
                "the dtype of the result": str(result.dtype)[6:],
                "the dtype that the matmul of `wi` runs in": matmul,
                **{
                    f"the gradient of `{name}`": read_gradient(one)
                    for name, one in gradients.items()
                },
                "the dtypes of the weights after the call": " and ".join(
                    sorted({str(w.dtype)[6:] for w in block.parameters()})
                ),
            },
            evidence={"wi": matmul},
        )
        causes.append(named)
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


def read_gradient(gradient: Tensor | None) -> Any:
    """Return a gradient in fp64, so that all of its values can be compared, or "missing"."""
    return "missing" if gradient is None else gradient.double()


INNER, REGION = (
    "inner = torch.relu(block.wi(block.norm(hidden)))",
    'with torch.autocast("cpu", enabled=False):',
)
CHANGE, RETURN = "change = block.wo(inner.float())", "return hidden.float() + change"
SUM, IN_FP16 = "return hidden + change", {REGION: "if True:"}
WI_IN_FP32 = {INNER: f"{REGION}\n    inner = torch.relu(block.wi(block.norm(hidden.float())))"}
BFLOAT16 = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
OVERFLOWS = (
    "`wo` runs in fp16, or what it gives is cast to fp16, where everything above 65,504 is inf. "
    "Autocast casts an fp32 "
    'input down again, so `.float()` alone changes nothing: switch autocast (for "cpu" here) off '
    "around `wo`"
)
CUT_OFF = (
    "what is beyond 65,504 is replaced by a limit, which is finite but wrong: compute `wo` and the "
    "sum in fp32"
)

mistakes = [
    Mistake(
        "unchanged", OVERFLOWS, answer=Block.forward, violates="a `Block.forward` without the fault"
    ),
    Mistake("casts the input of wo", OVERFLOWS, edits=IN_FP16),
    Mistake(
        "wo in place of wi",
        f"{OVERFLOWS}. That is not needed around `wi`, which now runs in fp32: its "
        "output fits into fp16",
        edits={**WI_IN_FP32, **IN_FP16},
    ),
    Mistake(
        "wo in place of wi, added in fp16",
        f"{OVERFLOWS}. That is not needed around `wi`, which now runs in fp32: its "
        "output fits into fp16",
        edits={**WI_IN_FP32, **IN_FP16, RETURN: SUM},
    ),
    Mistake(
        "hidden in fp16",
        "`hidden` goes through fp16 before it is added. In fp32 it may be larger than 65,504, "
        "which gives inf: add it in fp32",
        edits={RETURN: "return hidden.half().float() + change"},
        violates="also where `hidden` or the result is beyond 65,504",
    ),
    Mistake(
        "the norm of hidden in fp16",
        "`hidden` goes through fp16 before the norm. In fp32 it may be larger than 65,504, which "
        "gives inf: leave it as it is, since autocast casts what goes into `wi`",
        edits={INNER: INNER.replace("hidden", "hidden.half()")},
    ),
    Mistake(
        "clamps",
        CUT_OFF,
        edits={**IN_FP16, CHANGE: f"{CHANGE}.clamp(-65504, 65504)", RETURN: SUM},
        violates="right to 1%",
    ),
    Mistake(
        "clamps the output of wo, adds in fp32",
        CUT_OFF,
        edits={**IN_FP16, CHANGE: f"{CHANGE}.clamp(-65504, 65504)"},
    ),
    Mistake(
        "clamps the sum",
        CUT_OFF,
        edits={**IN_FP16, RETURN: "return (hidden + change).clamp(-65504, 65504)"},
    ),
    Mistake(
        "fp32's largest number for inf",
        "the inf from `wo` becomes the largest number of fp32, which is finite but wrong: compute "
        "`wo` in fp32",
        edits={**IN_FP16, RETURN: "return (hidden.float() + change).nan_to_num()"},
    ),
    Mistake(
        "zeroes what overflows",
        "what overflows is replaced by 0, so the largest results are lost: compute `wo` in fp32",
        edits={**IN_FP16, CHANGE: f"{CHANGE}.nan_to_num(0.0, 0.0, 0.0)", RETURN: SUM},
    ),
    Mistake(
        "back to fp16",
        "the result is in fp16, where everything above 65,504 is inf: add in fp32, and return fp32",
        edits={RETURN: "return (hidden + change).half()"},
        violates="It returns fp32",
    ),
    Mistake(
        "back to hidden's dtype",
        "for `hidden` in fp16 the result is in fp16, where a sum above 65,504 is inf, although "
        "both parts fit: add in fp32, and return fp32",
        edits={RETURN: "return hidden + change.to(hidden.dtype)"},
        violates="`hidden` in fp32 or in fp16",
    ),
    Mistake(
        "all in fp32",
        "`wi` runs in fp32, too, and its matmul would have been fine in fp16: switch autocast off "
        "around `wo` only",
        edits=WI_IN_FP32,
        violates="stays in fp16",
    ),
    Mistake(
        "all in bf16",
        "`wi` runs in bf16. That has the range, but the card asks for fp16: only `wo` needs more "
        "than 65,504",
        edits={REGION: BFLOAT16, INNER: f"{BFLOAT16}\n    {INNER}"},
    ),
    Mistake(
        "no residual",
        "`hidden` is not added any more: the block returns `hidden` plus what `wo` gives",
        edits={RETURN: "return change"},
    ),
    Mistake(
        "smaller, and not enlarged",
        "what `wo` gives comes back 16 times too small: if you divide by 16 before `wo`, multiply "
        "by 16 after it, in fp32",
        edits={REGION: "if True:", CHANGE: "change = block.wo(inner / 16)"},
    ),
    Mistake(
        "without gradients",
        "no gradient passes through `wo` or reaches its weight, as under `no_grad`: switch only "
        "autocast off there",
        edits={REGION: 'with torch.no_grad(), torch.autocast("cpu", enabled=False):'},
        violates="gradients reach `wi`, `wo` and `hidden`",
    ),
]

t5_overflow = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the patient's step 14, `wo` gives inf in fp16, and 66,100 or so in fp32."
    ),
)
