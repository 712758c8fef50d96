"""Trace any model under autocast, forward and backward: each op's dtype, and inserted casts.

The model is run once, on clones of the inputs, and restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from amp_course.autocast.casts import ops_of
from amp_course.autocast.isolation import cloned, methods_without_device, moved_copy, restored
from amp_course.autocast.recorder import Recorder
from amp_course.autocast.records import LOSS, Record, dtypes, module_rows
from amp_course.autocast.region import check_region, is_fake, region, stage
from amp_course.autocast.trace_html import trace_table, trace_text
from amp_course.kit.compiled import COMPILED, is_compiled, uncompiled, uncompiled_run
from amp_course.kit.tensors import tensors_in


class TraceError(RuntimeError):
    """The model raised while traced: `trace` is what had run, `__cause__` what was raised."""

    def __init__(self, message: str, trace: Trace) -> None:
        super().__init__(message)
        self.trace = trace


class Trace(Record):
    """A `Record` that shows itself: `print` it, or let a notebook show it as a table."""

    def __str__(self) -> str:
        return trace_text(self)

    def _repr_html_(self) -> str:
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
    """Run `model(*inputs, **kwargs)` once under autocast, then its backward pass; record every op.

    device_type: whose policy; None for that of the model's device. If the model is elsewhere, a
                 copy of it is traced on that device or, for "cuda" without a GPU, on fake tensors,
                 which have dtypes but no values and no backward pass.
    dtype: what autocast lowers to; None traces without autocast
    loss: output → scalar, computed inside the region; without one, the backward pass starts from
          ones in each float output

    The model's weights, `.grad`, buffers and training mode, the inputs, the random state and
    autocast's are restored. Weights that forward itself overwrites, and plain Python attributes
    that it sets, are not. Compiled code runs uncompiled, and `notes` says so.

    Raises TypeError for anything but an nn.Module and for a loss that cannot be called; ValueError
    for a device or dtype without autocast, for tensors on several devices or on "meta", and for a
    loss that is not a scalar; RuntimeError inside a profiler; TraceError, with what had run, if the
    model or the loss raises.
    Example: trace(SimpleNet(8), torch.randn(2, 8))["linear2"].inputs → (torch.bfloat16,)
    """
    _check_arguments(model, loss)
    arguments = (inputs, dict(kwargs or {}))
    place = _one_device(model, arguments)
    device_type = device_type or place or "cpu"
    check_region(device_type, torch.bfloat16 if dtype is None else dtype)
    fake, name = is_fake(device_type), type(uncompiled(model)).__name__
    notes: list[str] = []
    with ExitStack() as stack:
        compiled = any(map(is_compiled, model.modules()))
        compiled_ran = stack.enter_context(uncompiled_run())
        model = uncompiled(model)
        stack.enter_context(restored(model))
        stack.enter_context(stage(device_type))
        trained = {path for path, weight in model.named_parameters() if weight.requires_grad}
        if fake:
            stack.enter_context(methods_without_device())
        if fake or place not in (None, device_type):
            model, arguments = moved_copy(model, arguments, device_type, fake)
        else:
            arguments = cloned(arguments)
        names = {id(weight): path for path, weight in model.named_parameters()}
        cached = frozenset(number for number, path in names.items() if path in trained)
        recorder = Recorder(model, device_type, fake, names)
        doing = f"the forward pass of {name}"

        def so_far() -> Trace:
            ops = tuple(ops_of(recorder, dtype, cached))
            rows = module_rows(recorder.calls, ops, name)
            said = (COMPILED, *notes) if compiled or compiled_ran() else tuple(notes)
            return Trace(name, device_type, dtype, fake, ops, rows, said)

        try:
            stack.callback(torch.clear_autocast_cache)
            # casts that a region around this call has cached would be missing here
            torch.clear_autocast_cache()
            with (
                recorder.watch(),
                region(device_type, dtype or torch.bfloat16, enabled=dtype is not None),
            ):
                output = model(*arguments[0], **arguments[1])
                if loss is not None:
                    doing = f"the loss, called with what {name} returned,"
                    with recorder.calling(LOSS, "loss", output) as call:
                        output = loss(output)
                        call.outputs = dtypes(tensors_in(output))
            starts = _starts(output, loss is not None)
            leaves = [
                leaf for leaf in [*model.parameters(), *tensors_in(arguments)] if leaf.requires_grad
            ]
            if why := _no_backward(backward, fake, starts, leaves):
                notes.append(why)
            else:
                recorder.phase, doing = "backward", f"the backward pass of {name}"
                ones = [torch.ones_like(start) for start in starts]
                with recorder.watch(), region(device_type, dtype or torch.bfloat16, enabled=False):
                    # `backward()` would add to the model's own `.grad`
                    torch.autograd.grad(starts, leaves, ones, allow_unused=True)
        except _BadLoss:
            raise
        except Exception as error:
            raise TraceError(_explained(error, recorder, doing), so_far()) from error
        return so_far()


def _check_arguments(model: Any, loss: Any) -> None:
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else _a(type(model).__name__)
        raise TypeError(
            f"trace needs an nn.Module, but got {got}: pass the model itself, then its inputs."
        )
    if loss is not None and not callable(loss):
        raise TypeError(
            f"loss is a function from the model's output to a scalar, and you passed "
            f"{_a(type(loss).__name__)}: write, for example, "
            "loss=lambda output: F.mse_loss(output, target)."
        )
    if torch.autograd._profiler_enabled():
        raise RuntimeError(
            "a profiler is running, and a trace needs PyTorch's profiler for itself: call trace "
            "outside of it."
        )


def _a(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class _BadLoss(ValueError):
    """A loss that no backward pass can start from."""


def _one_device(model: nn.Module, arguments: Any) -> str | None:
    """Return the kind of device of the model and the inputs; None if there is no tensor."""
    groups = {
        "the model": [*model.parameters(), *model.buffers()],
        "the inputs": tensors_in(arguments),
    }
    where = {who: {tensor.device.type for tensor in group} for who, group in groups.items()}
    found = set().union(*where.values())
    if "meta" in found:
        raise ValueError(
            "a tensor is on the 'meta' device, which has no autocast, in "
            f"{' and '.join(who for who, devices in where.items() if 'meta' in devices)}: make it "
            "on 'cpu' (trace runs it once)."
        )
    if len(found) > 1:
        places = "; ".join(
            f"{who} on {', '.join(sorted(devices))}" for who, devices in where.items() if devices
        )
        raise ValueError(
            f"tensors are on several devices ({places}): bring all to one with .to(device)."
        )
    return next(iter(found), None)


def _starts(output: Any, is_loss: bool) -> list[Tensor]:
    if is_loss and not (isinstance(output, Tensor) and output.numel() == 1):
        shape = f"a tensor of {tuple(output.shape)}" if isinstance(output, Tensor) else ""
        raise _BadLoss(
            f"loss gave {shape or type(output).__name__}, and a backward pass starts from a "
            "scalar: take its mean() or sum()."
        )
    return [tensor for tensor in tensors_in(output) if tensor.requires_grad]


def _no_backward(wanted: bool, fake: bool, starts: list[Tensor], leaves: list[Tensor]) -> str:
    if not wanted:
        return "no backward pass: you asked for none."
    if fake:
        return (
            "no backward pass: autograd needs a real GPU. Each backward op runs in the dtype of "
            "its forward op."
        )
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        return "no backward pass: gradients are switched off here (no_grad or inference_mode)."
    if not starts or not leaves:
        return "no backward pass: nothing in the output depends on a tensor that needs a gradient."
    if "CheckpointFunctionBackward" in _node_names(starts):
        return (
            "no backward pass: the model has re-entrant checkpoints, which only run under "
            "backward(), and that would write into the model's .grad. Trace it with checkpoint(…, "
            "use_reentrant=False)."
        )
    return ""


def _node_names(starts: Iterable[Tensor]) -> set[str]:
    """Return the names of all nodes of the autograd graph that made some tensors."""
    queue, known = [tensor.grad_fn for tensor in starts], set()
    while queue:
        node = queue.pop()
        if node is not None and node not in known:
            known.add(node)
            queue += [following for following, _ in node.next_functions]
    return {node.name() for node in known}


def _explained(error: Exception, recorder: Recorder, doing: str) -> str:
    at = "before any op ran"
    if recorder.ran:
        last = recorder.ran[-1].op
        at = f"after {len(recorder.ran)} ops, the last one {last.op} in {last.module}"
    text = f"{doing} raised {type(error).__name__} {at}: {error}"
    if not recorder.fake:
        return text
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return (
            f"{text} This op's result depends on values, and a fake tensor has none: trace it with "
            "device_type='cpu'."
        )
    return (
        f"{text} (These are fake tensors, because there is no GPU here. If it runs with "
        "device_type='cpu', look for tensors that are neither parameters nor buffers.)"
    )
