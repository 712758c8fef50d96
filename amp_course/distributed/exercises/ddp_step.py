"""Exercise 2 of chapter 10: one optimizer step of DDP, from several micro-batches."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks, collectives_so_far

card = Card(
    chapter="distributed",
    name="ddp_step",
    number=2,
    title="Accumulate, then talk once",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=14,
    task="Write `ddp_step(model, batches, loss_fn, optimizer, scaler, max_norm)`: one optimizer "
    "step over several micro-batches. `model` is wrapped in DDP, and `batches` is this rank's "
    "list of (inputs, targets), all of one size. Run the forward passes under fp16 autocast and "
    "use the scaler. Step with the mean gradient over all micro-batches of all ranks, clipped to "
    "`max_norm`. DDP may all-reduce the gradients **once**, with the last micro-batch. Your "
    "function clears the gradients afterwards, not only when it is called again.",
    hints=(
        "DDP all-reduces in every `backward()`, and already takes the mean over the ranks. What do "
        "you still have to divide by?",
        "`with model.no_sync():` keeps the gradients of a backward pass on this rank. Put it "
        "around the forward pass too: that is where DDP decides whether to reduce.",
        "`last = number == len(batches) - 1`, `with contextlib.nullcontext() if last else "
        "model.no_sync():` around forward and `scaler.scale(loss / len(batches)).backward()`. "
        "Then, once: unscale, clip, step, update, zero_grad.",
    ),
    why="With k micro-batches, the gradients travel once instead of k times, with the same result.",
    alternative="a `contextlib.ExitStack()` that enters `model.no_sync()` for all but the last, "
    "or `model.require_backward_grad_sync = last`, which is what `no_sync` sets.",
)


def right(
    model: Any,
    batches: list[Any],
    loss_fn: Any,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    max_norm: float,
) -> None:
    for number, (inputs, targets) in enumerate(batches, 1):
        with contextlib.nullcontext() if number == len(batches) else model.no_sync():
            with torch.autocast(inputs.device.type, dtype=torch.float16):
                loss = loss_fn(model(inputs), targets)
            scaler.scale(loss / len(batches)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


# How many micro-batches, max_norm, the rank and the micro-batch that overflow, the case in words
STEPS: tuple[tuple[int, float, tuple[int, int] | None, str], ...] = (
    (3, 100.0, None, "in a step of 3 micro-batches"),
    (4, 100.0, (1, 2), "in a step of 4 micro-batches, of which the third overflows on rank 1"),
    (2, 100.0, None, "in a step of 2 micro-batches"),
    (1, 100.0, None, "in a step of one micro-batch"),
    (3, 0.02, None, "in a step of 3 micro-batches, with `max_norm` 0.02"),
)
REDUCED, SCALE_AFTER, LEFT = (
    "how often the gradients were all-reduced",
    "the loss scale after the step",
    "the gradient left after the step",
)


def on_rank(answer: Callable[..., Any], seed: int, steps: slice) -> list[Case]:
    """Take some of STEPS in one training, with this rank's batches."""
    generator = torch.Generator().manual_seed(seed)
    # No kinks (ReLU), at which answers that round differently could diverge
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for weight in net.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) / 2
    model, dtypes, wrapped = DistributedDataParallel(net), list[torch.dtype](), list[bool]()
    model.register_forward_pre_hook(lambda *_: wrapped.append(True))
    # Momentum moves the weights even if the gradients are 0.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    used: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(_gradient(net)))
    generator.manual_seed(2 * seed + 1 + dist.get_rank())

    def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
        dtypes.append(output.dtype)
        return nn.functional.cross_entropy(output.float(), targets)

    found = []
    for count, max_norm, overflow, case in STEPS[steps]:
        batches = [
            (torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator))
            for _ in range(count)
        ]
        if overflow and overflow[0] == dist.get_rank():
            batches[overflow[1]][0][0] = 1e6
        for record in (used, dtypes, wrapped):
            record.clear()
        before = len(collectives_so_far())
        call_on_rank(answer, case, model, batches, loss_fn, optimizer, scaler, max_norm)
        called = [one for one in collectives_so_far()[before:] if one.name == "all_reduce"]
        # In one bucket or in several
        trips = sum(one.elements for one in called) // _gradient(net).numel()
        outputs = {
            "the number of forward passes": len(dtypes),
            "the dtype of the model's output": dtypes[0] if dtypes else None,
            "the number of optimizer steps": len(used),
            "the gradient at the step": used[0] if used else None,
            "the weights after the step": _flat(net.parameters()),
            SCALE_AFTER: scaler.get_scale(),
            LEFT: _gradient(net),
            REDUCED: trips,
        }
        evidence = {
            "gradients": [*used],
            "trips": trips,
            "forward passes through DDP": len(wrapped),
            SCALE_AFTER: scaler.get_scale(),
        }
        found.append(Case(case, outputs, {"count": count, "trips": trips}, evidence))
    return found


