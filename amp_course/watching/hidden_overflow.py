"""Find overflows without a trace: an inf that a later op turns into 0, as `x * rsqrt(inf)` does.

An inf that is gone again may be right: the sigmoid of a large number is 1 / (1 + inf). So the
module is computed again in fp32, and only a result that differs is a fault.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from amp_course.kit.random_state import same_random_state
from amp_course.kit.tensors import tensors_in
from amp_course.watching.ops import Watch
from amp_course.watching.origins import NonfiniteOrigin
from amp_course.watching.values import INF

_MODULES = 3  # that are computed again


class HiddenOverflow:
    """Modules in which fp16 overflowed and nothing came of it.

    origins: the overflows, by the path of a module
    errors: by the path of a module, how far its result is from fp32's, in norms of that
    """

    def __init__(self, watch: Watch) -> None:
        self.origins: dict[str, NonfiniteOrigin] = {}
        self.errors: dict[str, float] = {}
        self._watch, self._looked_at = watch, 0
        self._waiting: dict[nn.Module, str] = {}  # that are compared when they run next

    def look_for(self) -> None:
        """Let the modules of new overflows be compared when they run next."""
        origins, self._looked_at = self._watch.origins[self._looked_at :], len(self._watch.origins)
        of_path = {path: module for module, path in self._watch._paths.items()}
        for origin in origins:
            overflowed = origin.made.dtype == "float16" and INF in origin.made.holds
            if origin.phase != "forward" or not overflowed or origin.reached or origin.meant:
                continue
            module = of_path.get(origin.module)
            known = origin.module in self.origins or len(self.origins) >= _MODULES
            if module is not None and not known:
                self.origins[origin.module] = origin
                self._waiting[module] = origin.module

    def module_returns(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Compute a module again in fp32, if it waits for that."""
        path = self._waiting.pop(module, None) if self._waiting else None
        if path is None:
            return
        with self._watch.aside(), torch.no_grad(), same_random_state():
            try:
                weights = [*module.named_parameters(), *module.named_buffers()]
                held = {name: _float(one.detach()).clone() for name, one in weights}
                given, named = pytree.tree_map(_float, (args, kwargs))
                with torch.autocast(next(iter(tensors_in(output))).device.type, enabled=False):
                    wanted = torch.func.functional_call(module, held, given, named)
            except Exception:  # a module that does not run in fp32 tells nothing
                return
            got, right = _flat(output), _flat(wanted)
            self.errors[path] = float((got - right).norm() / right.norm().clamp_min(1e-300))


def _float(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _flat(value: Any) -> Tensor:
    return torch.cat([one.detach().double().flatten() for one in tensors_in(value)])
