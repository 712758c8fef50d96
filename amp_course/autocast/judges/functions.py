"""Judge an autograd Function under autocast: the dtypes of its matmuls forward and backward, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from amp_course.autocast.judges.kernels import LOW, KernelLog
from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name, fresh, tensor_like

_CLOSE = 1e-4  # relative to the largest entry: float32 and its cancellations keep this, 16 bits do not


@dataclass(frozen=True)
class Case:
    """One use: dtype of the points, dtype of the region or None, and whether backward runs in the region too."""

    points: torch.dtype
    region: torch.dtype | None
    backward_inside: bool = False

    @property
    def where(self) -> str:
        """Return the case in words: "with float32 inputs in a region of bfloat16"."""
        place = "outside of autocast" if self.region is None else f"in a region of {dtype_name(self.region)}"
        return f"with {dtype_name(self.points)} inputs {place}"

    def enter(self, on: bool) -> torch.autocast:
        """Return the region of this case, or one that is switched off."""
        return torch.autocast("cpu", dtype=self.region or torch.bfloat16, enabled=on and self.region is not None)


_CASES = (
    Case(torch.float32, None),
    Case(torch.float32, torch.bfloat16),
    Case(torch.bfloat16, torch.bfloat16),
    Case(torch.float16, torch.float16),
    # A library's function has to stand a caller who leaves backward inside.
    Case(torch.float32, torch.bfloat16, backward_inside=True),
    Case(torch.float16, torch.float16, backward_inside=True),
)


def judge(answer: Any) -> None:
    """A `torch.autograd.Function` of squared distances, in float32 forward and backward, whatever the region."""
    if isinstance(answer, type) and issubclass(answer, torch.autograd.Function):
        distances = answer.apply
    elif callable(answer) and not isinstance(answer, type):
        distances = answer
    else:
        raise Wrong(
            "the answer is a class derived from torch.autograd.Function, with static methods forward and backward"
        )
    generator = fresh()
    for case in _CASES:
        # Far from 0 and near each other: |x|² − 2 x·c + |c|² cancels, and a matmul in 16 bits shows.
        x, c = (10 + torch.randn(n, 16, generator=generator) for n in (6, 5))
        _check_case(distances, case, x.to(case.points), c.to(case.points), generator)


def _check_case(distances: Any, case: Case, x: Tensor, c: Tensor, generator: torch.Generator) -> None:
    x.requires_grad_(), c.requires_grad_()
    with case.enter(True):
        with KernelLog() as forward:
            got = _call(distances, case, x, c)
        _check_forward(distances, case, got, forward, x, c)
        pull = torch.randn(got.shape, generator=generator)
        if case.backward_inside:
            backward = _backward(case, got, pull)
    if not case.backward_inside:
        backward = _backward(case, got, pull)
    _check_backward(case, backward, x, c, pull)


def _call(distances: Any, case: Case, x: Tensor, c: Tensor) -> Tensor:
    got = distances(x, c)
    tensor_like(got, torch.Size((len(x), len(c))), "the table of squared distances")
    if not got.requires_grad:
        raise Wrong(
            f"{case.where} the result does not require grad: is the answer the Function itself, used by `.apply`?"
        )
    return got


def _check_forward(distances: Any, case: Case, got: Tensor, seen: KernelLog, x: Tensor, c: Tensor) -> None:
    right = _exact(x.double(), c.double())
    low = seen.low_matmul()
    if low is not None and _switches_off_cuda(distances, x, c):
        raise Wrong(
            f"{case.where} the matmul of forward ran in {dtype_name(low)}, because `custom_fwd` is set to another device: it "
            'casts for device_type="cuda", as the old torch.cuda.amp decorators always do, and these tensors are on the CPU. '
            "Write `torch.amp.custom_fwd(device_type=…)` with the device you run on"
        )
    if low is not None and got.dtype != torch.float32:
        raise Wrong(
            f"{case.where} forward got {dtype_name(low)} and computed in it: `cast_inputs` names the dtype that forward is to "
            "have, which is torch.float32 here, not the region's"
        )
    cure = "`cast_inputs=torch.float32` casts the inputs and switches autocast off for forward"
    if low is not None and hasattr(got.grad_fn, "_fwd_used_autocast"):  # custom_fwd has been there
        raise Wrong(
            f"{case.where} the matmul of forward ran in {dtype_name(low)}: `custom_fwd` without `cast_inputs` leaves the region "
            f"on, and only tells `custom_bwd` of it. {cure}"
        )
    if low is not None:
        raise Wrong(
            f"{case.where} the matmul of forward ran in {dtype_name(low)}: nothing keeps autocast out of it, and a `.float()` "
            f"inside is cast back. Decorate it with `torch.amp.custom_fwd`, whose {cure}"
        )
    if got.dtype != torch.float32:
        raise Wrong(f"{case.where} the distances come back as {dtype_name(got.dtype)}: the task asks for float32")
    if not _close(got, right):
        raise Wrong(f"{case.where} the distances are off by {_error(got, right)}: x² − 2 x·c + c², summed in float32")


def _switches_off_cuda(distances: Any, x: Tensor, c: Tensor) -> bool:
    """Tell whether forward switches CUDA's autocast off: what decorators do that were made for "cuda"."""
    was = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with _CudaSwitch() as switch:
            distances(x, c)
    finally:
        torch.set_autocast_enabled("cuda", was)
    return not any(switch.states)


