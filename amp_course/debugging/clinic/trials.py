"""What the clinic's exercises share: run an answer and note the cause that it names, make a small
training, and record its updates.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from amp_course.checking import Case, Mistake, Wrong, call_answer, families, read_number
from amp_course.debugging.clinic.causes import named_causes
from amp_course.distributed.ranks import cases_on_ranks
from amp_course.watching.scene import flat

# The outputs of the last case, which is judged once all else is right
CAUSE, OP = "the cause that you name", "the op that you name"
DTYPE = "the dtype that the first layer computes in"
UNNAMED = "nothing"

# Lines that all training loops of the clinic share
REGION, CLEAR = 'with torch.autocast("cpu", dtype=torch.float16):', "optimizer.zero_grad()"
FORWARD = "loss = cross_entropy(model(inputs), targets)"
BACKWARD = "scaler.scale(loss).backward()"
STEP, UPDATE = "scaler.step(optimizer)", "scaler.update()"

UNCLEARED = families.NEVER_CLEARS[1]
NEVER_CLEARS = Mistake(*families.NEVER_CLEARS, edits={CLEAR: "pass"})
NO_SCALER = Mistake(
    "no scaler",
    "nothing skips an update that overflows. Scale the loss, and call `scaler.step(optimizer)`",
    edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
)
OWN_SCALER = Mistake(
    *families.SCALER_OF_ITS_OWN,
    edits={"losses = []": 'scaler = torch.amp.GradScaler("cpu")\nlosses = []'},
)
NO_UPDATE = Mistake(*families.NO_UPDATE, edits={UPDATE: "pass"})
IN_FP32, IN_BF16 = (
    Mistake(
        f"in {dtype}",
        f"the forward pass runs in {dtype}, but the task asks for fp16 autocast. The dtype is not "
        "the fault",
        edits={REGION: instead},
        violates="fp16 autocast",
    )
    for dtype, instead in (("fp32", "if True:"), ("bf16", REGION.replace("float16", "bfloat16")))
)


class Runner:
    """Runs an answer and notes the causes that it names: `got = run("for 0", 0.0)`."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer, self._causes, self._ops = answer, dict[str, None](), dict[str, None]()

    def __call__(self, case: str, *arguments: Any) -> Any:
        with named_causes() as named:
            got = call_answer(self.answer, case, *arguments)
        self._causes[" and ".join(name for name, _ in named) or UNNAMED] = None
        self._ops |= dict.fromkeys(op for _, op in named if op)
        return got

    def last_case(self, with_op: bool = False) -> Case:
        """Return a case with the causes, and the ops if asked, to judge once all else is right."""
        ops = {OP: " and ".join(self._ops) or "none"} if with_op else {}
        return Case("", {CAUSE: " and ".join(self._causes), **ops})


def cases_with_cause(
    on_rank: Callable[[Any, int, slice], list[Case]], answer: Any, draw: random.Random
) -> Iterator[Case]:
    """Yield the cases of two ranks, and a last case with the causes.

    The first case runs alone: it is enough to recognize most mistakes.
    """
    seed, causes = draw.randrange(10_000), dict[str, None]()
    for part in (slice(1), slice(1, None)):
        for case in cases_on_ranks(on_rank, answer, seed, part):
            causes |= dict.fromkeys(name for name, _ in case.facts["named"])
            yield case
    yield Case("", {CAUSE: " and ".join(causes) or UNNAMED})


def draw_model(
    generator: torch.Generator, inputs: int, hidden: int, outputs: int, size: float = 0.4
) -> nn.Sequential:
    """Draw a model of two linear layers whose weights have a standard deviation of `size`."""
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * size
    return model


def draw_batches(
    generator: torch.Generator,
    count: int,
    rows: int,
    inputs: int,
    classes: int,
    overflow: Sequence[int] = (),
) -> list[tuple[Tensor, Tensor]]:
    """Draw batches for cross entropy; the inputs of those in `overflow` (from 1) overflow fp16."""
    return [
        (
            torch.randn(rows, inputs, generator=generator) * (1e6 if number in overflow else 1.0),
            torch.randint(0, classes, (rows,), generator=generator),
        )
        for number in range(1, count + 1)
    ]


