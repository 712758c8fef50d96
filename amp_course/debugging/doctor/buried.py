"""Find overflows that leave no trace: an inf in fp16 that a later op turns into 0, as `x * rsqrt(inf)` does.

An inf that is gone again may be right: the sigmoid of a large number is 1 / (1 + inf). So the module is computed again in fp32,
and only a result that differs is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from amp_course.audit.findings import Finding
from amp_course.autocast.records import tensors_in
from amp_course.debugging.doctor.faults import finding
from amp_course.debugging.nonfinite import Birth, Watch
from amp_course.debugging.nonfinite.values import INF
from amp_course.kit.random_state import same_random_state

_MODULES = 3  # that are computed again
_WRONG = 0.5  # of the norm of what fp32 gives


class Buried:
    """Modules in which fp16 overflowed and nothing came of it, and how far their results are from those in fp32."""

    def __init__(self) -> None:
        self._watched: dict[str, Birth] = {}
        self._looked_at = 0
        self._errors: dict[str, float] = {}

    def look_for(self, watch: Watch) -> None:
        """Let the modules of new overflows be compared when they run next."""
        births, self._looked_at = watch.births[self._looked_at :], len(watch.births)
        of_path = {path: module for module, path in watch._paths.items()}
        for birth in births:
            fits = birth.phase == "forward" and birth.made.dtype == "float16" and INF in birth.made.holds
            if not fits or birth.reached or birth.meant or birth.module in self._watched:
                continue
            module = of_path.get(birth.module)
            if module is not None and len(self._watched) < _MODULES:
                self._watched[birth.module] = birth
                self._compare(module, birth.module, watch)

    def _compare(self, module: nn.Module, path: str, watch: Watch) -> None:
        def hook(this: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            handle.remove()
            with watch.aside(), torch.no_grad(), same_random_state():
                try:
                    held = {
                        name: _float(one.detach()).clone()
                        for name, one in [*this.named_parameters(), *this.named_buffers()]
                    }
                    given, named = pytree.tree_map(_float, (args, kwargs))
                    with torch.autocast(next(iter(tensors_in(output))).device.type, enabled=False):
                        wanted = torch.func.functional_call(this, held, given, named)
                except Exception:  # a module that does not run in fp32 tells nothing
                    return
            got, right = (
                torch.cat([one.detach().double().flatten() for one in tensors_in(both)]) for both in (output, wanted)
            )
            with watch.aside():
                self._errors[path] = float((got - right).norm() / right.norm().clamp_min(1e-300))

        handle = module.register_forward_hook(hook, with_kwargs=True)

    def findings(self) -> Iterator[Finding]:
        """Yield the overflows that made a result wrong."""
        for path, error in self._errors.items():
            birth = self._watched[path]
            if error > _WRONG:
                cause = (
                    "a value is beyond 65,504, where fp16 ends, and what follows turns the inf into 0: no NaN shows it"
                )
                place = {"line": str(birth.line)} if birth.line else {}
                yield finding(
                    "beyond-fp16", cause, op=f"{birth.op} in `{path}`", it_took=", ".join(map(str, birth.took)), **place,
                    result_differs_from_fp32=f"by {error:.0%} of its norm",
                )  # fmt: skip
                return


def _float(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
