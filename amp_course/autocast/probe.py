"""Run ops under autocast to find out what it does to each, without looking into any list.

Every op is called with inputs in float32, in the lower dtype and mixed, with autocast on and off.
The results' dtypes and the inserted casts show its policy. Autograd is not tested.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_course.autocast.ops import GROUPS, SampleCall
from amp_course.autocast.policy import Policy, Probed
from amp_course.autocast.region import check_region, region, stage
from amp_course.kit.dtypes import dtype_name


@dataclass
class _Outcome:
    """One call: the result's dtype (of the first kernel's input without one), casts, and error."""

    dtype: torch.dtype | None = None
    casts: list[torch.dtype] = field(default_factory=list)
    error: str = ""


class _Kernels(TorchDispatchMode):
    """Note, below autocast, the dtypes of the kernels' inputs, and each cast."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []
        self.casts: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [
            leaf.dtype
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        out = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._to_copy.default:
            self.dtypes += inputs
        elif out.dtype != args[0].dtype:
            self.casts.append(out.dtype)
        return out


def _float_of(result: Any, kernels: list[torch.dtype]) -> torch.dtype | None:
    """Return a result's first float dtype, also of a complex part, else the first kernel's."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.dtype.to_real()
    return kernels[0] if kernels else None


def _call(op: SampleCall, device_type: str, dtype: torch.dtype, inputs: str, on: bool) -> _Outcome:
    first = iter([dtype] if inputs == "mixed" else [])
    rest = dtype if inputs == "lower" else torch.float32

    def make(values: Tensor) -> Tensor:
        return values.to(next(first, rest))

    arguments, options = op.build(make, device_type)
    scope = region(device_type, dtype) if on else nullcontext()
    with scope, _Kernels() as kernels:
        try:
            result = op.function(*arguments, **options)
        except Exception as error:
            return _Outcome(error=str(error).strip() or type(error).__name__)
    return _Outcome(_float_of(result, kernels.dtypes), kernels.casts)


def _verdict(on: dict[str, _Outcome], off: dict[str, _Outcome], dtype: torch.dtype) -> str:
    if on["fp32"].error:
        return "refused" if "unsafe to autocast" in on["fp32"].error else "cannot run"
    lowered = dtype in on["fp32"].casts and dtype not in off["fp32"].casts
    if on["fp32"].dtype == dtype or lowered:
        return "lower"
    if on["lower"].dtype == torch.float32 and off["lower"].dtype != torch.float32:
        return "fp32"
    mixed, plain = on["mixed"], off["mixed"]
    if mixed.dtype == torch.float32 and (
        plain.dtype != torch.float32 or mixed.casts != plain.casts
    ):
        return "widest"
    return "unchanged"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of old ops and the logs of fake tensors: the table has the reasons."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def probe_op(name: str, op: SampleCall, group: str, device_type: str, dtype: torch.dtype) -> Probed:
    """Call one op in every way and return its row."""
    kinds = ("fp32", "lower", "mixed")
    on = {inputs: _call(op, device_type, dtype, inputs, on=True) for inputs in kinds}
    off = {inputs: _call(op, device_type, dtype, inputs, on=False) for inputs in kinds}
    verdict = _verdict(on, off, dtype)
    message = on["fp32"].error
    if verdict == "lower" and on["fp32"].dtype != dtype:
        lower = dtype_name(dtype)
        message = f"its products run in {lower}; a float32 input makes what comes out float32"
    return Probed(name, group, verdict, {inputs: on[inputs].dtype for inputs in kinds}, message)


def probe_policy(device_type: str, dtype: torch.dtype) -> Policy:
    """Run every op of `OPS` under autocast on a kind of device, and return what it did to each.

    "cuda" is probed on fake tensors even if there is a GPU: there, calls that no kernel is meant
    for, such as that of `_grid_sampler_2d_cpu_fallback`, end the process. An op that fake tensors
    cannot run is listed as such. The global random stream is not touched.

    Raises ValueError for a device without autocast, and for a dtype other than bfloat16 and
    float16.
    Example: probe_policy("cpu", torch.bfloat16)["layer_norm"].verdict → "unchanged"; "cuda",
             float16 → "fp32"
    """
    check_region(device_type, dtype)
    fake = device_type == "cuda"
    with stage(device_type, fake=fake), torch.no_grad(), _quiet():
        probed = {
            name: probe_op(name, op, group, device_type, dtype)
            for group, ops in GROUPS.items()
            for name, op in ops.items()
        }
    return Policy(device_type, dtype, fake, probed)
