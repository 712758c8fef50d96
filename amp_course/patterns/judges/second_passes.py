"""Judge activation checkpointing under autocast: by what is kept, what runs again in which dtype, and the gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name, fresh, tensor_like
from amp_course.checking.witness import drawn_seed

_WIDTH = 24


@dataclass
class Pass:
    """What was seen of a forward and a backward pass."""

    output: Any = None
    order: list[int] = field(default_factory=list)  # the blocks, as they ran
    dtypes: list[torch.dtype] = field(default_factory=list)  # of the first Linear's output, beside `order`
    kept_bytes: int = 0  # activations saved between forward and backward, parameters left out
    gradients: list[Tensor | None] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)  # the generator after forward and after backward


def judge(answer: Callable[..., Any]) -> None:
    """`run_blocks(blocks, inputs)` → the output of the last block; called inside of a bf16 or fp16 region."""
    generator = fresh()
    for count, dtype in ((4, torch.bfloat16), (3, torch.float16)):
        blocks = nn.ModuleList(_block(generator) for _ in range(count))
        inputs = torch.randn(16, _WIDTH, generator=generator)  # data: it needs no gradient
        seed = drawn_seed()
        with torch.random.fork_rng(devices=[]):
            plain = _run(_one_by_one, blocks, inputs, dtype, seed)
            got = _run(answer, blocks, inputs, dtype, seed)
        _compare(got, plain, count, dtype)
    _about_evaluation(answer, blocks, inputs)


def _block(generator: torch.Generator) -> nn.Sequential:
    block = nn.Sequential(nn.Linear(_WIDTH, 96), nn.GELU(), nn.Dropout(0.3), nn.Linear(96, _WIDTH))
    for parameter in block.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return block


def _one_by_one(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    for block in blocks:
        inputs = block(inputs)
    return inputs


def _run(answer: Callable[..., Any], blocks: nn.ModuleList, inputs: Tensor, dtype: torch.dtype, seed: int) -> Pass:
    blocks, inputs, seen = copy.deepcopy(blocks), inputs.clone(), Pass()
    for number, block in enumerate(blocks):
        first = next(block.children())
        first.register_forward_hook(lambda _, __, output, number=number: _saw(seen, number, output))
    own = {parameter.data_ptr() for parameter in blocks.parameters()}
    weight = torch.linspace(0.5, 2.0, _WIDTH)
    torch.manual_seed(seed)

    def pack(tensor: Tensor) -> Tensor:
        # What autocast made of a weight is kept as well; it is no activation, and is told by its shape.
        if tensor.data_ptr() not in own and tensor.shape[:1] == inputs.shape[:1]:
            seen.kept_bytes += tensor.nbytes
        return tensor

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(use_reentrant|requires_grad=True)")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with torch.autocast("cpu", dtype=dtype):
                seen.output = answer(blocks, inputs)
            output = tensor_like(seen.output, inputs.shape, "the output of the last block")
            seen.random.append(torch.get_rng_state())
        if not seen.order:
            raise Wrong("no block was run: call each one on the output of the one before it, the first on `inputs`")
        if not seen.output.requires_grad:
            raise Wrong(
                "the output has no graph, and nothing can go backward: a checkpoint runs its block without a graph "
                "the first time, and has to run it again, with one, in the backward pass. `use_reentrant=True` does "
                "that only if an input requires a gradient, and data does not"
            )
        try:
            seen.output.backward(weight.expand_as(output).to(output.dtype))
        except RuntimeError as error:
            if "same dtype" in str(error):
                raise Wrong(f"a block could not run again ({error}). {_REGION}") from error
            raise
    seen.random.append(torch.get_rng_state())
    seen.gradients = [parameter.grad for parameter in blocks.parameters()]
    return seen


def _saw(seen: Pass, number: int, output: Tensor) -> None:
    seen.order.append(number)
    seen.dtypes.append(output.dtype)


def _compare(got: Pass, plain: Pass, count: int, dtype: torch.dtype) -> None:
    forward = list(range(count))
    if got.order[:count] != forward:
        raise Wrong(f"the blocks ran in the order {got.order[:count]}: each takes the output of the one before it")
    if got.output.dtype != plain.output.dtype or not torch.equal(got.output, plain.output):
        raise Wrong(
            f"the output is not that of the blocks run plainly, {dtype_name(plain.output.dtype)} with the same random "
            "numbers"
        )
    if any(gradient is None for gradient in got.gradients):
        bare = sum(gradient is None for gradient in got.gradients)
        raise Wrong(
            f"{bare} parameters have no gradient: with `use_reentrant=True` a block whose input needs none, as data "
            "does, is left out of the backward pass. `use_reentrant=False` looks at the parameters as well"
        )
    again = got.order[count:]
    if not again:
        raise Wrong(
            f"nothing was run again in the backward pass, and {got.kept_bytes:,} bytes of activations were kept until "
            f"then, of {plain.kept_bytes:,} without checkpoints: `torch.utils.checkpoint.checkpoint(block, x, "
            "use_reentrant=False)`"
        )
    if again == forward and count > 1:
        raise Wrong(
            "all blocks stood in one checkpoint: at the start of the backward pass all of them run again at once, and "
            "keep as much as without it. One checkpoint for each block"
        )
    left_out = sorted(set(forward) - set(again))
    if left_out:
        raise Wrong(
            f"block {left_out[0]} was not run again: its activations were kept until the backward pass. A checkpoint "
            "for each block"
        )
    if again != forward[::-1]:
        raise Wrong(
            f"in the backward pass the blocks ran again in the order {again}: once each, from the last to the first, "
            "is enough"
        )
    if set(got.dtypes[count:]) != {dtype}:
        raise Wrong(
            f"the blocks ran in {dtype_name(dtype)} at first and in {dtype_name(got.dtypes[-1])} when they ran again. "
            f"{_REGION}"
        )
    if got.kept_bytes > plain.kept_bytes / 2:
        raise Wrong(
            f"{got.kept_bytes:,} bytes of activations were kept, of {plain.kept_bytes:,} without checkpoints: keep "
            "each block's input and nothing else"
        )
    _about_gradients(got, plain)


_REGION = (
    "Backward runs outside of the region, so what runs a block again has to enter autocast as it was: note the state "
    "in forward, and open `torch.autocast('cpu', dtype=…, enabled=…)` around the second run"
)


def _about_gradients(got: Pass, plain: Pass) -> None:
    for mine, right in zip(got.gradients, plain.gradients, strict=True):
        assert mine is not None and right is not None
        apart = float((mine - right).norm() / right.norm())
        if apart > 1e-3:
            raise Wrong(
                f"the gradients are {apart:.0%} away from those without checkpoints: dropout drew another mask when "
                "the block ran again. The random state has to be put back to where the block began "
                "(`preserve_rng_state=True`, the default)"
            )
    if not torch.equal(got.random[0], plain.random[0]):
        raise Wrong("the forward pass leaves the random generator elsewhere than the plain one, so later draws differ")
    if not torch.equal(got.random[1], plain.random[1]):
        raise Wrong(
            "the backward pass moves the random generator, so that the next step draws other masks than without "
            "checkpoints: run the block again inside `torch.random.fork_rng()`"
        )


def _about_evaluation(answer: Callable[..., Any], blocks: nn.ModuleList, inputs: Tensor) -> None:
    blocks.eval()
    with torch.no_grad():
        got = tensor_like(answer(blocks, inputs), inputs.shape, "the output under `no_grad`")
        if got.dtype != torch.float32 or not torch.allclose(got, _one_by_one(blocks, inputs)):
            raise Wrong("under `no_grad`, in fp32 and eval mode, the output is not that of the blocks run plainly")
