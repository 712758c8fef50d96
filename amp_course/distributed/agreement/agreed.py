"""A GradScaler whose ranks agree on found_inf before any of them steps or skips.

DDP and FSDP2 don't need it: they reduce gradients over the ranks, and an inf with them. It is for
gradients that stay on their rank, as in tensor or pipeline parallelism by hand.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class AgreedGradScaler(torch.amp.GradScaler):
    """A `torch.amp.GradScaler` with one all-reduce per optimizer and step: of found_inf and each
    rank's scale.

    process_group: the ranks that skip together; None for all of them

    Every rank of the group has to unscale, or step, the same optimizers in the same order, even one
    that has no gradients or has scaled no loss. On a single rank, or with `enabled=False`, this is
    a GradScaler. Raises RuntimeError if the ranks' scales differ in the first step, or in the first
    after `load_state_dict`; comparing them in every step would make the host wait for the GPU once
    more. The other arguments, the methods and the state are GradScaler's. The same idea as in
    torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, for any gradients.
    """

    def __init__(
        self, *args: Any, process_group: dist.ProcessGroup | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.process_group = process_group
        self._compared = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a scaler's state, of a GradScaler too."""
        super().load_state_dict(state_dict)
        self._compared = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the process group, which exists in this process only:
        a copy takes the default group.
        """
        return super().__getstate__() | {"process_group": None}

    def _ranks(self) -> int:
        return dist.get_world_size(self.process_group) if dist.is_initialized() else 1

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[Tensor, Tensor]:
        if self._scale is None and self._ranks() > 1:  # this rank has no loss, as in a pipeline
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Unscale this rank's gradients, or only check them; return what was found on any rank.

        `unscale_` and the step of a fused optimizer both come here. Reduced by MAX: whether there
        is an inf, whether there is a gradient, and the scales, each at its rank's place.
        """
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        ranks = self._ranks()
        if ranks < 2:
            return found
        scale = cast(Tensor, self._scale)
        message = torch.zeros(2 + ranks, device=scale.device)
        for value in found.values():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            message[0] += whole.to(scale.device)
        message[1] = float(bool(found))
        message[2 + dist.get_rank(self.process_group)] = scale
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.process_group)
        if not self._compared:
            self._compare(message[2:].tolist())
        if not found and not message[1].item():
            return found  # no gradient on any rank: `step` raises
        return {scale.device: message[0]}

    def _compare(self, scales: list[float]) -> None:
        self._compared = True
        if len(set(scales)) > 1:
            by_rank = ", ".join(f"rank {rank} has {scale:g}" for rank, scale in enumerate(scales))
            raise RuntimeError(
                f"the ranks' loss scales differ: {by_rank}. Their gradients are in different "
                "units, so the step would mix them. Give every rank the same `init_scale`, and "
                "load the scaler's checkpoint on all ranks or on none."
            )
