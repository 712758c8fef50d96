"""Trace a model under autocast: which dtype each op ran in, and which casts autocast inserted, forward and backward.

The model may be anybody's. It is run once, on clones of the inputs, and left as it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from amp_course.autocast.events import LOSS, ROOT, Op, Phase, dtypes, floats, tensors_in
from amp_course.autocast.recorder import Recorder
from amp_course.autocast.region import check_region, is_fake, region, stage
from amp_course.autocast.stand import cloned, moved_copy, no_device_asked, restored


class TraceError(RuntimeError):
    """The model raised while it was traced; `trace` holds what had run by then, and `__cause__` what was raised."""

    def __init__(self, message: str, trace: Trace) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class ModuleRow:
    """What went on in one module, in its own forward and not in that of modules in it.

    inputs, outputs: the float dtypes at its door, over all `calls`, each once; computed: those its backward ops gave out
    casts, cast_bytes: the casts that autocast inserted before its ops; reused: weights taken from the cache, counted
    back_casts, back_bytes: casts of gradients on the way back through them
    """

    path: str
    kind: str
    calls: int
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    casts: int
    cast_bytes: int
    reused: int
    computed: tuple[torch.dtype, ...]
    back_casts: int
    back_bytes: int


@dataclass(frozen=True)
class Trace:
    """What a model did under autocast: `print` it, iterate over its ops, ask for a module: `trace["linear1"]`.

    dtype: what autocast lowered to, None for off; fake: traced on fake tensors, for want of the device
    notes: what is worth knowing, such as why there is no backward pass
    """

    name: str
    device_type: str
    dtype: torch.dtype | None
    fake: bool
    ops: tuple[Op, ...] = field(repr=False)
    modules: tuple[ModuleRow, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return a module's row. Raises KeyError, with the paths that there are, for one that was not called."""
        for row in self.modules:
            if row.path == path:
                return row
        there = ", ".join(row.path for row in self.modules)
        raise KeyError(f"no module {path!r} was called; there are: {there}")

    def of(self, path: str, phase: Phase = "forward") -> list[Op]:
        """Return the ops of one module in the order in which they ran."""
        return [op for op in self.ops if op.module == path and op.phase == phase]

    def casts(self, phase: Phase = "forward") -> list[Op]:
        """Return the casts that autocast inserted; in the backward pass, the gradients' way back through them."""
        return [op for op in self.ops if op.phase == phase and op.cast in ("autocast", "gradient")]

    def cast_bytes(self, phase: Phase = "forward") -> int:
        """Return the bytes of the copies that these casts made."""
        return sum(op.bytes for op in self.casts(phase))

    @property
    def has_backward(self) -> bool:
        """Whether the backward pass was traced."""
        return any(op.phase == "backward" for op in self.ops)

    def __str__(self) -> str:
        from amp_course.autocast.views import trace_text

        return trace_text(self)

    def _repr_html_(self) -> str:
        from amp_course.autocast.views import trace_table

        return trace_table(self)


def trace(
    model: nn.Module,
    *inputs: Any,
    device_type: str | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
    loss: Callable[[Any], Tensor] | None = None,
    backward: bool = True,
    kwargs: Mapping[str, Any] | None = None,
) -> Trace:
    """Run `model(*inputs, **kwargs)` once under autocast, then its backward pass, and write down every op.

    device_type: whose policy; None for that of the model's device. If the model is elsewhere, a copy of it is traced on
                 that device, and on fake tensors for "cuda" without a GPU: then dtypes are seen, values and the backward
                 pass are not.
    dtype: what autocast lowers to; None traces without autocast
    loss: output → scalar, computed inside the region; without one, the backward pass starts from ones in each float output

    The model's weights, `.grad`, buffers and training mode, the inputs, the random state and autocast's are as before.
    Weights that forward itself overwrites, and plain Python attributes that it sets, are not put back.

    Raises TypeError for what is no nn.Module, ValueError for a device or dtype without autocast, for tensors on several
    devices or on "meta", and for a loss that is no scalar; TraceError, with what had run, if the model raises.
    Example: trace(SimpleNet(8), torch.randn(2, 8))["linear2"].inputs → (torch.bfloat16,)
    """
    if not isinstance(model, nn.Module):
        kind = "the class" if isinstance(model, type) else "a"
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise TypeError(f"trace wants an nn.Module and got {kind} {name}: pass the model itself, then its inputs.")
    arguments = (inputs, dict(kwargs or {}))
    place = _one_device(model, arguments)
    device_type = device_type or place or "cpu"
    check_region(device_type, torch.bfloat16 if dtype is None else dtype)
    fake = is_fake(device_type)
    notes: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(restored(model))
        stack.enter_context(stage(device_type))
        trained = {path for path, weight in model.named_parameters() if weight.requires_grad}
        if fake:
            stack.enter_context(no_device_asked())
        if fake or place not in (None, device_type):
            model, arguments = moved_copy(model, arguments, device_type, fake)
        else:
            arguments = cloned(arguments)
        names = {id(weight): path for path, weight in model.named_parameters()}
        of_trained = frozenset(number for number, path in names.items() if path in trained)
        recorder = Recorder(model, device_type, dtype, not fake, names, of_trained)

        def so_far() -> Trace:
            return Trace(
                type(model).__name__, device_type, dtype, fake, tuple(recorder.ops), _rows(recorder), tuple(notes)
            )

        try:
            stack.callback(torch.clear_autocast_cache)
            torch.clear_autocast_cache()  # of the region around this call, if any: else its casts would be missing here
            with recorder.watch(), region(device_type, dtype or torch.bfloat16, enabled=dtype is not None):
                output = model(*arguments[0], **arguments[1])
                if loss is not None:
                    with recorder.calling(LOSS, "loss", output) as call:
                        output = loss(output)
                        call.outputs = dtypes(tensors_in(output))
            starts = _starts(output, loss is not None)
            leaves = [leaf for leaf in [*model.parameters(), *tensors_in(arguments)] if leaf.requires_grad]
            if why := _no_backward(backward, fake, starts, leaves):
                notes.append(why)
            else:
                recorder.phase = "backward"
                ones = [torch.ones_like(start) for start in starts]
                with recorder.watch(), region(device_type, dtype or torch.bfloat16, enabled=False):
                    # Not `backward()`, which would add to the model's own `.grad`.
                    torch.autograd.grad(starts, leaves, ones, allow_unused=True)
        except _BadLoss:
            raise
        except Exception as error:
            raise TraceError(_explained(error, recorder, fake), so_far()) from error
        return so_far()


