import copy
import functools
import itertools

import torch
from torch import nn

from amp_course.recipes import O1
from amp_course.recipes.judges.dying import first_death

BatchNorm = nn.modules.batchnorm._BatchNorm


# --- 1. o2_by_hand ----------------------------------------------------------------------------------------
class HalfTrainer:
    """Right; the wrong ones change a part of it."""

    def __init__(self, model, make_optimizer):
        self.model = model.half()
        self.masters = [p.detach().float() for p in model.parameters()]
        self.optimizer = make_optimizer(self.masters)

    def pairs(self):
        return zip(self.model.parameters(), self.masters, strict=True)

    def backward(self, inputs, targets, loss_fn, scale):
        loss = loss_fn(self.model(inputs.half()).float(), targets)
        (loss * scale).backward()

    def finite(self):
        return all(bool(torch.isfinite(p.grad).all()) for p in self.model.parameters())

    def unscaled(self, p, scale):
        return p.grad.float() / scale

    def copy_back(self):
        with torch.no_grad():
            for p, master in self.pairs():
                p.copy_(master)

    def clear(self):
        self.model.zero_grad()

    def update(self, scale):
        for p, master in self.pairs():
            master.grad = self.unscaled(p, scale)
        self.optimizer.step()
        self.copy_back()

    def step(self, inputs, targets, loss_fn, scale):
        self.backward(inputs, targets, loss_fn, scale)
        finite = self.finite()
        if finite:
            self.update(scale)
        self.clear()
        return finite


class MastersFirst:
    """Right in another style: masters from the unrounded weights, as nn.Parameter, the norm tells of inf and NaN."""

    def __init__(self, model, make_optimizer):
        self.masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        model.half()
        self.params = list(model.parameters())
        self.optimizer, self.model = make_optimizer(self.masters), model

    def step(self, inputs, targets, loss_fn, scale):
        for p in self.params:
            p.grad = None
        loss_fn(self.model(inputs.half()), targets).float().mul(scale).backward()
        grads = [p.grad.float().mul_(1 / scale) for p in self.params]
        if not torch.stack([g.norm() for g in grads]).norm().isfinite():
            return torch.tensor(False)
        self.optimizer.zero_grad()
        for g, master in zip(grads, self.masters, strict=True):
            master.grad = g
        self.optimizer.step()
        for p, master in zip(self.params, self.masters, strict=True):
            p.data.copy_(master.data)
        return torch.tensor(True)


class StepsHalf(HalfTrainer):
    def __init__(self, model, make_optimizer):
        self.model = model.half()
        self.optimizer = make_optimizer(model.parameters())

    def update(self, scale):
        for p in self.model.parameters():
            p.grad /= scale
        self.optimizer.step()


class HalfMasters(HalfTrainer):
    def __init__(self, model, make_optimizer):
        self.model = model.half()
        self.masters = [p.detach().clone() for p in model.parameters()]
        self.optimizer = make_optimizer(self.masters)


class CastAnew(HalfTrainer):
    def update(self, scale):
        with torch.no_grad():
            for p, master in self.pairs():
                master.copy_(p)
        super().update(scale)


class RoundsMasters(HalfTrainer):
    def copy_back(self):
        super().copy_back()
        with torch.no_grad():
            for p, master in self.pairs():
                master.copy_(p)


class NotUnscaled(HalfTrainer):
    def unscaled(self, p, scale):
        return p.grad.float()


class ScaledTwice(HalfTrainer):
    def unscaled(self, p, scale):
        return p.grad.float() * scale


class UnscaledInHalf(HalfTrainer):
    def unscaled(self, p, scale):
        return (p.grad / scale).float()


class NoCopyBack(HalfTrainer):
    def copy_back(self):
        self.copied = False


class CopyReplaces(HalfTrainer):
    def copy_back(self):
        for p, master in self.pairs():
            p.data = master.data


class NeverSkips(HalfTrainer):
    def finite(self):
        return True


class LooksAtLoss(HalfTrainer):
    def backward(self, inputs, targets, loss_fn, scale):
        self.loss = loss_fn(self.model(inputs.half()).float(), targets)
        (self.loss * scale).backward()

    def finite(self):
        return bool(torch.isfinite(self.loss))


class OnlyNaN(HalfTrainer):
    def finite(self):
        return not any(bool(p.grad.isnan().any()) for p in self.model.parameters())


class NotScaled(HalfTrainer):
    def step(self, inputs, targets, loss_fn, scale):
        return super().step(inputs, targets, loss_fn, 1.0)


class NeverClears(HalfTrainer):
    def clear(self):
        self.optimizer.zero_grad()