def _gradient(net: nn.Module) -> Tensor:
    return _flat(torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters())


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([one.detach().flatten() for one in tensors])


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Steps of 3, 4, 2 and 1 micro-batches, with an overflow on one rank, and with clipping."""
    seed = draw.randrange(10_000)
    for steps in (slice(1), slice(1, None)):  # the first identifies most mistakes
        yield from cases_on_ranks(on_rank, answer, seed, steps)


FIRST = "for number, (inputs, targets) in enumerate(batches, 1):"
QUIET = "with contextlib.nullcontext() if number == len(batches) else model.no_sync():"
REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
FORWARD = "loss = loss_fn(model(inputs), targets)"
SCALE, UNSCALE = "scaler.scale(loss / len(batches)).backward()", "scaler.unscale_(optimizer)"
CLIP, STEP = "clip_grad_norm_(model.parameters(), max_norm)", "scaler.step(optimizer)"
UPDATE, CLEAR = "scaler.update()", "optimizer.zero_grad()"
ALL = "for p in model.parameters():"

mistakes = [
    Mistake(
        "syncs each micro-batch",
        "DDP all-reduces the gradients in the backward pass of every micro-batch, {trips} times "
        "in this step: run all but the last under `model.no_sync()`, forward pass included, since "
        "DDP decides there whether to all-reduce",
        edits={QUIET: "if True:"},
        violates="DDP may all-reduce the gradients **once**",
    ),
    Mistake(
        "never syncs",
        "the gradients are never all-reduced, so each rank trains its own model: run the last "
        "micro-batch outside of `model.no_sync()`",
        edits={QUIET: "with model.no_sync():"},
        violates="over all micro-batches of all ranks",
    ),
    Mistake(
        "syncs the first",
        "DDP all-reduces with the first micro-batch, and what the others add stays on its rank: "
        "all-reduce with the last",
        edits={QUIET: "with contextlib.nullcontext() if number == 1 else model.no_sync():"},
    ),
    Mistake(
        "unscales before the last",
        "`unscale_` runs before the last micro-batch, whose gradients are then added `scale` "
        "times too large: unscale once, after the last backward pass",
        edits={
            SCALE: f"{SCALE}\nif number == max(1, len(batches) - 1):\n    {UNSCALE}",
            UNSCALE: "pass",
        },
    ),
    Mistake(
        "divides by the world size twice",
        "the gradients are divided by the number of ranks twice, since the all-reduce of DDP "
        "takes the mean: divide neither the loss nor the gradients by the world size",
        edits={UNSCALE: f"{UNSCALE}\n{ALL}\n    p.grad /= dist.get_world_size()"},
    ),
    Mistake(
        "divides by the world size instead",
        "the losses are divided by the number of ranks, which DDP does already: divide by the "
        "number of micro-batches, {count}",
        edits={SCALE: SCALE.replace("len(batches)", "dist.get_world_size()")},
    ),
    Mistake(
        "sum instead of mean",
        "the gradients of the micro-batches are added up: for the mean, divide each loss by the "
        "number of micro-batches, {count}",
        edits={SCALE: "scaler.scale(loss).backward()"},
    ),
    Mistake(
        *families.CLIPS_BEFORE_UNSCALING,
        edits={UNSCALE: CLIP, CLIP: UNSCALE},
    ),
    Mistake(
        *families.NO_CLIPPING,
        edits={CLIP: "pass"},
        violates="clipped to `max_norm`",
    ),
    Mistake(
        *families.CLIPS_EACH_MICRO_BATCH,
        edits={SCALE: f"{SCALE}\nif number < len(batches):\n    {CLIP}"},
    ),
    Mistake(
        *families.CLIPS_VALUES,
        edits={CLIP: f"{ALL}\n    p.grad.clamp_(-max_norm, max_norm)"},
    ),
    Mistake(
        *families.CLIPS_EACH_PARAMETER,
        edits={CLIP: f"{ALL}\n    clip_grad_norm_([p], max_norm)"},
    ),
    Mistake(
        *families.ALWAYS_TO_MAX_NORM,
        edits={
            CLIP: "norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()\n"
            f"{ALL}\n    p.grad.mul_(max_norm / norm)"
        },
    ),
    Mistake(
        "clears only at the start",
        "the gradients are cleared at the start of the step, but not at its end: move "
        "`optimizer.zero_grad()` to the end",
        edits={FIRST: f"{CLEAR}\n{FIRST}", CLEAR: "pass"},
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={CLEAR: "pass"},
        violates="clears the gradients afterwards",
    ),
    Mistake(
        *families.CLEARS_EACH_MICRO_BATCH,
        edits={FORWARD: f"{CLEAR}\n{FORWARD}"},
    ),
    Mistake(
        "no scaler",
        "the scaler is not used, so gradients that overflow go into the weights, and gradients "
        "that underflow are lost: scale the loss, and step with the scaler",
        edits={
            SCALE: "(loss / len(batches)).backward()",
            UNSCALE: "pass",
            STEP: "optimizer.step()",
            UPDATE: "pass",
        },
        violates="use the scaler",
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "no update",
        "`scaler.update()` is missing after the step: without it, the scale is never adjusted and "
        "the next `unscale_` fails",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        *families.NO_FP16_AUTOCAST,
        edits={REGION: "if True:"},
        violates="under fp16 autocast",
    ),
    Mistake(
        "the wrapped module",
        "the forward pass calls `model.module` and bypasses DDP, so nothing is ever all-reduced: "
        "call `model` itself",
        edits={FORWARD: "loss = loss_fn(model.module(inputs), targets)"},
    ),
]

ddp_step = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=5e-3,
    messages={
        LEFT: "{case}, gradients are left after the step. Clear them at its end, with "
        "`optimizer.zero_grad()`",
        REDUCED: "{case}, the gradients were all-reduced {got} times, instead of {want}, with the "
        "last micro-batch",
    },
)
