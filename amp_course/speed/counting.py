"""Count what a step asks of a machine: kernels, FLOPs and bytes, op by op, on real tensors or on
fake ones.

Fake tensors have shapes and dtypes and no memory, so that a step for a GPU can be counted where
there is none: build model and batch under `fake_tensors()`, and run the step inside `count_ops()`.
Nothing is computed, and autocast decides as always. What is counted are PyTorch's ops, one kernel
each. A real GPU may need two for one op (a split matmul), or fuse several.
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

MATMUL, CAST, OTHER = "matmul", "cast", "other"  # the kinds of op that mixed precision tells apart
_COPIES = {
    torch.ops.aten._to_copy,
    torch.ops.aten.to,
    torch.ops.aten.copy_,
}  # a cast, if the dtype changes
_OVERWRITES = {torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_}
_SAME_FLOPS = {  # the CPU's attention is in no registry; it multiplies what the GPU's does
    getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention_for_cpu{way}"): getattr(
        torch.ops.aten, f"_scaled_dot_product_flash_attention{way}"
    )
    for way in ("", "_backward")
}
# These reserve memory or change how it is read, and start no kernel.
_NO_KERNEL = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
    torch.ops.aten.detach,
    torch.ops.aten._unsafe_view,
    torch.ops.aten.lift_fresh,
}


@dataclass(frozen=True)
class OpCall:
    """One op as it was called.

    op:     its name: "aten.addmm"
    kind:   "matmul" (it multiplies matrices or convolves), "cast" (it changes the dtype, nothing
            else), or "other"
    dtype:  what it computes in, which is its first floating-point input's; None for an op without
            one
    flops:  floating-point operations of a matmul, a multiply-add being two; 0 for other ops, which
            are bound by their bytes
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
    """How to call an op again on new tensors of the same shapes: for timing it alone."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def layouts(self) -> list[Layout]:
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Layout)]

    def on_new_tensors(self) -> Callable[[], Any]:
        """Return the call, on random numbers, and zeros where integers are wanted."""
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

        No op makes NaN or subnormal numbers of these, which would be slow in themselves.
        """
        memory = 1 + sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )
        memory = 0 if 0 in self.shape else memory
        if self.dtype.is_floating_point:
            # A generator of its own: the reader's random stream stays where it is.
            generator = torch.Generator(self.device).manual_seed(0)
            flat = (torch.rand(memory, device=self.device, generator=generator) + 0.5).to(
                self.dtype
            )
        else:
            flat = torch.zeros(memory, dtype=self.dtype, device=self.device)
        return flat.as_strided(self.shape, self.strides)


class OpCounter(TorchDispatchMode):
    """Note every op that starts a kernel, in `calls`, and how to repeat it, in `replays`."""

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
        ins = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        outs = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if not ins and not outs:
            return out
        self.calls.append(_describe(func, args, kwargs, out, ins, outs))
        self.replays.append(Replay(func, *tree_map_only(Tensor, _layout, (args, kwargs))))
        return out


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, str(tensor.device))


def _describe(
    func: Any, args: Any, kwargs: Any, out: Any, ins: list[Tensor], outs: list[Tensor]
) -> OpCall:
    packet, flops, kind = func.overloadpacket, 0, OTHER
    formula = flop_registry.get(_SAME_FLOPS.get(packet, packet))
    if formula:
        flops, kind = int(formula(*args, **kwargs, out_val=out)), MATMUL
    elif (
        packet in _COPIES and outs and ins and ins[-1].dtype != outs[0].dtype
    ):  # copy_(target, source) returns target
        kind = CAST
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
    given = {**dict(zip(schema, args, strict=False)), **kwargs}
    changed = [name for name in given if schema[name] is not None and schema[name].is_write]
    written = [
        one for name in changed for one in tree_leaves(given[name]) if isinstance(one, Tensor)
    ]
    overwritten = written if func.overloadpacket in _OVERWRITES or "out" in changed else []
    reads = {id(one): one for one in ins if not any(one is other for other in overwritten)}
    new = [one for one in outs if not any(one is other for other in ins)]
    return sum(map(_bytes, [*reads.values(), *written, *new]))


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of the elements that are there: an expanded dimension is read once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sizes) * tensor.element_size()


def count_ops() -> OpCounter:
    """Count the ops of a `with` block; `counter.calls` holds them in order.

    Example: with count_ops() as counter: a @ b → counter.calls[0].flops is 2 · m · n · k
    """
    return OpCounter()


def fake_tensors() -> FakeTensorMode:
    """Make every tensor of a `with` block a fake one, on the CPU, which has a shape and a dtype and
    needs no memory.

    Example: with fake_tensors(): model, x = SimpleNet(65536), torch.randn(512, 65536)   # 52 GB, if
             it were real
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
    """Count the ops of forward and backward under autocast in `dtype` (None: without), on fake
    copies: nothing is computed.

    The model keeps its weights, gradients and buffers. It may not read values (`.item()`, `if
    x.any()`): fakes have none.
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
    """Run forward and backward under autocast in `dtype`; None runs without it."""
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        loss = loss_fn(model(*inputs), targets)
    loss.backward()


@dataclass(frozen=True)
class Totals:
    """How many kernels, FLOPs and bytes there are in a list of calls."""

    kernels: int
    flops: int
    bytes: int


def totals(calls: Iterable[OpCall], kind: str | None = None) -> Totals:
    """Add up calls, all of them or those of one kind."""
    chosen = [call for call in calls if kind is None or call.kind == kind]
    return Totals(
        len(chosen), sum(call.flops for call in chosen), sum(call.bytes for call in chosen)
    )
