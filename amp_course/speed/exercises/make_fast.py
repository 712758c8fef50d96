"""Exercise 6 of chapter 09: make a slow AMP training fast. The judge looks at the results and at
what is launched, not at a clock.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    families,
    read_number,
)
from amp_course.kit.tensors import tensors_in
from amp_course.speed.counting import CAST, MATMUL, OpCounter, totals
from amp_course.speed.exercises.host_reads import HostReads
from amp_course.watching.scene import dtype_names, flat

card = Card(
    chapter="speed",
    name="make_fast",
    number=6,
    title="Make a slow step fast",
    difficulty=4,
    importance=5,
    minutes=20,
    lines=13,
    task="Write `make_fast(model, batches, depth)`, which trains like the slow loop below: SGD "
    "with lr=0.1 and momentum=0.9, one update per batch, under bf16 autocast. It returns the loss "
    "of each batch, without its graph, and losses and weights are the same, up to the rounding of "
    "bf16. But five "
    "things are gone: the Python loop over rows, the separate autocast region for each call "
    "(weights are cast again in each), the fp32 matmul in the head, the read of each loss, and "
    "the separate optimizer kernels for each parameter.",
    hints=(
        "Three of the five are in the forward pass. One region around a whole batch and its loss "
        "removes them all.",
        "`model['block']` and `model['head']` take a whole batch, and `cross_entropy` returns the "
        "mean over its rows. Keep the losses as tensors until the end.",
        "`torch.optim.SGD(…, fused=True)` changes all weights in one kernel. Keep `loss.detach()` "
        "and return `torch.stack(losses).tolist()`.",
    ),
    why="None of the five changes a result or shows up in a profile as one large item: you have "
    "to know what to count.",
    alternative="`foreach=True`, which is the default on a GPU, or `torch.compile` for the forward "
    "pass. A CUDA graph of the whole step removes the launches themselves.",
)


def right(model: Any, batches: Any, depth: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    losses = []
    for inputs, targets in batches:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            hidden = inputs
            for _ in range(depth):
                hidden = torch.tanh(model["block"](hidden))
            loss = F.cross_entropy(model["head"](hidden), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


class Watch(OpCounter):
    """Counts ops. `writes` is the number of those that write to any of the parameters, `updates`
    of those that write to the first.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self._places = [parameter.data_ptr() for parameter in parameters]
        self.writes = self.updates = 0

    def matmuls(self) -> int:
        return sum(call.kind == MATMUL for call in self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments that the op writes to."""
        written = [
            tensor.data_ptr()
            for value, argument in zip(args, func._schema.arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors_in(value)
        ]
        self.writes += any(place in self._places for place in written)
        self.updates += self._places[0] in written
        return super().__torch_dispatch__(func, types, args, kwargs)


MATMULS, CASTS = "the number of matmuls", "the number of casts"
GRAPHS, FORMAT = "the graphs that come with the losses", "the format of the 16-bit matmuls"
READS, WRITES = (
    "the values that are read during training",
    "the number of kernels that change weights",
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train on batches of unequal size, a deeper model, and for more updates."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for depth, sizes in ((3, (4, 4, 3)), (4, (3, 5)), (2, (4,) * 6)):
        model = nn.ModuleDict({"block": nn.Linear(16, 16), "head": nn.Linear(16, 5)})
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        batches = []
        for rows in sizes:
            inputs = torch.randn(rows, 16, generator=generator) * 2
            batches.append((inputs, torch.randint(0, 5, (rows,), generator=generator)))
        count = len(batches)
        case = f"in {count} updates with depth={depth}"
        before, watch = flat(model.parameters()), Watch([*model.parameters()])
        host = HostReads(watch.matmuls)
        with host, watch:
            got = call_answer(answer, case, model, list(batches), depth)
        losses = got.tolist() if isinstance(got, Tensor) and got.dim() == 1 else got
        if not isinstance(losses, (list, tuple)):
            kind = "None" if got is None else f"an object of type {type(got).__name__}"
            raise Wrong(f"{case}, your function returned {kind}, not the list of losses")
        losses = [read_number(loss, case, "your list holds") for loss in losses]
        if len(losses) != count:
            raise Wrong(f"{case}, your function returned {len(losses)} losses for {count} batches")
        matmuls = [call.dtype for call in watch.calls if call.kind == MATMUL]
        low = {dtype for dtype in matmuls if dtype is not None and dtype.itemsize == 2}
        # Each layer runs once forward and twice backward; the inputs need no gradient.
        needed = count * (3 * depth + 2)
        # Autocast needs 11 per update: 5 forward, 5 backward, 1 for the loss. 3 more are allowed.
        casts = totals(watch.calls, CAST).kernels
        early = [read.call for read in host.reads if read.place < len(matmuls)]
        outputs = {
            "the dtype of the weights": dtype_names(one.dtype for one in model.parameters()),
            FORMAT: dtype_names(low) or "none",
            MATMULS: "as few as needed" if len(matmuls) <= needed else f"{len(matmuls)}",
            "the number of matmuls in float32": matmuls.count(torch.float32),
            CASTS: "as few as needed" if casts <= count * (11 + 3) else f"{casts}",
            "the change of the weights": flat(model.parameters()) - before,
            "the losses": losses,
            GRAPHS: "some" if any(one.requires_grad for one in tensors_in(got)) else "none",
            READS: "some" if early else "none",
            WRITES: "one or two" if watch.writes <= 2 * count else f"{watch.writes / count:g}",
        }
        facts = {
            "format": f"matmuls run in {dtype_names(low)}" if low else "no matmul runs in 16 bits",
            "matmuls": len(matmuls),
            "needed": needed,
            "casts": f"{casts / count:.0f}",
            "writes": f"{watch.writes / count:.0f}",
            "calls": " and ".join(dict.fromkeys(f"`{call}`" for call in early)),
        }
        evidence = {"updates": watch.updates, "losses": losses}
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            evidence = {}  # a converted model has other parameters, and its losses vary
        yield Case(case, outputs, facts, evidence)


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)"
REGION, BATCHES = (
    "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):",
    "for inputs, targets in batches:",
)
DEPTH, CALL = "for _ in range(depth):", 'hidden = torch.tanh(model["block"](hidden))'
LOSS = 'loss = F.cross_entropy(model["head"](hidden), targets)'
BACKWARD, STEP, CLEAR = "loss.backward()", "optimizer.step()", "optimizer.zero_grad()"
KEEP, RETURN = "losses.append(loss.detach())", "return torch.stack(losses).tolist()"

mistakes = [
    Mistake(
        "rows one at a time",
        "the rows still run one at a time, in {matmuls} matmuls instead of {needed}: pass the "
        "whole batch to the layers",
        edits={
            CALL: 'hidden = torch.stack([torch.tanh(model["block"](row)) for row in hidden])',
            LOSS: 'logits = torch.stack([model["head"](row) for row in hidden])\n'
            "loss = F.cross_entropy(logits, targets)",
        },
        violates="the Python loop over rows",
    ),
    Mistake(
        "a region for each call",
        "the weights are cast again for each call, with {casts} casts in each update. Open one "
        "region around the batch and its loss: autocast keeps its copies only within a region, "
        "and only if its cache is on",
        edits={REGION: "if True:", CALL: f"{REGION}\n    {CALL}", LOSS: f"{REGION}\n    {LOSS}"},
        violates="the separate autocast region for each call",
    ),
    Mistake(
        "an fp32 island",
        "the head's matmul is still in fp32, forward and backward. Run the head under autocast, "
        "which computes cross_entropy in fp32 anyway",
        edits={
            LOSS: "with torch.autocast(inputs.device.type, enabled=False):\n    logits = "
            'model["head"](hidden.float())\n'
            "loss = F.cross_entropy(logits, targets)"
        },
        violates="the fp32 matmul in the head",
    ),
    Mistake(
        "reads each loss",
        "the host still waits for a value in each batch, because of {calls}. If that is the "
        "loss, keep `loss.detach()` and read all losses at the end",
        edits={KEEP: "losses.append(loss.item())", RETURN: "return losses"},
        violates="the read of each loss",
    ),
    Mistake(
        "returns the graphs",
        "the losses that you return keep their graphs in memory: store `loss.detach()`",
        edits={KEEP: "losses.append(loss)", RETURN: "return losses"},
        violates="without its graph",
    ),
    Mistake(
        "each parameter on its own",
        "the optimizer updates each parameter separately, with {writes} kernels in each update. "
        "Pass `fused=True` or `foreach=True`, which is the default on a GPU but not on a CPU",
        edits={OPTIMIZER: OPTIMIZER.replace("fused=True", "foreach=False")},
        violates="the separate optimizer kernels for each parameter",
    ),
    Mistake(
        *families.ONE_REGION_AROUND_ALL,
        answer=torch.autocast("cpu", dtype=torch.bfloat16)(right),
    ),
    Mistake(
        "no autocast",
        "everything runs in fp32: open a bf16 region around the forward pass and the loss, for "
        "the device of the inputs",
        edits={REGION: "if True:"},
        violates="under bf16 autocast",
    ),
    Mistake(
        *families.FP16_REGION,
        edits={REGION: REGION.replace("bfloat16", "float16")},
    ),
    Mistake(
        "converts the model",
        "the weights were converted to bf16, where small updates are lost: keep them in float32 "
        "and let autocast cast them",
        edits={OPTIMIZER: f"model.bfloat16()\n{OPTIMIZER}"},
    ),
    Mistake(
        "the sum over the rows",
        "the loss is the sum over the rows of a batch: the slow loop takes the mean",
        edits={LOSS: LOSS.replace("targets)", 'targets, reduction="sum")')},
        violates="losses and weights are the same",
    ),
    Mistake(
        "one row of each batch",
        "only the first row of each batch is used: pass the whole batch to the layers",
        edits={BATCHES: f"{BATCHES}\n    inputs, targets = inputs[:1], targets[:1]"},
    ),
    Mistake(
        "one call of the block",
        "the block runs only once: call it `depth` times, each time on its last output",
        edits={DEPTH: "for _ in range(1):"},
    ),
    Mistake(
        "no tanh after the block",
        "the tanh is missing: apply it after every call of the block",
        edits={CALL: 'hidden = model["block"](hidden)'},
    ),
    Mistake(
        "no momentum",
        "the updates have no momentum: create one SGD with momentum=0.9, before the first batch",
        edits={OPTIMIZER: OPTIMIZER.replace("momentum=0.9, ", "")},
        violates="momentum=0.9",
    ),
    Mistake(
        "never steps",
        "the weights never change: call `backward()`, then `step()`, then `zero_grad()`",
        edits={STEP: "pass"},
    ),
    Mistake(
        "trains a copy",
        "the losses are right, but the weights of `model` have not changed: train the model that "
        "you are given, not a copy",
        answer=lambda model, batches, depth: right(copy.deepcopy(model), batches, depth),
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={CLEAR: "pass"},
    ),
    Mistake(
        "one update at the end",
        "the weights change only once, after the last batch: update them after each batch",
        edits={STEP: f"if len(losses) == len(batches) - 1:\n    {STEP}", CLEAR: "pass"},
        violates="update per batch",
    ),
    Mistake(
        "drops the tail",
        "there is no update for the short last batch: update the weights after every batch",
        edits={STEP: f"if len(targets) >= len(batches[0][1]):\n    {STEP}"},
    ),
]

make_fast = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=3e-2,
    messages={
        FORMAT: "{case}, {format}: open a bfloat16 region around the forward pass and the loss of "
        "each batch",
        GRAPHS: "{case}, a loss that you return still has its graph: detach it",
        MATMULS: "{case}, {matmuls} matmuls run instead of {needed}: run each layer once for a "
        "whole batch",
        READS: "{case}, the host waits for values before all work is launched, because of "
        "{calls}: read the losses at the end",
        CASTS: "{case}, there are {casts} casts in each update instead of 11: open one region for "
        "each batch, run each layer once for all of its rows, and cast nothing by hand",
        WRITES: "{case}, {writes} kernels change weights in each update: let the optimizer change "
        "all of them in one",
    },
)
