"""Count the bytes of a training step exactly, on any device: weights, states, what autograd saves,
the peak.

A tensor's memory is its storage; views share one, so each storage counts once. `step_memory` runs
one real step and follows every tensor through it.

It does not see the workspace that an op allocates and frees inside itself (as convolutions do, and
bf16 matmuls on a CPU), nor the rounding and caching of the allocator. So the peak is that of the
tensors, and the CUDA allocator's own figure comes next to it. torch.compile fuses ops and drops
their temporaries: measure the eager model.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from amp_course.kit.measure import three_figures
from amp_course.kit.watch import StepWatch, storages


def tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes that `tensors` occupy together, each storage once.

    Example: [x, x.T] for an fp32 x of (2, 3) → 24
    """
    return sum({storage._cdata: storage.nbytes() for storage in storages(tensors)}.values())


def _state_tensors(optimizer: Optimizer) -> list[Tensor]:
    leaves = (leaf for state in optimizer.state.values() for leaf in tree_leaves(state))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def masters_of(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's parameters that are not the model's: fp32 copies of 16-bit weights."""
    own = {id(parameter) for parameter in model.parameters()}
    owned = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter for parameter in owned if id(parameter) not in own]


def bytes_text(count: float) -> str:
    """Write a number of bytes for people, with three figures. Example: 1_572_864 → "1.50 MiB" """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1023.5 or unit == "TiB":
            break
    return f"{three_figures(count)} {unit}"


@dataclass(frozen=True)
class StepMemory:
    """The bytes of one training step; each number is the maximum over the step."""

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int  # what autograd saves for the backward pass, also of the batch
    cast_copies: int  # low-precision weights made by autocast, until its region or backward ends
    peak: int  # of all tensors together, temporary ones included, on the device of the parameters
    cuda_peak: int | None  # the CUDA allocator's figure for the same step; None on another device
    masters: int = 0  # fp32 copies of 16-bit weights, which the optimizer owns

    @property
    def total(self) -> int:
        """The sum of the parts, which need not exist at one time: the peak may be less, or more."""
        return self.kept + self.buffers + self.activations + self.cast_copies

    @property
    def kept(self) -> int:
        """Weights, masters, gradients and optimizer state: what does not depend on the batch."""
        return self.parameters + self.masters + self.gradients + self.optimizer_state

    def to_dict(self) -> dict[str, int | None]:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        return "\n".join(
            f"{name.replace('_', ' '):<16}{bytes_text(count):>10}"
            for name, count in self.to_dict().items()
            if count is not None
        )


def step_memory(
    model: nn.Module, optimizer: Optimizer, step: Callable[[], object], batch: Iterable[Tensor] = ()
) -> StepMemory:
    """Run `step()` once (forward, backward, optimizer.step) and count its bytes.

    The step is a real one: weights and random state change. The first step of Adam or of SGD with
    momentum also creates their state; run one before, to measure the following ones. `batch` holds
    the tensors that are on the device for the whole step, and so in the peak. If one is left out,
    it is found as soon as an op reads it.

    Gradients are counted when autograd has accumulated them, even if the step clears them or a
    GradScaler skips `optimizer.step()`; activations from the moment autograd saves them until it
    frees them, without parameters, buffers and cast copies. What torch.utils.checkpoint or
    save_on_cpu keep is not counted. The CUDA allocator's peak is reduced by what was allocated
    before for anything but this training.

    Raises ValueError for a model without parameters, TypeError for a step that cannot be called.
    Example: SimpleNet(w) in fp32, batch b, MSE → activations 20bw: x, two ReLU outputs, y and the
             target
    Source: torch/distributed/_tools/mem_tracker.py finds the peak the same way.
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError(
            f"{type(model).__name__} has no parameters, so there is no training step to measure: "
            "pass the model that the optimizer trains (layers in a plain list are not registered: "
            "use nn.ModuleList)."
        )
    if not callable(step):
        raise TypeError(
            f"step is a {type(step).__name__}, not a function: pass the function that runs one "
            "step, as in step_memory(model, optimizer, step), without calling it."
        )
    masters = masters_of(model, optimizer)
    watch = StepWatch(model, [*masters, *_state_tensors(optimizer), *batch])
    cuda = watch.device if watch.device.type == "cuda" else None
    allocated_before = 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(cuda)
        allocated_before = torch.cuda.memory_allocated(cuda)
    with ExitStack() as stack:
        for parameter in parameters:
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(watch.note_gradient)
                stack.callback(hook.remove)
        stack.enter_context(watch)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack))
        step()
    others = allocated_before - watch.bytes_before
    return StepMemory(
        parameters=tensor_bytes(parameters),
        buffers=tensor_bytes(model.buffers()),
        gradients=watch.gradients.peak,
        optimizer_state=tensor_bytes(_state_tensors(optimizer)),
        activations=watch.saved.peak,
        cast_copies=watch.cast_copies.peak,
        peak=watch.everything.peak,
        cuda_peak=torch.cuda.max_memory_allocated(cuda) - others if cuda else None,
        masters=tensor_bytes(masters),
    )
