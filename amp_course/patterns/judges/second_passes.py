"""Judge what runs twice in a step: the backward pass under a gradient penalty, a block's forward pass under checkpointing.

`gradient_penalty` is judged by the gradient at the step, next to fp32's double backward; `recompute` by what is kept, by what
runs again in which dtype, and by the gradients.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.stepping import about_clearing
from amp_course.checking.values import dtype_name, fresh, tensor_like
from amp_course.checking.witness import Scene, drawn_seed
from amp_course.patterns.judges.small_trainings import TINY, TinyLoss, flat, near

_WIDTH = 24  # features of a block's inputs and outputs
Penalty = Callable[[list[Tensor]], Tensor]


def whole(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together."""
    return torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()


def judge_gradient_penalty(answer: Callable[..., Any]) -> None:
    """`penalty_step(model, inputs, targets, loss_fn, optimizer, scaler, weight)`: a step on loss and penalty."""
    generator = fresh()
    weight = 1.5 + 1.5 * float(torch.rand((), generator=generator))
    first = int(torch.randint(9, 12, (), generator=generator))
    for exponent in (first, first + 4):  # one scale, and one 16 times larger: the gradient must be the same
        scene = Scene(drawn_seed(), 3, overflow_at=(1,), scaler={"init_scale": 2.0**exponent, "growth_interval": 100})
        scene.model[1] = nn.Tanh()  # with second derivatives that are not 0
        scene.loss_fn = TinyLoss(scene.notes)
        scene.optimizer.param_groups[0]["lr"] = 1.0 / TINY / 10
        for number in range(len(scene.batches)):
            _play_penalty(answer, scene, number, weight)


def _play_penalty(answer: Callable[..., Any], scene: Scene, number: int, weight: float) -> None:
    inputs, targets = scene.batches[number]
    assert scene.scaler is not None
    scale = scene.scaler.get_scale()
    model = copy.deepcopy(scene.model)
    model[0]._forward_hooks.clear()  # the copy is the oracle's, and takes no notes
    steps, passes = len(scene.notes.step_gradients), len(scene.notes.backward_scales)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*backward\\(\\) with create_graph=True")
        answer(scene.model, inputs, targets, scene.loss_fn, scene.optimizer, scene.scaler, weight)
    _check_passes(scene, scene.notes.backward_scales[passes:], number)
    seen = scene.notes.step_gradients[steps:]
    if number == 1:
        if seen:
            raise Wrong("a batch overflowed, and the step was made anyway: `scaler.step` would have skipped it")
        return
    if not seen:
        raise Wrong(
            "a clean step was skipped: its gradients were inf or NaN. Was something scaled twice, or not cleared "
            "after the step that overflowed?"
        )
    if any(gradient is None for gradient in seen[0]):
        raise Wrong("the optimizer stepped without gradients: clear them before the passes, or after the step")
    _check_penalty(
        flat(g for g in seen[0] if g is not None),
        lambda penalty, share=1.0: _fp32_gradient(model, inputs, targets, penalty, share),
        scene,
        scale,
        weight,
    )
    about_clearing(scene, "scaler.step")


def _fp32_gradient(model: nn.Module, inputs: Tensor, targets: Tensor, penalty: Penalty | None, share: float) -> Tensor:
    """Return the flat fp32 gradient of share · loss + penalty(∇ loss)."""
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(inputs), targets) * TINY
    total = loss * share
    if penalty is not None:
        total = total + penalty(list(torch.autograd.grad(loss, parameters, create_graph=True)))
    return flat(torch.autograd.grad(total, parameters, allow_unused=False))


def _check_passes(scene: Scene, starts: list[float], number: int) -> None:
    notes, seen = scene.notes, scene.notes.count()
    if notes.layer_dtypes[-1:] != [torch.float16]:
        raise Wrong(
            "the forward pass did not run under fp16 autocast: put the model's call and the loss into the region"
        )
    if not all(notes.loss_in_autocast):
        raise Wrong("the loss was computed outside of the autocast region: move `loss_fn` into the `with` block")
    if notes.stray_steps:
        raise Wrong("`optimizer.step()` was called directly: `scaler.step(optimizer)` divides by the scale and skips")
    if len(starts) < 2:
        raise Wrong(
            f"{len(starts)} backward pass over the loss was seen, and a penalty takes two: `torch.autograd.grad(…, "
            "create_graph=True)` for its gradients, then `backward()` on loss and penalty together"
        )
    if starts[0] == 1.0 and starts[-1] != 1.0:
        raise Wrong(
            "the first pass started from the plain loss, and fp16 lost the small gradients on the way. Scale the loss for "
            "`torch.autograd.grad`, too, and divide what it returns by `scaler.get_scale()`"
        )
    if starts[-1] == 1.0:
        raise Wrong(
            "the second pass started from the plain sum of loss and penalty, and `scaler.step` divides its gradients by a "
            "scale that they never had. `scaler.scale(loss + penalty).backward()`"
        )
    if seen["scaler.step"] < number + 1 or seen["update"] < number + 1:
        raise Wrong("`scaler.step(optimizer)` and `scaler.update()` have to run once a step")


