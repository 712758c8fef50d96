"""Count the bytes of a training step exactly, on any device: what is held, what autograd saves, and
the peak.

A tensor's memory is its storage; views share one, so bytes are counted by storage, each once.
`step_memory` runs one real step and follows every tensor through it.

What it does not see: the workspace an op takes and gives back inside itself (convolutions, and bf16
matmuls on a CPU, take some), and the rounding and caching of the allocator. So the peak is that of
the tensors; the CUDA allocator's own figure is shown with it where there is one. Under
torch.compile ops are fused and their temporaries gone: measure the eager model.
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
    """Return what the optimizer owns and the model does not have: fp32 copies of 16-bit weights."""
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
    """Say where the bytes of one training step are; each number is the most there was at one
    time.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    # saved by autograd for the backward pass, the batch included where it is saved
    activations: int
    # low-precision weights made by autocast, kept until its region or backward ends
    cast_copies: int
    # of all tensors together, so also of the temporary ones; on the device of the parameters
    peak: int
    cuda_peak: int | None  # the CUDA allocator's figure for the same step; None on another device
    masters: int = 0  # fp32 copies of 16-bit weights, which the optimizer owns

    @property
    def total(self) -> int:
        """The parts added up; not all need be there at one time, so the peak may be below this,
        or above.
        """
        return self.kept + self.buffers + self.activations + self.cast_copies

    @property
    def kept(self) -> int:
        """Weights, masters, gradients and optimizer state:
        what each parameter costs, whatever the batch.
        """
        return self.parameters + self.masters + self.gradients + self.optimizer_state

    def to_dict(self) -> dict[str, int | None]:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        rows = {
            name.replace("_", " "): count
            for name, count in self.to_dict().items()
            if count is not None
        }
        return "\n".join(f"{name:<16}{bytes_text(count):>10}" for name, count in rows.items())


def step_memory(
    model: nn.Module, optimizer: Optimizer, step: Callable[[], object], batch: Iterable[Tensor] = ()
) -> StepMemory:
    """Run `step()` once (forward, backward, optimizer.step) and count its bytes.

    The step is a real one: weights and random state move on. The first step of Adam or of SGD with
    momentum also makes their state; run one before, to see the steps that follow. `batch` holds the
    tensors that wait on the device for the whole step: part of the peak. One that is left out is
    still found as soon as an op reads it.

    How it counts: gradients when autograd has accumulated them, so it does not matter whether the
    step clears them, or whether a GradScaler skips `optimizer.step()`; activations from the moment
    autograd saves them to the moment it lets go, parameters, buffers and cast copies left out. What
    torch.utils.checkpoint or save_on_cpu keep for themselves is not among them. Of the CUDA
    allocator's peak, what was allocated before for anything but this training is taken off.

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
                stack.callback(
                    parameter.register_post_accumulate_grad_hook(watch.note_gradient).remove
                )
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
