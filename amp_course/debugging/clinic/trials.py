"""What the clinic's exercises share: run an answer, note the cause that it names, read its losses,
and judge its updates.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from amp_course.checking import Wrong, call_answer, read_number
from amp_course.debugging.clinic.causes import named_causes

CAUSE = "the cause that you name"  # the facet of the last turn, once all else is right
UNNAMED = "nothing"
UNCLEARED = (
    "nothing clears the gradients, so those of all batches add up: call `optimizer.zero_grad()` "
    "for each batch, before `backward()` or after the step"
)


def run_answer(answer: Callable[..., Any], case: str, *arguments: Any) -> tuple[Any, str]:
    """Call an answer; return what it gave and the cause that it named:
    "clipped-while-scaled", or UNNAMED.
    """
    with named_causes() as named:
        got = call_answer(answer, case, *arguments)
    return got, " and ".join(named) or UNNAMED


def read_losses(got: Any, case: str, count: int, what: str = "losses") -> list[float]:
    """Return the losses of `count` updates as floats, or what else each has one of;
    raises Wrong for anything but a list.
    """
    losses = got.tolist() if isinstance(got, Tensor) and got.dim() == 1 else got
    if not isinstance(losses, (list, tuple)):
        kind = "None" if got is None else f"an object of type {type(got).__name__}"
        raise Wrong(f"{case}, your function returned {kind}, not the list of {what}")
    numbers = [read_number(loss, case, "your list holds") for loss in losses]
    if len(numbers) != count:
        raise Wrong(f"{case}, your function returned {len(numbers)} {what} for {count} batches")
    return numbers


def describe_cause(evidence: str) -> dict[str, str]:
    """Return what is said of a cause that is not the patient's;
    the evidence says what was measured on the patient.
    """
    told = (
        f"your function does what it should, but names {{got}} as the cause. {evidence} `CAUSES` "
        f"lists the names "
        "to choose from"
    )
    return {CAUSE: told}


class Recorded:
    """A model's weights before each of its forward passes,
    and the dtypes that its first layer computes in.
    """

    def __init__(self, model: nn.Sequential) -> None:
        self.model, self.weights, self.dtypes = model, list[Tensor](), set[str]()
        self._hook = model[0].register_forward_hook(self._record)

    def _record(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.dtypes.add(str(output.dtype)[6:])
        self.weights.append(self._now())

    def _now(self) -> Tensor:
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def end(self) -> None:
        """Stop recording, with the weights at the end as the last of `weights`."""
        self._hook.remove()
        self.weights.append(self._now())


def sizes_of_updates(
    weights: Sequence[Tensor], right_update: Callable[[nn.Module, int], Tensor], model: nn.Module
) -> list[tuple[float, float]]:
    """Compare each update with the right one from the same weights, so that earlier updates do not
    matter.

    right_update: takes a copy of the model, with the weights before batch n, and n; returns the
                  right change of the weights
    Returns for each batch the update's component along the right one and its length, both in units
    of the right length: (1.0, 1.0) for what is right within 5%, (0.0, 0.0) for none.
    """
    twin, sizes = copy.deepcopy(model), []
    for number, (before, after) in enumerate(itertools.pairwise(weights)):
        vector_to_parameters(before.clone(), twin.parameters())
        wanted, got = right_update(twin, number).double(), (after - before).double()
        length = wanted.norm()
        right = bool((got - wanted).norm() <= 0.05 * length)
        sizes.append(
            (1.0, 1.0) if right else (float(got @ wanted / length**2), float(got.norm() / length))
        )
    return sizes


def fp32_gradient(
    model: nn.Module, loss: Callable[[Tensor, Any], Tensor], batch: tuple[Tensor, Any]
) -> Tensor:
    """Return the gradient of `loss(outputs, targets)` for all weights as one vector,
    computed in fp32.
    """
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        gradients = torch.autograd.grad(loss(model(batch[0]), batch[1]), list(model.parameters()))
    return torch.cat([one.flatten() for one in gradients])
