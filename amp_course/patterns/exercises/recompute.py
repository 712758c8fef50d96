"""Exercise 7 of chapter 07: activation checkpointing under autocast."""

import random
import warnings
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    alike,
    call_answer,
    edited,
    read_tensor,
)

card = Card(
    chapter="patterns",
    name="recompute",
    number=7,
    title="Recompute under autocast",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=3,
    task="Write `recompute(blocks, inputs)`: run blocks one after the other under autocast, keep "
    "only each block's input, and run each block again in the backward pass, with the same "
    "dtypes, the same dropout and the same gradients as if it ran once. The random generator ends "
    "where it would without the second run. Under `no_grad`, outside of autocast, the output is "
    "that of the blocks, without a graph.",
    hints=(
        "Backward runs outside of the region, and the random generator has moved on. What records "
        "both, and puts them back?",
        "`torch.utils.checkpoint.checkpoint` does. One of its two kinds works only if the "
        "*inputs* need a gradient.",
        "`for block in blocks: inputs = checkpoint(block, inputs, use_reentrant=False)`.",
    ),
    why="A block that runs again in another dtype or with another mask gives the gradient of a "
    "model that never ran.",
    alternative="an autograd Function of your own that records autocast's state and the random "
    "state in forward.",
)


def right(blocks: Any, inputs: Any) -> Any:
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=False)
    return inputs


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run four blocks in bf16, and in fp16 and eval mode, on data, which needs no gradient;
    then under `no_grad`.
    """
    generator, ran, kept = torch.Generator().manual_seed(draw.getrandbits(31)), [], []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes if tensor.shape[:1] == (16,) else 0)  # no weights
        return tensor

    for dtype, case in (
        (torch.bfloat16, "in a bf16 region"),
        (torch.float16, "in an fp16 region, in eval mode"),
    ):
        blocks = [
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 8))
            for _ in range(4)
        ]
        model, inputs = nn.ModuleList(blocks), torch.randn(16, 8, generator=generator)
        model.train(dtype is torch.bfloat16)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        for number, block in enumerate(blocks):
            vars(block[0])["name"] = f"block {number}"
            block[0].register_forward_hook(
                lambda layer, args, y: ran.append((layer.name, y.dtype, args[0].clone()))
            )
        kept.clear()
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype=dtype),
        ):
            got = call(answer, case, model, inputs.clone())
        output, first = got.detach().clone(), {name: x for name, _, x in ran}
        ran.clear()
        upstream = torch.linspace(0.5, 2.0, 8).expand(16, 8).to(got.dtype)
        call_answer(got.backward, f"in the backward pass, {case}", upstream)
        yield Case(
            case,
            {
                "the output": output,
                "the list of blocks that run again": [name for name, *_ in ran],
                "the dtype in which blocks run again": [
                    *dict.fromkeys(dtype for _, dtype, _ in ran)
                ],
                "blocks with another input": ", ".join(
                    name for name, _, x in ran if not alike(x, first.get(name))
                ),
                "the gradients of the blocks": [
                    "None" if p.grad is None else p.grad for p in model.parameters()
                ],
                "the next random number after the backward pass": torch.rand(()).item(),
                "what is kept between the passes": "only inputs"
                if sum(kept) <= 8 * inputs.nbytes
                else "activations, too",
            },
        )
    with torch.no_grad():
        case = "under `no_grad`, outside of autocast"
        got = call(answer, case, model, inputs)
        yield Case(
            case,
            {
                "the output": got.detach().clone(),
                "the graph": "one" if got.requires_grad else "none",
            },
        )


def call(answer: Any, case: str, blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of reentrant checkpoints
        got = call_answer(answer, case, blocks, inputs)
    read_tensor(got, case, "the output of the last block", (16, 8))
    return got


def by_hand() -> Any:
    """Make an answer with a checkpoint of its own."""

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, block: Any, x: Tensor, *parameters: Tensor) -> Any:
            ctx.block, ctx.random, ctx.dtype = (
                block,
                torch.get_rng_state(),
                torch.get_autocast_dtype("cpu"),
            )
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.random.fork_rng(), torch.enable_grad(), torch.autocast("cpu", ctx.dtype):
                torch.set_rng_state(ctx.random)
                output = ctx.block(x)
            return None, *torch.autograd.grad(
                output, (x, *ctx.block.parameters()), gradients[0].to(output.dtype)
            )

    def step(x: Tensor, block: Any) -> Any:
        return Recompute.apply(block, x, *block.parameters())

    return lambda blocks, inputs: reduce(step, blocks, inputs)


LINE = "inputs = checkpoint(block, inputs, use_reentrant=False)"
INPUT, RANDOM = (
    "x = ctx.saved_tensors[0].detach().requires_grad_()",
    "torch.set_rng_state(ctx.random)",
)
REGION = 'with torch.random.fork_rng(), torch.enable_grad(), torch.autocast("cpu", ctx.dtype):'
NO_REGION = {REGION: "with torch.random.fork_rng(), torch.enable_grad():"}
ENTER = (
    "backward pass runs outside of the region, so record autocast's state in forward, and enter it "
    "again for the second run"
)
MASK = (
    "dropout drew another mask in the second run: keep the random state of the first "
    "(`preserve_rng_state`), and restore it"
)

mistakes = [
    Mistake(
        "no checkpoint",
        "no block ran again, all activations were kept: call `checkpoint(block, inputs, "
        "use_reentrant=False)`. If a condition decides on it, that was not met: "
        "`torch.is_autocast_enabled()`, for one, asks for cuda",
        edits={LINE: "inputs = block(inputs)"},
        violates="run each block again in the backward pass",
    ),
    Mistake(
        "no graph",
        "the output has no graph. It was made under `no_grad`, or detached, or `checkpoint(…, "
        "use_reentrant=True)` made it: that one needs an input that requires a gradient, and data "
        "does not",
        edits={LINE: LINE.replace("False", "True")},
    ),
    Mistake(
        "last block plain",
        "the last block did not run again (nor does it in `checkpoint_sequential`): give each its "
        "own `checkpoint`",
        edits={LINE: f"{LINE} if block is not blocks[-1] else block(inputs)"},
    ),
    Mistake(
        "all in one",
        "all blocks are in one checkpoint, so all run again at once and keep as much as without: "
        "give each its own",
        answer=lambda blocks, x: checkpoint(nn.Sequential(*blocks), x, use_reentrant=False),
        violates="keep only each block's input",
    ),
    Mistake(
        "two segments",
        "`checkpoint_sequential` puts several blocks into one checkpoint, the last into none: "
        "give each its own",
        answer=lambda blocks, x: checkpoint_sequential(
            nn.Sequential(*blocks), 2, x, use_reentrant=False
        ),
    ),
    Mistake(
        "late binding",
        "the last block ran again in place of each: a `lambda` or inner function looks up `block` "
        "when it is called, after the loop. Pass the block itself, or `lambda x, block=block: …`",
        edits={LINE: "inputs = checkpoint(lambda x: block(x), inputs, use_reentrant=False)"},
    ),
    Mistake(
        "random state not kept",
        MASK,
        edits={
            LINE: LINE.replace(
                "use_reentrant=False", "use_reentrant=False, preserve_rng_state=False"
            )
        },
        violates="the same dropout",
    ),
    Mistake("by hand, no random state", MASK, answer=edited(by_hand, {RANDOM: "pass"})()),
    Mistake(
        "by hand, no fork",
        "the backward pass moves the random generator: run the block again inside "
        "`torch.random.fork_rng()`",
        answer=edited(by_hand, {REGION: REGION.replace("torch.random.fork_rng(), ", "")})(),
        violates="The random generator ends where it would without",
    ),
    Mistake(
        "by hand, no region",
        f"a block ran again outside of autocast, where two dtypes met in one op. The {ENTER}",
        answer=edited(by_hand, NO_REGION)(),
        violates="the same dtypes",
    ),
    Mistake(
        "by hand, in float32",
        f"the blocks ran again in float32. The {ENTER}",
        answer=edited(
            by_hand, {**NO_REGION, INPUT: INPUT.replace("detach()", "detach().float()")}
        )(),
    ),
    Mistake(
        "region of its own",
        "evaluation outside of autocast ran in 16 bits: if your function opens a region, leave "
        "that to the caller",
        edits={
            LINE: f"with torch.autocast('cpu', dtype=torch.get_autocast_dtype('cpu')):\n    {LINE}"
        },
        violates="outside of autocast",
    ),
]

recompute = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-3,
    messages={
        "blocks with another input": "{case}, in their second run, {got} had another input than "
        "in the first: was it rounded?",
        "the graph": "under `no_grad`, the output requires a gradient: whether gradients are on "
        "is up to the caller",
    },
)
