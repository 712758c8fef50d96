"""Count the kernels, FLOPs and bytes of a step, op by op, on real tensors or on fake ones.

Fake tensors have shapes and dtypes but no memory, so that a step for a GPU can be counted where
there is none: build model and batch under `fake_tensors()`, and run the step inside `count_ops()`.
Nothing is computed, and autocast decides as always. Each of PyTorch's ops counts as one kernel; a
real GPU may need two for one op (a split matmul), or fuse several.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

MATMUL, CAST, OTHER = "matmul", "cast", "other"  # the kinds of op that matter to mixed precision


def aten_ops(names: str) -> tuple[Any, ...]:
    """Return ops of torch.ops.aten by their names, separated by spaces."""
    return tuple(getattr(torch.ops.aten, name) for name in names.split())


_COPIES = aten_ops("_to_copy to copy_")  # a cast, if the dtype changes
_OVERWRITES = aten_ops("copy_ fill_ zero_")
# These reserve memory or change how it is read, and start no kernel.
_NO_KERNEL = aten_ops(
    "empty empty_like empty_strided new_empty new_empty_strided detach _unsafe_view lift_fresh"
)
# The CPU's attention has no formula in torch's registry; it multiplies what the GPU's does.
_ATTENTION = "_scaled_dot_product_flash_attention"
_SAME_FLOPS = dict(
    zip(
        aten_ops(f"{_ATTENTION}_for_cpu {_ATTENTION}_for_cpu_backward"),
        aten_ops(f"{_ATTENTION} {_ATTENTION}_backward"),
        strict=True,
    )
)


@dataclass(frozen=True)
class OpCall:
    """One op as it was called.

    op:     its name: "aten.addmm"
    kind:   "matmul" (it multiplies matrices or convolves), "cast" (it changes the dtype and nothing
            else), or "other"
    dtype:  what it computes in, the dtype of its first floating-point input; None if it has none
    flops:  floating-point operations of a matmul, a multiply-add being two; 0 for other ops
    bytes:  of all tensors that it reads and writes
    shapes: of its tensor arguments
    """

    op: str
    kind: str
    dtype: torch.dtype | None
    flops: int
    bytes: int
    shapes: tuple[tuple[int, ...], ...]

    @property
    def intensity(self) -> float:
        """FLOPs per byte, the horizontal axis of a roofline."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Replay:
    """How to call an op again on new tensors of the same shapes, to time it alone."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def layouts(self) -> list[Layout]:
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Layout)]

    def on_new_tensors(self) -> Callable[[], Any]:
        """Return the call, with its tensors made by `Layout.fill`."""
        args, kwargs = tree_map_only(Layout, Layout.fill, (self.args, self.kwargs))
        return lambda: self.func(*args, **kwargs)


@dataclass(frozen=True)
class Layout:
    """The shape, strides and dtype of a tensor, and its device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def fill(self) -> Tensor:
        """Return a tensor of this layout: uniform in [0.5, 1.5), or zeros where the dtype is no
        floating-point one.

        No op turns these into NaN or subnormal numbers, which would slow it down.
        """
        pairs = zip(self.shape, self.strides, strict=True)
        memory = 0 if 0 in self.shape else 1 + sum((size - 1) * stride for size, stride in pairs)
        if self.dtype.is_floating_point:
            # a generator of its own leaves the user's random stream alone
            generator = torch.Generator(self.device).manual_seed(0)
            flat = 0.5 + torch.rand(memory, device=self.device, generator=generator)
        else:
            flat = torch.zeros(memory, device=self.device)
        return flat.to(self.dtype).as_strided(self.shape, self.strides)