class MastersAddUp(HalfTrainer):
    def update(self, scale):
        for p, master in self.pairs():
            new = self.unscaled(p, scale)
            master.grad = new if master.grad is None else master.grad + new
        self.optimizer.step()
        self.copy_back()


class StaysFloat(HalfTrainer):
    def __init__(self, model, make_optimizer):
        self.model = model
        self.masters = [p.detach().clone() for p in model.parameters()]
        self.optimizer = make_optimizer(self.masters)


class InputsNotHalf(HalfTrainer):
    def backward(self, inputs, targets, loss_fn, scale):
        (loss_fn(self.model(inputs), targets) * scale).backward()


class ReturnsNone(HalfTrainer):
    def step(self, *arguments):
        super().step(*arguments)


class AlwaysTrue(HalfTrainer):
    def step(self, *arguments):
        super().step(*arguments)
        return True


class NoOptimizer(HalfTrainer):
    def __init__(self, model, make_optimizer):
        super().__init__(model, lambda parameters: torch.optim.SGD(parameters, lr=0.01))


class NoStep:
    def __init__(self, model, make_optimizer):
        make_optimizer([p.detach().float() for p in model.half().parameters()])


class StepsTwice(HalfTrainer):
    def update(self, scale):
        super().update(scale)
        self.optimizer.step()


# --- 2. keep_bn_fp32 --------------------------------------------------------------------------------------
def feed_half(model, args):
    return tuple(arg.half() if arg.is_floating_point() else arg for arg in args)


def convert(model, keeps):
    for module in model.modules():
        if keeps(module):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.half()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.half())
    model.register_forward_pre_hook(feed_half)
    return model


def b_right(model):
    return convert(model, lambda module: isinstance(module, BatchNorm))


def b_right_restores(model):
    norms = {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm)}
    saved = {name: copy.deepcopy(module.state_dict()) for name, module in norms.items()}
    model.half()
    for name, module in norms.items():
        module.float().load_state_dict(saved[name])
    forward = model.forward
    model.forward = lambda x: forward(x.half() if x.is_floating_point() else x).float()
    return model


def b_all_half(model):
    model.register_forward_pre_hook(feed_half)
    return model.half()


def b_half_after(model):
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.float()
    return b_all_half(model)


def b_back_to_float(model):
    b_all_half(model)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.float()
    return model


def b_only_2d(model):
    return convert(model, lambda module: isinstance(module, nn.BatchNorm2d))


def b_by_name(model):
    return convert(model, lambda module: "BatchNorm" in type(module).__name__)


def b_any_norm(model):
    return convert(model, lambda module: "Norm" in type(module).__name__ or isinstance(module, BatchNorm))


def b_parameters_only(model):
    kept = {
        id(p): p.data.clone() for m in model.modules() if isinstance(m, BatchNorm) for p in m.parameters(recurse=False)
    }
    b_all_half(model)
    for p in model.parameters():
        if id(p) in kept:
            p.data = kept[id(p)]
    return model


def b_inputs_as_they_come(model):
    b_right(model)
    model._forward_pre_hooks.clear()
    return model


def b_casts_ids(model):
    b_right(model)
    model._forward_pre_hooks.clear()
    model.register_forward_pre_hook(lambda model, args: tuple(arg.half() for arg in args))
    return model


def b_nothing(model):
    return model


def b_bf16(model):
    for module in model.modules():
        if not isinstance(module, BatchNorm):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.bfloat16()
    return model


def b_none(model):
    b_right(model)


# --- 3. where_it_dies -------------------------------------------------------------------------------------
def w_right(step):
    for name, output in step.outputs.items():
        if not torch.isfinite(output).all():
            return "activation", name
    if not torch.isfinite(step.loss):
        return "loss", "loss"
    for name, gradient in step.gradients.items():
        there = step.exact_gradients[name] != 0
        if ((gradient == 0) & there).sum() > 0.5 * there.sum():
            return "gradient", name
    for name, gradient in step.gradients.items():
        there = gradient != 0
        new = step.weights[name] - step.lr * gradient
        if ((new == step.weights[name]) & there).sum() > 0.5 * there.sum():
            return "update", name
    return None


