"""Find overflows that leave no trace: a later op turns the inf into 0, as `x * rsqrt(inf)` does.

That may be right: the sigmoid of a large number is 1 / (1 + inf). So the module is computed again
in fp32, and only a different result is a fault.
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

_MOST_MODULES = 3  # that are computed again


class HiddenOverflow:
    """Modules in which fp16 overflowed and nothing came of it.

    origins: path of a module → its overflow
    errors:  path of a module → relative distance of its result from fp32's
    """

    def __init__(self, watch: Watch) -> None:
        self.origins: dict[str, NonfiniteOrigin] = {}
        self.errors: dict[str, float] = {}
        self._watch, self._checked = watch, 0
        self._waiting: dict[nn.Module, str] = {}  # compared when they run next

    def check_new_origins(self) -> None:
        """Select the modules of new overflows, to be compared when they run next."""
        new, self._checked = self._watch.origins[self._checked :], len(self._watch.origins)
        modules = {path: module for module, path in self._watch.modules.paths.items()}
        for origin in new:
            overflowed = origin.made.dtype == "float16" and INF in origin.made.holds
            if origin.phase != "forward" or not overflowed or origin.reached or origin.meant:
                continue
            module = modules.get(origin.module)
            known = origin.module in self.origins or len(self.origins) >= _MOST_MODULES
            if module is not None and not known:
                self.origins[origin.module] = origin
                self._waiting[module] = origin.module

    def module_returns(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Compute a module again in fp32 if it was selected."""
        path = self._waiting.pop(module, None) if self._waiting else None
        if path is None:
            return
        with self._watch.aside(), torch.no_grad(), same_random_state():
            try:
                weights = [*module.named_parameters(), *module.named_buffers()]
                copies = {name: _float(one.detach()).clone() for name, one in weights}
                inputs = pytree.tree_map(_float, (args, kwargs))
                with torch.autocast(next(tensors_in(output)).device.type, enabled=False):
                    wanted = _flat(torch.func.functional_call(module, copies, *inputs))
            except Exception:  # a module that does not run in fp32 cannot be compared
                return
            error = (_flat(output) - wanted).norm() / wanted.norm().clamp_min(1e-300)
            self.errors[path] = float(error)


def _float(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _flat(value: Any) -> Tensor:
    return torch.cat([one.detach().double().flatten() for one in tensors_in(value)])