def read_losses(
    got: Any, case: str, count: int, without: Sequence[int] = (), what: str = "losses"
) -> list[float]:
    """Return the losses of `count` batches as floats, except those `without` (1 is the first).

    Raises Wrong for anything but a list of that length.
    """
    losses = got.tolist() if isinstance(got, Tensor) and got.dim() == 1 else got
    if not isinstance(losses, (list, tuple)):
        kind = "None" if got is None else f"an object of type {type(got).__name__}"
        raise Wrong(f"{case}, your function returned {kind}, not the list of {what}")
    numbers = [read_number(loss, case, "your list holds") for loss in losses]
    if len(numbers) != count:
        raise Wrong(f"{case}, your function returned {len(numbers)} {what} for {count} batches")
    return [loss for number, loss in enumerate(numbers, 1) if number not in without]


def describe_cause(evidence: str) -> dict[str, str]:
    """Return the messages for a cause or op that is not the script's, with what was measured."""
    return {
        CAUSE: f"your function does what it should, but it names {{got}} as the cause. {evidence} "
        "`CAUSES` lists the names to choose from",
        OP: "your function and its cause are right, but the op that you name ({got}) is not the "
        "one that `first_nonfinite` names in the cell above. Its first line says which op made "
        'the first inf or NaN. Write that op after the cause, `cause("…", "…")`',
    }


class Recorded:
    """Records the training of a model: `with Recorded(model) as recorded: train(model)`.

    weights: before each forward pass, and at the end
    dtypes:  that the first layer computed in
    """

    def __init__(self, model: nn.Sequential) -> None:
        self.model, self.weights, self.dtypes = model, list[Tensor](), set[str]()

    def __enter__(self) -> Recorded:
        self._start = flat(self.model.parameters())
        self._hook = self.model[0].register_forward_hook(self._record)
        return self

    def _record(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.dtypes.add(str(output.dtype)[6:])
        self.weights.append(flat(self.model.parameters()))

    def __exit__(self, *args: Any) -> None:
        self._hook.remove()
        self.weights.append(flat(self.model.parameters()))

    @property
    def passes(self) -> int:
        return len(self.weights) - 1

    @property
    def dtype(self) -> str:
        return " and ".join(sorted(self.dtypes))

    @property
    def change(self) -> Tensor:
        """What training added to the weights."""
        return self.weights[-1] - self._start

    @property
    def updated(self) -> list[int]:
        """The forward passes after which the weights changed; 1 is the first."""
        pairs = itertools.pairwise(self.weights)
        return [number for number, (a, b) in enumerate(pairs, 1) if not torch.equal(a, b)]


def sizes_of_updates(
    weights: Sequence[Tensor], right_update: Callable[[nn.Module, int], Tensor], model: nn.Module
) -> list[tuple[float, float]]:
    """Compare each update with the right one from the same weights.

    right_update: takes a copy of the model, with its weights before batch n, and n; returns the
                  right change of the weights
    Returns for each batch the update's component along the right one and its length, both in units
    of the right length: (1.0, 1.0) if it is right within 5%, (0.0, 0.0) without an update.
    """
    reference, sizes = copy.deepcopy(model), []
    for number, (before, after) in enumerate(itertools.pairwise(weights)):
        vector_to_parameters(before.clone(), reference.parameters())
        wanted, got = right_update(reference, number).double(), (after - before).double()
        length = wanted.norm()
        size = float(got @ wanted / length**2), float(got.norm() / length)
        sizes.append((1.0, 1.0) if (got - wanted).norm() <= 0.05 * length else size)
    return sizes


def fp32_gradient(
    model: nn.Module, loss: Callable[[Tensor, Any], Tensor], batch: tuple[Tensor, Any]
) -> Tensor:
    """Return the gradient of `loss(outputs, targets)`, computed in fp32, as one vector."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        gradients = torch.autograd.grad(loss(model(batch[0]), batch[1]), list(model.parameters()))
    return torch.cat([one.flatten() for one in gradients])