def w_right_optimizer(step):
    """Lists, and torch's own SGD for the update."""
    found = [["activation", n] for n, out in step.outputs.items() if out.isinf().any() or out.isnan().any()]
    found += [["loss", "loss"]] if not step.loss.isfinite().item() else []
    for n, g in step.gradients.items():
        lost = [
            a == 0 for a, b in zip(g.flatten().tolist(), step.exact_gradients[n].flatten().tolist(), strict=True) if b
        ]
        found += [["gradient", n]] if lost and sum(lost) / len(lost) > 0.5 else []
    for n, g in step.gradients.items():
        weight = nn.Parameter(step.weights[n].clone())
        weight.grad = g.clone()
        torch.optim.SGD([weight], lr=step.lr).step()
        idle = (weight.detach() == step.weights[n])[g != 0]
        found += [["update", n]] if len(idle) and idle.float().mean() > 0.5 else []
    return found[0] if found else None


def with_steps(forward=w_right, gradient=w_right, update=w_right):
    """The right answer of each stage, some replaced: stages are asked in order, and each sees the whole step."""

    def answer(step):
        for stage, kinds in ((forward, ("activation", "loss")), (gradient, ("gradient",)), (update, ("update",))):
            found = stage(step)
            if found and found[0] in kinds:
                return found
        return None

    return answer


def only_nan(step):
    return next((("activation", name) for name, output in step.outputs.items() if output.isnan().any()), None)


def last_module(step):
    found = [("activation", name) for name, output in step.outputs.items() if not output.isfinite().all()]
    return found[-1] if found else w_right(step)


def no_loss(step):
    found = w_right(step)
    return found if found and found[0] == "activation" else None


def all_zeros(step):
    return next((("gradient", n) for n, g in step.gradients.items() if (g == 0).sum() > 0.5 * g.numel()), None)


def first_layer_first(step):
    for name in step.weights:
        there = step.exact_gradients[name] != 0
        if ((step.gradients[name] == 0) & there).sum() > 0.5 * there.sum():
            return "gradient", name
    return None


def update_by_eps(step):
    eps = torch.finfo(torch.float16).eps
    for name, g in step.gradients.items():
        small = (step.lr * g).abs()[g != 0] < eps
        if len(small) and small.float().mean() > 0.5:
            return "update", name
    return None


def update_alone(step):
    for name, g in step.gradients.items():
        gone = (step.lr * g == 0)[g != 0]
        if len(gone) and gone.float().mean() > 0.5:
            return "update", name
    return None


def update_in_fp32(step):
    for name, g in step.gradients.items():
        idle = (step.weights[name].float() - step.lr * g.float() == step.weights[name].float())[g != 0]
        if len(idle) and idle.float().mean() > 0.5:
            return "update", name
    return None


def update_of_all(step):
    for name, g in step.gradients.items():
        if (step.weights[name] - step.lr * g == step.weights[name]).float().mean() > 0.5:
            return "update", name
    return None


def w_updates_first(step):
    found = w_right(step)
    return update_of_all(step) or found if found is None or found[0] in ("gradient", "update") else found


def w_never(step):
    return None if step.lr else w_right(step)


def w_words(step):
    found = w_right(step)
    return " ".join(found) if found else None


def w_other_kind(step):
    found = w_right(step)
    return ("overflow" if found[0] == "activation" else found[0], found[1]) if found else None


def w_says_none(step):
    return w_right(step) or ("none", "none")


def w_numbers(step):
    found = w_right(step)
    return (found[0], 0) if found else None


# --- 4. choose_recipe -------------------------------------------------------------------------------------
CHOICE = {
    "large_batch": "o1",
    "laptop": "o0",
    "overflow": "amp_bf16",
    "memory": "pure_bf16_sr",
    "standstill": "o2",
    "too_coarse": "o1",
}