class _CudaSwitch(TorchFunctionMode):
    """Write down at each torch function whether CUDA's autocast is on; without a GPU the switch is there too."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.states.append(torch.is_autocast_enabled("cuda"))
        return func(*args, **(kwargs or {}))


def _backward(case: Case, got: Tensor, pull: Tensor) -> KernelLog:
    with KernelLog() as seen:
        try:
            got.backward(pull)
        except AttributeError as error:
            if "_fwd_used_autocast" not in str(error) and "_dtype" not in str(error):
                raise
            raise Wrong(
                "`custom_bwd` needs what `custom_fwd` records about the region, and there was no `custom_fwd`: use both, "
                "one on forward, one on backward"
            ) from error
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            cause = (
                "forward ran under autocast, which gives both sides the same dtype, and backward runs outside it. "
                "Decorate both, `custom_fwd` with cast_inputs=torch.float32 and `custom_bwd`"
                if case.region
                else "save the float32 tensors that forward computes with, not copies that were cast down"
            )
            raise Wrong(f"{case.where} backward raises “{str(error).splitlines()[0]}”: {cause}") from error
    return seen


def _check_backward(case: Case, seen: KernelLog, x: Tensor, c: Tensor, pull: Tensor) -> None:
    low = seen.low_matmul()
    if low is not None and case.backward_inside:
        raise Wrong(
            f"{case.where}, with `backward()` called in the region as well, the matmuls of backward ran in {dtype_name(low)}: "
            "nothing protects it there. `torch.amp.custom_bwd` runs backward in the autocast state that forward had"
        )
    twins = [tensor.detach().double().requires_grad_() for tensor in (x, c)]
    _exact(*twins).backward(pull.double())
    for tensor, twin, name in zip((x, c), twins, ("x", "c"), strict=True):
        if tensor.grad is None or twin.grad is None:
            raise Wrong(f"{case.where} no gradient reaches {name}: backward returns one for each input of forward")
        # The engine rounds a gradient to its tensor's own dtype, and so does the right one.
        if _close(tensor.grad, twin.grad.to(tensor.dtype)):
            continue
        told = f"{case.where} the gradient of {name} is off by {_error(tensor.grad, twin.grad)}"
        for dtype in LOW:
            x_low, c_low = (tensor.detach().to(dtype).double().requires_grad_() for tensor in (x, c))
            _exact(x_low, c_low).backward(pull.double())
            saved = x_low.grad if name == "x" else c_low.grad
            if low is not None or (saved is not None and _close(tensor.grad, saved)):
                raise Wrong(
                    f"{told}: backward computed with x and c rounded to 16 bits. Save what `cast_inputs` hands to forward, "
                    "`ctx.save_for_backward(x, c)`, not a copy that was cast down"
                )
        raise Wrong(f"{told}: it is 2 (x Σg − g c), and the same with x and c swapped, as in the code you were given")


def _exact(x: Tensor, c: Tensor) -> Tensor:
    return (x[:, None, :] - c[None, :, :]).square().sum(dim=-1)


def _error(got: Tensor, right: Tensor) -> str:
    return f"{(got.double() - right.double()).abs().max().item():.2g}"


def _close(got: Tensor, right: Tensor) -> bool:
    ulp = 0.0 if got.dtype == torch.float32 else torch.finfo(got.dtype).eps
    return bool((got.double() - right.double()).abs().max() <= (_CLOSE + ulp) * right.double().abs().max())
