"""Exercise 4 of chapter 11: a loss that is NaN in fp16, and only there."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.t5_overflow import Block
from amp_course.debugging.clinic.trials import Runner, describe_cause

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
    "and gradients reach `wi`, `wo` and `hidden`. Name the fault, and the op that "
    '`first_nonfinite` names, in its first line, with `cause("…", "…")`.',
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
    cause("beyond-fp16", "mm")
    inner = torch.relu(block.wi(block.norm(hidden)))
    with torch.autocast("cpu", enabled=False):
        change = block.wo(inner.float())
    return hidden.float() + change


class Products(TorchDispatchMode):
    """Notes the dtypes of all matrix products with 16 rows or columns, as those of `wi` have."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and note its dtype if it is a product."""
        out = op(*args, **(kwargs or {}))
        if any(word in op.name() for word in ("mm", "linear", "matmul")) and 16 in out.shape:
            self.dtypes.add(str(out.dtype)[6:])
        return out


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run a block on hidden states, forward and backward, with outputs of a known size."""
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    fp32, fp16 = torch.float32, torch.float16
    for case, dtype, size, largest in (
        ("where all results are small", fp32, 1.0, 30.0),
        ("where `wo` gives up to 150,000", fp32, 1.0, 150_000.0),
        ("where `hidden` holds up to 40,000, in fp16, and `wo` gives up to 50,000", fp16, 4e4, 5e4),
        ("where `hidden` holds up to 100,000, in fp32, and `wo` up to 50,000", fp32, 1e5, 5e4),
    ):
        block = Block(8, 16)
        for weight in block.parameters():
            weight.data = torch.randn(weight.shape, generator=generator) * 2
        signs = torch.randint(0, 2, (5, 8), generator=generator) * 2.0 - 1
        hidden = (signs * size * (0.9 + 0.1 * torch.rand(5, 8, generator=generator))).to(dtype)
        # Scale `wo`, with the sign of the hidden state where its output is largest
        with torch.no_grad():
            change = block.wo(torch.relu(block.wi(block.norm(hidden.float()))))
            token, place = divmod(int(change.abs().argmax()), 8)
            block.wo.weight *= largest / float(change.abs().max())
            block.wo.weight[place] *= float(signs[token, place] * change[token, place].sign())
        hidden.requires_grad_()
        with torch.autocast("cpu", dtype=fp16), Products() as products:
            got = run(case, block, hidden)
        result = read_tensor(got, case, "a tensor like `hidden`", (5, 8))
        if got.requires_grad:
            got.backward((torch.randn(5, 8, generator=generator) * 0.01).to(got.dtype))
        matmul = " and ".join(sorted(products.dtypes)) or "none"
        leaves = {"wi": block.wi.weight, "wo": block.wo.weight, "hidden": hidden}
        weights = {str(weight.dtype)[6:] for weight in block.parameters()}
        yield Case(
            case,
            {  # in fp64, so that all values can be compared
                "the result": result.double() if result.is_floating_point() else result,
                "the dtype of the result": str(result.dtype)[6:],
                "the dtype that the matmul of `wi` runs in": matmul,
                **{
                    f"the gradient of `{name}`": "missing"
                    if leaf.grad is None
                    else leaf.grad.double()
                    for name, leaf in leaves.items()
                },
                "the dtypes of the weights after the call": " and ".join(sorted(weights)),
            },
            evidence={"wi": matmul},
        )
    yield run.last_case(with_op=True)


INNER = "inner = torch.relu(block.wi(block.norm(hidden)))"
REGION = 'with torch.autocast("cpu", enabled=False):'
CHANGE, RETURN = "change = block.wo(inner.float())", "return hidden.float() + change"
ADD_IN_FP16, IN_FP16 = {RETURN: "return hidden + change"}, {REGION: "if True:"}
WI_IN_FP32 = {INNER: f"{REGION}\n    inner = torch.relu(block.wi(block.norm(hidden.float())))"}
BF16 = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
OVERFLOWS = (
    "`wo` runs in fp16, or its output is cast to fp16, where everything above 65,504 is inf. "
    "Autocast casts an fp32 input down again, so `.float()` alone changes nothing. Switch autocast "
    '(for "cpu" here) off around `wo`'
)
WI_TOO = f"{OVERFLOWS}, but not around `wi`: it now runs in fp32, although its output fits fp16"
CLAMPED = (
    "values beyond 65,504 are replaced by a limit, which is finite but wrong. Compute `wo` and the "
    "sum in fp32"
)

mistakes = [
    Mistake(
        "unchanged", OVERFLOWS, answer=Block.forward, violates="a `Block.forward` without the fault"
    ),
    Mistake("casts the input of wo", OVERFLOWS, edits=IN_FP16),
    Mistake("wo in place of wi", WI_TOO, edits={**WI_IN_FP32, **IN_FP16}),
    Mistake(
        "wo in place of wi, added in fp16", WI_TOO, edits={**WI_IN_FP32, **IN_FP16, **ADD_IN_FP16}
    ),
    Mistake(
        "hidden in fp16",
        "`hidden` overflows in fp16 before it is added. Add it in fp32",
        edits={RETURN: "return hidden.half().float() + change"},
        violates="also where `hidden` or the result is beyond 65,504",
    ),
    Mistake(
        "the norm of hidden in fp16",
        "`hidden` overflows in fp16 before the norm. Autocast casts the input of `wi` itself",
        edits={INNER: INNER.replace("hidden", "hidden.half()")},
    ),
    Mistake(
        "clamps",
        CLAMPED,
        edits={**IN_FP16, CHANGE: f"{CHANGE}.clamp(-65504, 65504)", **ADD_IN_FP16},
        violates="right to 1%",
    ),
    Mistake(
        "clamps the output of wo, adds in fp32",
        CLAMPED,
        edits={**IN_FP16, CHANGE: f"{CHANGE}.clamp(-65504, 65504)"},
    ),
    Mistake(
        "clamps the sum",
        CLAMPED,
        edits={**IN_FP16, RETURN: "return (hidden + change).clamp(-65504, 65504)"},
    ),
    Mistake(
        "fp32's largest number for inf",
        "inf from `wo` becomes fp32's largest number, which is wrong. Compute `wo` in fp32",
        edits={**IN_FP16, RETURN: "return (hidden.float() + change).nan_to_num()"},
    ),
    Mistake(
        "zeroes what overflows",
        "what overflows is replaced by 0. Compute `wo` in fp32",
        edits={**IN_FP16, CHANGE: f"{CHANGE}.nan_to_num(0.0, 0.0, 0.0)", **ADD_IN_FP16},
    ),
    Mistake(
        "back to fp16",
        "the result is in fp16, which ends at 65,504. Add in fp32, and return fp32",
        edits={RETURN: "return (hidden + change).half()"},
        violates="It returns fp32",
    ),
    Mistake(
        "back to hidden's dtype",
        "for `hidden` in fp16 the result is in fp16, where the sum overflows. Return fp32",
        edits={RETURN: "return hidden + change.to(hidden.dtype)"},
        violates="`hidden` in fp32 or in fp16",
    ),
    Mistake(
        "all in fp32",
        "`wi` runs in fp32 too. Switch autocast off only around `wo`",
        edits=WI_IN_FP32,
        violates="stays in fp16",
    ),
    Mistake(
        "all in bf16",
        "`wi` runs in bf16, and the task asks for fp16. Only `wo` needs the larger range",
        edits={REGION: BF16, INNER: f"{BF16}\n    {INNER}"},
    ),
    Mistake(
        "no residual",
        "`hidden` is not added. The block returns `hidden` plus the output of `wo`",
        edits={RETURN: "return change"},
    ),
    Mistake(
        "smaller, and not enlarged",
        "the output of `wo` is 16 times too small. Undo a division by 16 after `wo`, in fp32",
        edits={**IN_FP16, CHANGE: "change = block.wo(inner / 16)"},
    ),
    Mistake(
        "without gradients",
        "no gradient passes through `wo`, as under `no_grad`. Switch off only autocast",
        edits={REGION: f"with torch.no_grad(), {REGION[5:]}"},
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
        "In step 14 of the faulty script, `wo` gives inf in fp16, and about 66,100 in fp32."
    ),
)
