"""Judge O2 by hand: by where the fp32 masters and the fp16 weights are after every step, taken or skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name, fresh
from amp_course.checking.witness import Notes, WatchedLoss, WatchedSGD

_STEPS, _BATCH, _LR = 10, 8, 0.01
_SUM = 2e-7  # SGD may add in one rounding of float32 what is here made in two; weights are about 1
_OVERFLOWS = {3: "an inf among its inputs", 6: "a loss scale that is too large for fp16"}


class _Loss(WatchedLoss):
    """Cross-entropy that also notes whether gradients of an earlier step are still there when backward begins."""

    def __init__(self, notes: Notes, model: nn.Module) -> None:
        super().__init__(notes)
        self.model = model
        self.stale = False

    def _backward(self, gradient: Tensor) -> None:
        super()._backward(gradient)
        self.stale |= any(p.grad is not None and bool(p.grad.any()) for p in self.model.parameters())


class _Scene:
    """A model that the answer is to train in O2, with a watched optimizer and notes of each fp16 gradient."""

    def __init__(self) -> None:
        generator = fresh()
        self.notes = Notes()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        for parameter in self.model.parameters():
            parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.3).clamp_(-0.6, 0.6)
        self.first = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.loss_fn = _Loss(self.notes, self.model)
        self.optimizers: list[WatchedSGD] = []
        self.last: list[Tensor] = []  # the gradients of the masters at the last step
        self.gradients: dict[int, Tensor] = {}  # of the backward pass of this step, by the parameter's place
        self.batches = []
        self.scales = []
        for number in range(_STEPS):
            inputs = torch.randn(_BATCH, 16, generator=generator)
            inputs[:, 8:] *= 1e-5  # small inputs make small gradients: some are below fp16's smallest number, unscaled
            if number == 3:
                inputs[0, 0] = 1e6
            targets = torch.randint(0, 5, (_BATCH,), generator=generator)
            power = int(torch.randint(6, 11, (), generator=generator))
            if (
                number == 6
            ):  # every gradient of a logit still fits, and their sum over a batch of one class is inf, not NaN
                power = 18
                targets[:] = int(self.model(inputs).mean(dim=0).argmin())
            self.batches.append((inputs, targets))
            self.scales.append(2.0**power)
        self.model[0].register_forward_hook(lambda _, args, output: self.notes.layer_dtypes.append(output.dtype))

    def make_optimizer(self, parameters: Any) -> WatchedSGD:
        """Return a watched SGD over the parameters, and remember it."""
        self.optimizers.append(WatchedSGD(list(parameters), lr=_LR, notes=self.notes))
        return self.optimizers[-1]

    def watch_gradients(self) -> None:
        """Note each gradient as soon as backward has made it, whatever the answer does with it then."""
        for place, parameter in enumerate(self.model.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda p, place=place: self._note(place, p.grad))

    def _note(self, place: int, gradient: Tensor) -> None:
        self.gradients[place] = gradient.detach().clone()

    @property
    def masters(self) -> list[Tensor]:
        """The tensors that the optimizer updates."""
        return [p for group in self.optimizers[0].param_groups for p in group["params"]]


def judge(answer: Callable[..., Any]) -> None:
    """`HalfTrainer(model, make_optimizer)`, then `.step(inputs, targets, loss_fn, scale)` → whether the step was taken."""
    scene = _Scene()
    trainer = answer(scene.model, scene.make_optimizer)
    _about_start(scene)
    if not callable(getattr(trainer, "step", None)):
        raise Wrong(
            f"your answer made a {type(trainer).__name__} without a method `step(inputs, targets, loss_fn, scale)`"
        )
    scene.watch_gradients()
    for number, ((inputs, targets), scale) in enumerate(zip(scene.batches, scene.scales, strict=True)):
        before = [master.detach().clone() for master in scene.masters]
        scene.gradients, scene.notes.step_gradients = {}, []
        taken = trainer.step(inputs, targets, scene.loss_fn, scale)
        _about_passes(scene, scale)
        gradients = [scene.gradients[place] for place in range(len(before))]
        if number in _OVERFLOWS:
            _about_skip(scene, before, taken, _OVERFLOWS[number])
        else:
            _about_step(scene, before, gradients, scale, number)
            if taken is None:
                raise Wrong("your step returned None: return True if the step was taken and False if it was skipped")
            if not taken:
                raise Wrong("a step with finite gradients was taken and your function returned False: True means taken")
        _about_copies(scene, number)


def _about_start(scene: _Scene) -> None:
    dtypes = {parameter.dtype for parameter in scene.model.parameters()}
    if dtypes != {torch.float16}:
        names = " and ".join(sorted(map(dtype_name, dtypes)))
        raise Wrong(f"the model's parameters are {names}: in O2 the model itself is fp16, by `model.half()`")
    if not scene.optimizers:
        raise Wrong("`make_optimizer` was never called: hand it the list of masters, once, in `__init__`")
    own = {id(parameter) for parameter in scene.model.parameters()}
    if any(id(master) in own for master in scene.masters):
        raise Wrong(
            "the optimizer steps the half weights themselves: an update below half an ulp of its weight is lost in every "
            "step. Make a float32 copy of each parameter and hand the optimizer those"
        )
    masters = scene.masters
    if len(masters) != len(scene.first):
        raise Wrong(
            f"the optimizer got {len(masters)} tensors and the model has {len(scene.first)} parameters: one master each"
        )
    for master, first in zip(masters, scene.first, strict=True):
        if master.dtype != torch.float32:
            raise Wrong(f"a master is {dtype_name(master.dtype)}: it has to be float32, `parameter.detach().float()`")
        # Made before `half()` or after: one rounding, once. Apex makes them after.
        if master.shape != first.shape or not (torch.equal(master, first) or torch.equal(master, first.half().float())):
            raise Wrong(
                "a master does not hold its parameter's weights: copy them, in the order of `model.parameters()`"
            )


def _about_passes(scene: _Scene, scale: float) -> None:
    notes = scene.notes
    if not notes.backward_scales:
        raise Wrong("`backward()` never ran on the loss: the loss is `loss_fn(model(inputs.half()), targets)`")
    if notes.layer_dtypes[-1] != torch.float16:
        raise Wrong(
            f"the first layer gave {dtype_name(notes.layer_dtypes[-1])}: the model is to compute in fp16, "
            "`model(inputs.half())`, without autocast"
        )
    began, wanted = (
        notes.backward_scales[-1],
        torch.tensor(scale).to(notes.loss_dtypes[-1]).item(),
    )  # inf in an fp16 loss
    if began == 1.0:
        raise Wrong(
            "the loss was not scaled: gradients below fp16's smallest number are 0 before they reach a master. Call "
            "`(loss * scale).backward()`"
        )
    if began != wanted:
        raise Wrong(f"backward began with {began:g} and the loss scale is {scale:g}: `(loss * scale).backward()`")
    if scene.loss_fn.stale:
        raise Wrong(
            "the half gradients of the last step were still there when backward began, so they add up: clear the "
            "**model's** gradients each step, a skipped one too. The optimizer's `zero_grad` knows only the masters"
        )
    if len(scene.gradients) < len(scene.first):
        raise Wrong(
            "some of the model's parameters got no gradient: did the model or its parameters change on the way?"
        )


def _about_skip(scene: _Scene, before: list[Tensor], taken: Any, why: str) -> None:
    masters = scene.masters
    if scene.notes.step_gradients:
        broken = not all(bool(torch.isfinite(master).all()) for master in masters)
        harm = "its masters hold NaN or inf now, for good" if broken else "the optimizer stepped"
        raise Wrong(
            f"a step with {why} was not skipped: {harm}. Look at **all** gradients for inf and NaN before the optimizer's step"
        )
    if not all(torch.equal(a, b) for a, b in zip(masters, before, strict=True)):
        raise Wrong("a step that overflowed changed the masters: leave them as they are")
    if taken:
        raise Wrong("a step that overflowed was skipped and your function returned True: False means skipped")
    if taken is None:
        raise Wrong("your step returned None for a skipped step: return False")


def _about_step(scene: _Scene, before: list[Tensor], gradients: list[Tensor], scale: float, number: int) -> None:
    seen = scene.notes.step_gradients
    if not seen:
        raise Wrong("a step with finite gradients was not taken: `self.optimizer.step()` is missing, or was skipped")
    if len(seen) > 1:
        raise Wrong(f"the optimizer stepped {len(seen)} times in one step")
    at_step = [gradient for gradient in seen[0] if gradient is not None]
    if len(at_step) < len(gradients):
        raise Wrong("a master had no gradient at the step: set `master.grad` from its parameter's `grad`")
    wanted = [gradient.float() / scale for gradient in gradients]
    if not _alike(at_step, wanted):
        _about_gradients(scene, at_step, gradients, scale, f"in step {number + 1} the optimizer got wrong gradients: ")
    scene.last = at_step
    got = [master.detach() for master in scene.masters]
    if _alike(got, _moved(before, wanted), _SUM):
        return
    where = f"in step {number + 1} the masters are not where `master - lr * gradient` takes them: "
    if _alike(got, _moved([weight.half().float() for weight in before], wanted), _SUM):
        raise Wrong(
            where
            + "they were cast from the half weights again, and forgot what the rounding took: updates below half an ulp "
            "are lost as without masters. Make them once; copy from master to weight, never back"
        )
    if _alike(got, [weight.half().float() for weight in _moved(before, wanted)], _SUM):
        raise Wrong(
            where + "they were rounded to fp16 after the step. The half weights are rounded, the masters are not"
        )
    raise Wrong(where + "let the optimizer's step alone change them")


def _about_gradients(scene: _Scene, at_step: list[Tensor], gradients: list[Tensor], scale: float, where: str) -> None:
    if _alike(at_step, [gradient.float() for gradient in gradients]):
        raise Wrong(
            where + f"they were not unscaled, so they are {scale:,.0f} times too large. Divide by the scale, in float32"
        )
    if _alike(at_step, [gradient.float() * scale for gradient in gradients]):
        raise Wrong(where + "they were multiplied by the scale again: divide by it")
    if _alike(at_step, [(gradient / scale).float() for gradient in gradients]):
        raise Wrong(
            where + "they were unscaled in fp16, where the small ones are lost after all. Cast first, then divide: "
            "`parameter.grad.float() / scale`"
        )
    sums = [last + gradient.float() / scale for last, gradient in zip(scene.last, gradients, strict=False)]
    if sums and _alike(at_step, sums):
        raise Wrong(
            where + "those of the masters add up over the steps. Set `master.grad` afresh each time, or clear it"
        )
    raise Wrong(where + "each is `parameter.grad.float() / scale`, in the order of `model.parameters()`")


def _about_copies(scene: _Scene, number: int) -> None:
    for parameter, master, first in zip(scene.model.parameters(), scene.masters, scene.first, strict=True):
        if parameter.dtype != torch.float16:
            raise Wrong(
                f"after the step a parameter is {dtype_name(parameter.dtype)}: assigning the master replaced it. Copy into "
                "it, `parameter.copy_(master)`, under `torch.no_grad()`"
            )
        if torch.equal(parameter.detach(), master.detach().half()):
            continue
        if torch.equal(parameter.detach(), first.half()):
            raise Wrong(
                "the masters moved and the model's weights did not: the forward pass uses old weights for ever. After the "
                "optimizer's step, copy each master back, `parameter.copy_(master)`"
            )
        raise Wrong(
            f"after step {number + 1} a half weight is not its master rounded: `parameter.copy_(master)` rounds it"
        )


def _moved(masters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    return [master - _LR * gradient for master, gradient in zip(masters, gradients, strict=True)]


def _alike(got: list[Tensor], wanted: list[Tensor], atol: float = 0.0) -> bool:
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=3e-7, atol=atol, equal_nan=True)
        for a, b in zip(got, wanted, strict=True)
    )
