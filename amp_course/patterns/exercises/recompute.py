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
    "only each block's input, and run each block again in the backward pass, with the same dtypes, "
    "the same dropout and the same gradients as if it ran once. The random generator ends where it "
    "would without the second run. Under `no_grad`, outside of autocast, the output is that of the "
    "blocks, without a graph.",
    hints=(
        "The backward pass runs outside of the region, and the random generator has moved on. What "
        "records both and restores them?",
        "`torch.utils.checkpoint.checkpoint` does. One of its two kinds works only if the *inputs* "
        "need a gradient.",
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
    """Run four blocks in bf16, then in fp16 and eval mode, on inputs that need no gradient;
    then under `no_grad`.
    """
    generator, ran, kept = torch.Generator().manual_seed(draw.getrandbits(31)), [], []

    def call(case: str, inputs: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of reentrant checkpoints
            got = call_answer(answer, case, model, inputs)
        read_tensor(got, case, "the output of the last block", (16, 8))
        return got

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes if tensor.shape[:1] == (16,) else 0)  # no weights
        return tensor

    for dtype, case in (
        (torch.bfloat16, "in a bf16 region"),
        (torch.float16, "in an fp16 region, in eval mode"),
    ):
        model, inputs = nn.ModuleList(), torch.randn(16, 8, generator=generator)
        for number in range(4):
            block = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 8))
            vars(block[0])["name"] = f"block {number}"
            block[0].register_forward_hook(
                lambda layer, args, y: ran.append((layer.name, y.dtype, args[0].clone()))
            )
            model.append(block)
        model.train(dtype is torch.bfloat16)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        kept.clear()
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype=dtype),
        ):
            got = call(case, inputs.clone())
        output, first = got.detach().clone(), {name: x for name, _, x in ran}
        ran.clear()
        upstream = torch.linspace(0.5, 2.0, 8).expand(16, 8).to(got.dtype)
        call_answer(got.backward, f"in the backward pass, {case}", upstream)
        outputs = {
            "the output": output,
            "the list of blocks that run again": [name for name, *_ in ran],
            "the dtype in which blocks run again": [*dict.fromkeys(dtype for _, dtype, _ in ran)],
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
        }
        yield Case(case, outputs)
    with torch.no_grad():
        case = "under `no_grad`, outside of autocast"
        got = call(case, inputs)
        graph = "one" if got.requires_grad else "none"
        yield Case(case, {"the output": got.detach().clone(), "the graph": graph})


def by_hand() -> Any:
    """Make an answer with a checkpoint of its own."""

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, block: Any, x: Tensor, *parameters: Tensor) -> Any:
            ctx.block, ctx.random = block, torch.get_rng_state()
            ctx.dtype = torch.get_autocast_dtype("cpu")
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.random.fork_rng(), torch.enable_grad(), torch.autocast("cpu", ctx.dtype):
                torch.set_rng_state(ctx.random)
                output = ctx.block(x)
            inputs = (x, *ctx.block.parameters())
            return None, *torch.autograd.grad(output, inputs, gradients[0].to(output.dtype))

    def step(x: Tensor, block: Any) -> Any:
        return Recompute.apply(block, x, *block.parameters())

    return lambda blocks, inputs: reduce(step, blocks, inputs)


LINE = "inputs = checkpoint(block, inputs, use_reentrant=False)"
INPUT = "x = ctx.saved_tensors[0].detach().requires_grad_()"
REGION = 'with torch.random.fork_rng(), torch.enable_grad(), torch.autocast("cpu", ctx.dtype):'
NO_REGION = {REGION: "with torch.random.fork_rng(), torch.enable_grad():"}
ENTER = (
    "The backward pass runs outside of the region, so record autocast's state in forward and open "
    "such a region for the second run"
)
MASK = (
    "dropout drew another mask in the second run. Keep the random state of the first run "
    "(`preserve_rng_state`) and restore it"
)

mistakes = [
    Mistake(
        "no checkpoint",
        "no block ran again, so all activations were kept. Call `checkpoint(block, inputs, "
        "use_reentrant=False)`. If it depends on a condition, that was False: "
        "`torch.is_autocast_enabled()`, for example, asks about cuda",
        edits={LINE: "inputs = block(inputs)"},
        violates="run each block again in the backward pass",
    ),
    Mistake(
        "no graph",
        "the output has no graph. It was computed under `no_grad`, detached, or made by "
        "`checkpoint(…, use_reentrant=True)`, which needs an input that requires a gradient",
        edits={LINE: LINE.replace("False", "True")},
    ),
    Mistake(
        "last block plain",
        "the last block did not run again (`checkpoint_sequential` leaves it out, too). Give each "
        "block its own `checkpoint`",
        edits={LINE: f"{LINE} if block is not blocks[-1] else block(inputs)"},
    ),
    Mistake(
        "all in one",
        "one checkpoint holds all blocks, so they all run again at once and keep all their "
        "activations. Give each block its own",
        answer=lambda blocks, x: checkpoint(nn.Sequential(*blocks), x, use_reentrant=False),
        violates="keep only each block's input",
    ),
    Mistake(
        "two segments",
        "`checkpoint_sequential` puts several blocks into one checkpoint and the last into none. "
        "Give each block its own",
        answer=lambda blocks, x: checkpoint_sequential(
            nn.Sequential(*blocks), 2, x, use_reentrant=False
        ),
    ),
    Mistake(
        "late binding",
        "the last block ran again instead of each. A `lambda` or inner function looks up `block` "
        "when it is called, after the loop. Pass the block itself, or `lambda x, block=block: …`",
        edits={LINE: LINE.replace("block,", "lambda x: block(x),")},
    ),
    Mistake(
        "random state not kept",
        MASK,
        edits={LINE: f"{LINE[:-1]}, preserve_rng_state=False)"},
        violates="the same dropout",
    ),
    Mistake(
        "by hand, no random state",
        MASK,
        answer=edited(by_hand, {"torch.set_rng_state(ctx.random)": "pass"})(),
    ),
    Mistake(
        "by hand, no fork",
        "the backward pass moves the random generator. Run the block again inside "
        "`torch.random.fork_rng()`",
        answer=edited(by_hand, {REGION: REGION.replace("torch.random.fork_rng(), ", "")})(),
        violates="The random generator ends where it would without",
    ),
    Mistake(
        "by hand, no region",
        f"a block ran again outside of autocast, where two dtypes met in one op. {ENTER}",
        answer=edited(by_hand, NO_REGION)(),
        violates="the same dtypes",
    ),
    Mistake(
        "by hand, in float32",
        f"the blocks ran again in float32. {ENTER}",
        answer=edited(by_hand, {**NO_REGION, INPUT: INPUT.replace("()", "().float()", 1)})(),
    ),
    Mistake(
        "region of its own",
        "outside of autocast, the blocks ran in 16 bits. If your function opens a region around "
        "them, leave that to the caller",
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
        "blocks with another input": "{case}, in their second run, {got} had another input than in "
        "the first. Was it rounded?",
        "the graph": "under `no_grad`, the output requires a gradient. Whether gradients are on is "
        "up to the caller",
    },
)