def _check_penalty(got: Tensor, fp32: Callable[..., Tensor], scene: Scene, scale: float, weight: float) -> None:
    want = fp32(lambda g: weight * whole(g))
    if near(got, want):
        return
    told = f"the gradient at the step is {float((got - want).norm() / want.norm()):.0%} away from that in fp32"
    plain = fp32(None)
    for other, why in (
        (
            plain,
            "the penalty has no effect. Its gradients need a graph of their own, `create_graph=True`, and nothing "
            "may cut it: no `detach`, `item` or `no_grad`",
        ),
        (
            fp32(lambda g: weight * whole([scale * one for one in g])),
            f"the penalty was computed on scaled gradients and is {scale:,.0f} times too large. Divide what "
            "`autograd.grad` returned by `scaler.get_scale()` before the norm",
        ),
        (
            fp32(lambda g: weight * whole(g) / scale),
            "the penalty was divided by the scale once more than it was scaled, and hardly counts",
        ),
        (
            want + plain,
            "the first pass left its gradients in `parameter.grad`, and the second added to them. "
            "`torch.autograd.grad` returns gradients and adds nothing",
        ),
        (fp32(lambda g: weight * whole(g), 0.0), "the penalty went backward without the loss: add the two"),
        (fp32(whole), "the penalty is to be multiplied by `weight`"),
        (
            fp32(lambda g: weight * torch.stack([one.norm() for one in g]).sum()),
            "the norm is that of all gradients together, and you added up the norms of each parameter's",
        ),
        (want * scale, "the gradients still carry the scale"),
        (want / scale, "the gradients were divided by the scale twice"),
    ):
        if near(got, other):
            raise Wrong(f"{told}: {why}")
    if scene.notes.count()["zero_grad"] == 0:
        raise Wrong(f"{told}: the gradients are never cleared")
    raise Wrong(f"{told}, at a scale of {scale:,.0f}: unscale the first gradients, not those of the penalty")


@dataclass
class Pass:
    """What was seen of a forward and a backward pass."""

    output: Any = None
    order: list[int] = field(default_factory=list)  # the blocks, as they ran
    dtypes: list[torch.dtype] = field(default_factory=list)  # of the first Linear's output, beside `order`
    kept_bytes: int = 0  # activations saved between forward and backward, parameters left out
    gradients: list[Tensor | None] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)  # the generator after forward and after backward


def judge_recompute(answer: Callable[..., Any]) -> None:
    """`run_blocks(blocks, inputs)` → the output of the last block; called inside of a bf16 or fp16 region."""
    generator = fresh()
    for count, dtype in ((4, torch.bfloat16), (3, torch.float16)):
        blocks = nn.ModuleList(_block(generator) for _ in range(count))
        inputs = torch.randn(16, _WIDTH, generator=generator)  # data: it needs no gradient
        seed = drawn_seed()
        with torch.random.fork_rng(devices=[]):
            plain = _run_blocks(_one_by_one, blocks, inputs, dtype, seed)
            got = _run_blocks(answer, blocks, inputs, dtype, seed)
        _compare_passes(got, plain, count, dtype)
    _check_evaluation(answer, blocks, inputs)


def _block(generator: torch.Generator) -> nn.Sequential:
    block = nn.Sequential(nn.Linear(_WIDTH, 96), nn.GELU(), nn.Dropout(0.3), nn.Linear(96, _WIDTH))
    for parameter in block.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return block


def _one_by_one(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    for block in blocks:
        inputs = block(inputs)
    return inputs


def _run_blocks(
    answer: Callable[..., Any], blocks: nn.ModuleList, inputs: Tensor, dtype: torch.dtype, seed: int
) -> Pass:
    blocks, inputs, seen = copy.deepcopy(blocks), inputs.clone(), Pass()
    for number, block in enumerate(blocks):
        first = next(block.children())
        first.register_forward_hook(lambda _, __, output, number=number: _note_block(seen, number, output))
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


def _note_block(seen: Pass, number: int, output: Tensor) -> None:
    seen.order.append(number)
    seen.dtypes.append(output.dtype)


def _compare_passes(got: Pass, plain: Pass, count: int, dtype: torch.dtype) -> None:
    forward = list(range(count))
    if got.order[:count] != forward:
        raise Wrong(f"the blocks ran in the order {got.order[:count]}: each takes the output of the one before it")
    if got.output.dtype != plain.output.dtype or not torch.equal(got.output, plain.output):
        raise Wrong(
            f"the output is not that of the blocks run plainly, {dtype_name(plain.output.dtype)} with the same random numbers"
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
            f"in the backward pass the blocks ran again in the order {again}: once each, from the last to the first, is enough"
        )
    if set(got.dtypes[count:]) != {dtype}:
        raise Wrong(
            f"the blocks ran in {dtype_name(dtype)} at first and in {dtype_name(got.dtypes[-1])} when they ran again. {_REGION}"
        )
    if got.kept_bytes > plain.kept_bytes / 2:
        raise Wrong(
            f"{got.kept_bytes:,} bytes of activations were kept, of {plain.kept_bytes:,} without checkpoints: keep "
            "each block's input and nothing else"
        )
    _check_gradients(got, plain)


_REGION = (
    "Backward runs outside of the region, so what runs a block again has to enter autocast as it was: note the state "
    "in forward, and open `torch.autocast('cpu', dtype=…, enabled=…)` around the second run"
)


def _check_gradients(got: Pass, plain: Pass) -> None:
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


def _check_evaluation(answer: Callable[..., Any], blocks: nn.ModuleList, inputs: Tensor) -> None:
    blocks.eval()
    with torch.no_grad():
        got = tensor_like(answer(blocks, inputs), inputs.shape, "the output under `no_grad`")
        if got.dtype != torch.float32 or not torch.allclose(got, _one_by_one(blocks, inputs)):
            raise Wrong("under `no_grad`, in fp32 and eval mode, the output is not that of the blocks run plainly")
