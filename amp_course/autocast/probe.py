"""Run ops under autocast and see what it did to each: nothing here is looked up in a list.

Every op is called with float32 inputs, with inputs of the lower dtype and with a mixture, with
autocast on and off. What came out and which casts were inserted tell the policy that it stands
under. Autograd is not looked at.
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
    """One call: the dtype that came out (the first kernel's where no float did), its casts,
    or what it raised.
    """

    dtype: torch.dtype | None = None
    casts: list[torch.dtype] = field(default_factory=list)
    error: str = ""


class _Kernels(TorchDispatchMode):
    """Note, below autocast, the dtypes that kernels are given, and each cast."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []
        self.casts: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            if out.dtype != args[0].dtype:
                self.casts.append(out.dtype)
        else:
            self.dtypes += [leaf.dtype for leaf in given]
        return out


def _float_of(result: Any, kernels: list[torch.dtype]) -> torch.dtype | None:
    """Return the first float dtype of a result, a complex one's part,
    or else what the first kernel was given.
    """
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.dtype.to_real()
    return kernels[0] if kernels else None


def _call(op: SampleCall, device_type: str, dtype: torch.dtype, given: str, on: bool) -> _Outcome:
    order = iter([dtype] if given == "mixed" else [])

    def make(values: Tensor) -> Tensor:
        return values.to(next(order, torch.float32) if given != "lower" else dtype)

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
    """Keep back what old ops warn of, and what fake tensors log of a call that fails:
    both are in the table.
    """
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
    given = ("fp32", "lower", "mixed")
    on = {how: _call(op, device_type, dtype, how, on=True) for how in given}
    off = {how: _call(op, device_type, dtype, how, on=False) for how in given}
    verdict = _verdict(on, off, dtype)
    message = on["fp32"].error
    if verdict == "lower" and on["fp32"].dtype != dtype:
        message = (
            f"its products run in {dtype_name(dtype)}; a float32 input makes what comes out float32"
        )
    return Probed(name, group, verdict, {how: on[how].dtype for how in given}, message)


def probe_policy(device_type: str, dtype: torch.dtype) -> Policy:
    """Run every op of `OPS` under autocast on a kind of device, and return what it did to each.

    "cuda" is asked on fake tensors, with a GPU or without one: a call that no kernel is meant for,
    such as that of `_grid_sampler_2d_cpu_fallback`, ends the process on a real one. An op that
    cannot be run so is listed as such. The global random stream is not touched.

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