class _BadLoss(ValueError):
    """What `loss` gave is nothing that a backward pass can start from."""


def _one_device(model: nn.Module, arguments: Any) -> str | None:
    """Return the kind of device that the model and the inputs are on; None if there is no tensor at all."""
    where = {"the model": {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]}}
    where["the inputs"] = {tensor.device.type for tensor in tensors_in(arguments)}
    found = set().union(*where.values())
    if "meta" in found:
        raise ValueError(
            "a tensor is on the 'meta' device, which has no autocast, in "
            f"{' and '.join(who for who, devices in where.items() if 'meta' in devices)}: make it on 'cpu' (trace runs it once)."
        )
    if len(found) > 1:
        held = "; ".join(f"{who} on {', '.join(sorted(devices))}" for who, devices in where.items() if devices)
        raise ValueError(f"tensors are on several devices ({held}): bring all to one with .to(device).")
    return next(iter(found), None)


def _starts(output: Any, is_loss: bool) -> list[Tensor]:
    if is_loss and not (isinstance(output, Tensor) and output.numel() == 1):
        got = f"a tensor of {tuple(output.shape)}" if isinstance(output, Tensor) else f"{type(output).__name__}"
        raise _BadLoss(f"loss gave {got}, and a backward pass starts from a scalar: take its mean() or sum().")
    return [tensor for tensor in tensors_in(output) if tensor.requires_grad]


def _no_backward(wanted: bool, fake: bool, starts: list[Tensor], leaves: list[Tensor]) -> str:
    if not wanted:
        return "no backward pass: you asked for none."
    if fake:
        return "no backward pass: autograd needs a real GPU. Each backward op runs in the dtype of its forward op."
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        return "no backward pass: gradients are switched off here (no_grad or inference_mode)."
    if not starts or not leaves:
        return "no backward pass: nothing in the output depends on a tensor that needs a gradient."
    return ""


def _explained(error: Exception, recorder: Recorder, fake: bool) -> str:
    last = recorder.ops[-1] if recorder.ops else None
    at = f"after {len(recorder.ops)} ops, the last one {last.op} in {last.module}" if last else "before any op ran"
    text = f"the {recorder.phase} pass of {type(recorder.model).__name__} raised {type(error).__name__} {at}: {error}"
    if fake and isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        text += " This op's result depends on values, and a fake tensor has none: trace it with device_type='cpu'."
    elif fake:
        text += " (On fake tensors, for want of a GPU: if it runs with device_type='cpu', look for tensors that are no buffers.)"
    return text


def _rows(recorder: Recorder) -> tuple[ModuleRow, ...]:
    rows = []
    for path in dict.fromkeys([call.module for call in recorder.calls] + [op.module for op in recorder.ops]):
        calls = [call for call in recorder.calls if call.module == path]
        ops = [op for op in recorder.ops if op.module == path]
        inserted = [op for op in ops if op.phase == "forward" and op.cast == "autocast"]
        back = [op for op in ops if op.phase == "backward" and op.cast == "gradient"]
        computed = [op for op in ops if op.phase == "backward" and not op.cast and not op.view]
        rows.append(
            ModuleRow(
                path,
                calls[0].kind if calls else type(recorder.model).__name__ if path == ROOT else "",
                len(calls),
                floats(dtype for call in calls for dtype in call.inputs),
                floats(dtype for call in calls for dtype in call.outputs),
                len(inserted),
                sum(op.bytes for op in inserted),
                sum(len(op.reused) for op in ops),
                floats(dtype for op in computed for dtype in op.outputs),
                len(back),
                sum(op.bytes for op in back),
            )
        )
    return tuple(rows)
