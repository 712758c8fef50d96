"""Run a training step twice from the same state, and see if it does the same to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_course.audit.arguments import as_list
from amp_course.audit.snapshot import restored
from amp_course.kit.markup import counted
from amp_course.kit.tensors import tensors_in
from amp_course.watching.calling import arguments_for, cloned


@dataclass(frozen=True)
class Replay:
    """What two runs of a step gave.

    hashes: name → the hash of its bytes in each run, "" where a run has none. The names are in the
            order in which a step makes them: "the loss", "the gradient of head.weight at the first
            optimizer step", "the weight head.weight", "the buffer norm.running_mean"
    not_put_back: (name, what became of it) of what the first run changed for the second
    """

    hashes: Mapping[str, tuple[str, str]]
    not_put_back: tuple[tuple[str, str], ...] = ()

    @property
    def differing(self) -> tuple[str, ...]:
        """The names of what differs."""
        return tuple(name for name, (one, two) in self.hashes.items() if one != two)

    def __bool__(self) -> bool:
        """Return True if everything was the same to the last bit."""
        return not self.differing

    def __str__(self) -> str:
        if self:
            return f"2 runs of the step gave the same bits: {_count(self.hashes)}."
        first, rest = self.differing[0], len(self.differing) - 1
        more = f", and {rest} more of {len(self.hashes)}" if rest else ""
        lost = "".join(f"\nNot put back: `{name}` {why}." for name, why in self.not_put_back)
        return f"2 runs of the step differ, first in {first}{more}.{lost}"

    __repr__ = __str__


def replay(
    step: Callable[..., Any],
    batch: Any = (),
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] = (),
) -> Replay:
    """Run `step(*batch)` twice from the same weights, states and random numbers, and put all back.

    If the bits are the same, a fault in this step can be examined again and again. If they differ,
    one of its ops adds up in an order that changes (`torch.use_deterministic_algorithms(True)`
    finds it), or the step depends on the time, a file, or an iterator that cannot be put back, as
    that of a DataLoader. What the step returns counts as the loss. Raises what the step raises.
    """
    models = [one for one in as_list(model) if isinstance(one, nn.Module)]
    objects = [*models, *as_list(optimizer), *as_list(scaler)]
    first, second, lost = dict[str, str](), dict[str, str](), dict[str, str]()
    for run in (first, second):
        with restored(objects, {"the step": step}) as snapshot:
            for name, value in _run(step, batch, models):
                run[name] = run.get(name, "") + value  # two models may use one name
        lost |= snapshot.lost
    hashes = {name: (first.get(name, ""), second.get(name, "")) for name in first | second}
    return Replay(hashes, tuple(lost.items()))


def _run(
    step: Callable[..., Any], batch: Any, models: Sequence[nn.Module]
) -> Iterator[tuple[str, str]]:
    grads: dict[str, str] = {}

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for name, grad in _gradients(models):
            grads.setdefault(f"the gradient of {name} at the first optimizer step", digest(grad))

    handle = register_optimizer_step_pre_hook(before)
    try:
        args, kwargs = arguments_for(step, cloned(batch))
        returned = step(*args, **kwargs)
    finally:
        handle.remove()
    if isinstance(returned, (int, float)):
        yield "the loss", repr(returned)
    for number, tensor in enumerate(tensors_in(returned), 1):
        name = "the loss" if number == 1 else f"tensor {number} of what the step returns"
        yield name, digest(tensor)
    yield from grads.items()
    if not grads:
        yield from ((f"the gradient of {name}", digest(grad)) for name, grad in _gradients(models))
    for model in models:
        for name, weight in model.named_parameters():
            yield f"the weight {name}", digest(weight)
        for name, buffer in model.named_buffers():
            yield f"the buffer {name}", digest(buffer)


def _gradients(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for model in models:
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                yield name, weight.grad


def digest(tensor: Tensor) -> str:
    """Return a hash of a tensor's dtype, shape and bytes; NaNs with different bits differ."""
    plain = tensor.detach().cpu()
    plain = (plain if plain.layout is torch.strided else plain.to_dense()).contiguous()
    found = hashlib.blake2b(f"{plain.dtype}{tuple(plain.shape)}".encode(), digest_size=8)
    found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return found.hexdigest()


def _count(hashes: Mapping[str, Any]) -> str:
    kinds = ("loss", "gradient", "weight", "buffer")
    numbers = {kind: sum(name.startswith(f"the {kind}") for name in hashes) for kind in kinds}
    return ", ".join(
        "the loss" if kind == "loss" else counted(number, kind)
        for kind, number in numbers.items()
        if number
    )