WRONG = {
    "o2_by_hand": {
        "steps the half weights": (StepsHalf, "steps the half weights themselves"),
        "masters in fp16": (HalfMasters, "a master is float16"),
        "masters cast anew": (CastAnew, "cast from the half weights again"),
        "masters rounded": (RoundsMasters, "rounded to fp16 after the step"),
        "not unscaled": (NotUnscaled, "were not unscaled"),
        "multiplied again": (ScaledTwice, "multiplied by the scale again"),
        "unscaled in fp16": (UnscaledInHalf, "unscaled in fp16"),
        "no copy back": (NoCopyBack, "the masters moved and the model's weights did not"),
        "copy replaces the weights": (CopyReplaces, "assigning the master replaced it"),
        "overflow not skipped": (NeverSkips, "was not skipped: its masters hold NaN or inf now"),
        "looks at the loss only": (LooksAtLoss, "a loss scale that is too large for fp16 was not skipped"),
        "looks for NaN only": (OnlyNaN, "was not skipped"),
        "loss not scaled": (NotScaled, "the loss was not scaled"),
        "model's gradients never cleared": (NeverClears, "still there when backward began"),
        "masters' gradients add up": (MastersAddUp, "those of the masters add up"),
        "model stays float32": (StaysFloat, "the model's parameters are float32"),
        "inputs not cast": (InputsNotHalf, "dtype"),
        "returns None": (ReturnsNone, "returned None"),
        "always True": (AlwaysTrue, "False means skipped"),
        "an optimizer of its own": (NoOptimizer, "`make_optimizer` was never called"),
        "no method step": (NoStep, "without a method `step"),
        "steps twice": (StepsTwice, "stepped 2 times"),
    },
    "keep_bn_fp32": {
        "all half": (b_all_half, "`model.half()` takes everything along"),
        "half() after": (b_half_after, "`model.half()` takes everything along"),
        "half and back": (b_back_to_float, "went through fp16 and back"),
        "BatchNorm2d only": (b_only_2d, "BatchNorm1d, 2d, 3d, SyncBatchNorm"),
        "by the class's name": (b_by_name, "or a class of the reader's own"),
        "every norm": (b_any_norm, "only batch norms keep float32 here"),
        "statistics in half": (b_parameters_only, "its statistics are not"),
        "inputs as they come": (b_inputs_as_they_come, "could not take a float32 batch"),
        "ids cast": (b_casts_ids, "cast floating tensors only"),
        "nothing done": (b_nothing, "nothing is fp16"),
        "bf16": (b_bf16, "is bfloat16"),
        "returns None": (b_none, "returned None"),
    },
    "where_it_dies": {
        "NaN only": (with_steps(forward=only_nan), "`torch.isfinite` finds both"),
        "the last module": (with_steps(forward=last_module), "is not the first"),
        "loss not looked at": (with_steps(forward=no_loss), "the loss is"),
        "counts right zeros": (with_steps(gradient=all_zeros), "zeros that are right"),
        "from the first layer on": (with_steps(gradient=first_layer_first), "backward runs from the last layer"),
        "update below eps": (with_steps(update=update_by_eps), "is alive"),
        "update alone": (with_steps(update=update_alone), "you found nothing"),
        "update in float32": (with_steps(update=update_in_fp32), "in float32 every update shows"),
        "updates of all weights": (with_steps(update=update_of_all), "that have no gradient stand still"),
        "updates before gradients": (w_updates_first, "is the consequence"),
        "never dies": (w_never, "you found nothing"),
        "a string": (w_words, "a pair is wanted"),
        "another kind": (w_other_kind, "the kind is 'activation'"),
        "a pair of none": (w_says_none, "None if nothing dies"),
        "a number for a name": (w_numbers, "a pair is wanted"),
    },
    "choose_recipe": {
        "the recipe that died": (CHOICE | {"large_batch": "half_bn32"}, "that is the recipe that gave NaN"),
        "bf16 on a V100": (CHOICE | {"large_batch": "amp_bf16"}, "a V100 has no bf16"),
        "AMP on a laptop": (CHOICE | {"laptop": "o1"}, "fp16 is emulated here"),
        "fp16 again": (CHOICE | {"overflow": "o1"}, "that is what fails"),
        "O2 to save memory": (CHOICE | {"memory": "O2"}, "are 16 again"),
        "pure bf16, to nearest": (CHOICE | {"memory": "pure bf16"}, "Round at random"),
        "O1 in a fixed library": (CHOICE | {"standstill": "o1"}, "has to stay in fp16"),
        "bf16 as it is": (CHOICE | {"too_coarse": "amp_bf16"}, "8 significand bits are the trouble"),
        "not on offer": (CHOICE | {"laptop": "o4"}, "the choice is between amp_bf16, o0, o1, pure_bf16"),
        "a number": (CHOICE | {"laptop": 0}, "the choice is between"),
        "one open": (CHOICE | {"laptop": ...}, "still `...` for laptop"),
        "other keys": ({"laptop": "o0"}, "a dict with the keys"),
        "a list": (list(CHOICE.values()), "a dict with the keys"),
    },
}

RIGHT = {
    "o2_by_hand": {"masters after half()": HalfTrainer, "masters before half()": MastersFirst},
    "keep_bn_fp32": {"leaves batch norms out": b_right, "restores them": b_right_restores},
    "where_it_dies": {
        "loops": w_right,
        "lists and torch's SGD": w_right_optimizer,
        "the judge's own": functools.partial(first_death),
    },
    "choose_recipe": {
        "names": CHOICE,
        "labels and recipes": dict(
            itertools.chain(CHOICE.items(), [("memory", "Pure-bf16-SR"), ("large_batch", O1())])
        ),
    },
}
