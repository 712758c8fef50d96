"""For the exercises of chapter 05: the gradients that an optimizer steps with."""

import torch
from torch import Tensor

from amp_course.watching.scene import flat


def gradients(optimizer: torch.optim.Optimizer) -> Tensor:
    """Return the optimizer's gradients as one flat copy; 0 where there is none."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return flat([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])


def watch_steps(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return a list to which every step adds its gradients, read after it:
    a hook of the answer may change them first.
    """
    used: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *_: used.append(gradients(optimizer)))
    return used