class OpCounter(TorchDispatchMode):
    """Record every op that starts a kernel in `calls`, and how to repeat it in `replays`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []
        self.replays: list[Replay] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if func.is_view or packet in _NO_KERNEL or func.namespace not in ("aten", "amp_course"):
            return out
        ins, outs = _tensors((args, kwargs)), _tensors(out)
        if not ins and not outs:
            return out
        self.calls.append(_describe(func, args, kwargs, out, ins, outs))
        self.replays.append(Replay(func, *tree_map_only(Tensor, _layout, (args, kwargs))))
        return out


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, str(tensor.device))


def _describe(
    func: Any, args: Any, kwargs: Any, out: Any, ins: list[Tensor], outs: list[Tensor]
) -> OpCall:
    packet, flops, kind = func.overloadpacket, 0, OTHER
    formula = flop_registry.get(_SAME_FLOPS.get(packet, packet))
    if formula:
        flops, kind = int(formula(*args, **kwargs, out_val=out)), MATMUL
    elif packet in _COPIES and outs and ins and ins[-1].dtype != outs[0].dtype:
        kind = CAST  # ins[-1] is the source of copy_(target, source), too
    floats = [one.dtype for one in ins if one.dtype.is_floating_point]
    return OpCall(
        f"{func.namespace}.{packet.__name__}",
        kind,
        floats[0] if floats else None,
        flops,
        _moved(func, args, kwargs, ins, outs),
        tuple(tuple(one.shape) for one in ins),
    )


def _moved(func: Any, args: Any, kwargs: Any, ins: list[Tensor], outs: list[Tensor]) -> int:
    """Return the bytes that an op reads and writes; what it changes in place counts twice."""
    schema = {argument.name: argument.alias_info for argument in func._schema.arguments}
    arguments = {**dict(zip(schema, args, strict=False)), **kwargs}
    changed = {
        name: value
        for name, value in arguments.items()
        if schema[name] is not None and schema[name].is_write
    }
    written = _tensors(changed)
    overwritten = written if func.overloadpacket in _OVERWRITES or "out" in changed else []
    reads = {id(one): one for one in ins if not any(one is other for other in overwritten)}
    new = [one for one in outs if not any(one is other for other in ins)]
    return sum(map(_bytes, [*reads.values(), *written, *new]))


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's memory: an expanded dimension is stored once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sizes) * tensor.element_size()


def count_ops() -> OpCounter:
    """Count the ops of a `with` block; `counter.calls` holds them in order.

    Example: with count_ops() as counter: a @ b → counter.calls[0].flops is 2 · m · n · k
    """
    return OpCounter()


def fake_tensors() -> FakeTensorMode:
    """Make every tensor of a `with` block a fake one on the CPU: shape and dtype, but no memory.

    Example: with fake_tensors(): model = SimpleNet(65536)   # 52 GB, if it were real
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def count_on_fakes(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    device: torch.device,
    dtype: torch.dtype | None,
) -> OpCounter:
    """Count the ops of forward and backward under autocast in `dtype` (None: without it), on fake
    copies: nothing is computed, and the model stays as it is.

    It may not read values (`.item()`, `if x.any()`): fake tensors have none.
    """
    mode = fake_tensors()
    with mode, FakeCopyMode(mode):
        fake = copy.deepcopy(model)
    with mode, torch.enable_grad():
        fake_inputs, fake_targets = mode.from_tensor(inputs), mode.from_tensor(targets)
        with count_ops() as counter:
            forward_backward(fake, loss_fn, (fake_inputs,), fake_targets, device, dtype)
    return counter


def forward_backward(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    targets: Tensor,
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Run forward and backward under autocast in `dtype` (None: without it)."""
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        loss = loss_fn(model(*inputs), targets)
    loss.backward()


@dataclass(frozen=True)
class Totals:
    """The kernels, FLOPs and bytes of some calls."""

    kernels: int
    flops: int
    bytes: int


def totals(calls: Iterable[OpCall], kind: str | None = None) -> Totals:
    """Add up calls, all of them or those of one kind."""
    chosen = [call for call in calls if kind is None or call.kind == kind]
    return Totals(
        len(chosen), sum(call.flops for call in chosen), sum(call.bytes for call in chosen)
    )
