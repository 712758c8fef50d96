"""Judge who finds where pure half dies: on real steps of small fp16 models, drawn until each dies in the way that is wanted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.bits.formats import FP16
from amp_course.checking import Wrong
from amp_course.checking.asking import ask
from amp_course.checking.explain import short
from amp_course.checking.values import fresh
from amp_course.recipes.training import HalfStep, record_half_step

Place = tuple[str, str] | None
KINDS = ("activation", "loss", "gradient", "update")
_CASES = (
    "activation below",
    "activation",
    "loss",
    "gradient",
    "gradient",
    "update",
    "update below",
    "healthy",
    "dead units",
)
_MARGIN = 0.1  # no share that decides is this near to a half, so that the last rounding of an update decides nothing


def judge(answer: Callable[..., Any]) -> None:
    """`where_it_dies(step)` → (kind, name), or None for a step in which nothing dies."""
    generator = fresh()
    for wanted in _CASES:
        step, truth = _draw(wanted, generator)
        shown = f"a step with {_in_words(truth)}" if truth else "a step in which nothing dies"
        got = _pair(ask(answer, shown, step), truth)
        if got != truth:
            _explain(got, truth, step, dead=wanted == "dead units")


def first_death(step: HalfStep) -> Place:
    """Say where a step dies first: the oracle. Shares are counted; more than a half counts as dead."""
    return next(itertools.chain(_forward(step), _backward(step), _updates(step)), None)


def _forward(step: HalfStep) -> Any:
    for name, output in step.outputs.items():
        if not torch.isfinite(output).all():
            yield "activation", name
    if not torch.isfinite(step.loss):
        yield "loss", "loss"


def _backward(step: HalfStep) -> Any:
    yield from (("gradient", name) for name in step.gradients if lost_share(step, name) > 0.5)


def _updates(step: HalfStep) -> Any:
    yield from (("update", name) for name in step.gradients if idle_share(step, name) > 0.5)


def lost_share(step: HalfStep, name: str) -> float:
    """Return which part of the elements with a gradient in fp32 has none in fp16; 0 where none has one."""
    there = step.exact_gradients[name] != 0
    return _share((step.gradients[name] == 0) & there, there)


def idle_share(step: HalfStep, name: str) -> float:
    """Return which part of the elements with a gradient in fp16 stays as it was in the step."""
    there = step.gradients[name] != 0
    after = (step.weights[name].double() - step.lr * step.gradients[name].double()).half()
    return _share((after == step.weights[name]) & there, there)


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum()) / float(whole.sum()) if bool(whole.any()) else 0.0


def _draw(wanted: str, generator: torch.Generator) -> tuple[HalfStep, Place]:
    kind = wanted.split()[0] if wanted.split()[0] in KINDS else None
    for _ in range(300):
        step = _draw_step(wanted, generator)
        truth = first_death(step)
        if (truth[0] if truth else None) == kind and (kind in ("activation", "loss") or _clear(step, truth)):
            return step, truth
    raise AssertionError(f"no step that dies by {wanted} was drawn")


def _clear(step: HalfStep, truth: Place) -> bool:
    """Tell whether no share that decides is near to a half."""
    shares = []
    for kind, share in (("gradient", lost_share), ("update", idle_share)):
        for name in step.gradients:
            shares.append(share(step, name))
            if (kind, name) == truth:
                return all(abs(share - 0.5) > _MARGIN for share in shares)
    return all(abs(share - 0.5) > _MARGIN for share in shares)


def _draw_step(wanted: str, generator: torch.Generator) -> HalfStep:
    def below(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    layers = {0: nn.Linear(16, 32), 2: nn.Linear(32, 32), 4: nn.Linear(32, 5)}
    model = nn.Sequential(layers[0], nn.ReLU(), layers[2], nn.ReLU(), layers[4])
    for parameter in model.parameters():
        fan = parameter.shape[-1] if parameter.dim() > 1 else 32
        parameter.data = torch.randn(parameter.shape, generator=generator) * fan**-0.5
    inputs, targets = (torch.randn(8, width, generator=generator) for width in (16, 5))
    factor, lr, place = 1.0, 0.5, 2 * below(3)
    if wanted.startswith("activation"):
        place = 2 * below(2) if wanted == "activation below" else place  # so that what comes later is NaN
        most = 0.9 * FP16.max
        layers[place].weight.data.mul_(3 * FP16.max).clamp_(-most, most)  # each weight fits, their sums do not
    elif wanted == "loss":
        layers[4].bias.data += 400.0  # its square is beyond fp16
    elif wanted == "gradient":
        factor = 2.0**-8 if place else 2.0**-22
        # What flows on below this layer is as much smaller.
        layers[place].weight.data *= FP16.smallest_normal if place else 1.0
    elif wanted.startswith("update"):
        place = 0 if wanted == "update below" else place
        lr = 2.0**-7 if place < 4 else 2.0**-13
        if place < 4:  # the same function with large weights here and small ones above: large weights have large ulps
            for parameter in layers[place].parameters():
                parameter.data *= 32
            layers[place + 2].weight.data /= 32
    elif wanted == "dead units":
        layers[0].bias.data[: 26 + below(4)] = -30.0  # these units give 0 whatever comes in, in fp32 too
    return record_half_step(model, inputs, targets, partial(_loss, factor=factor), lr)


def _loss(outputs: Tensor, targets: Tensor, factor: float) -> Tensor:
    return factor * (outputs - targets).square().mean()


def _pair(got: Any, truth: Place) -> Place:
    if got is None:
        return None
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(part, str) for part in got):
        returned, example = short(repr(got), 80), truth or ("activation", "0")
        raise Wrong(f"your function returned {returned}: a pair is wanted, as {example!r}, or None if nothing dies")
    kind, name = got
    if kind not in KINDS:
        raise Wrong(f"the kind is {' or '.join(map(repr, KINDS))}, and yours is {kind!r}; None if nothing dies")
    return kind, name


def _explain(got: Place, truth: Place, step: HalfStep, dead: bool) -> None:
    if truth is None:
        _about_healthy(got, step, dead)
    if got is None:
        _about_missed(truth, step)
    if truth is None or got is None:
        return
    (kind, name), right = got, truth[0]
    if kind == right:
        _about_order(name, truth, step)
    if right == "gradient" and kind == "update":
        raise Wrong(
            f"the gradients of {truth[1]} are 0 in fp16 and not in fp32: that weights stand still is the consequence. Look at "
            "the gradients before the updates, and in updates only at elements that have a gradient"
        )
    if KINDS.index(kind) > KINDS.index(right):
        raise Wrong(
            f"you found {_in_words(got)}, and {_in_words(truth)} came before it: forward, loss, backward, update"
        )
    raise Wrong(f"you found {_in_words(got)}, which is alive; what dies first is {_in_words(truth)}")


def _about_healthy(got: Place, step: HalfStep, dead: bool) -> None:
    if got is None:
        return
    kind, name = got
    if kind == "gradient":
        _about_right_zeros(name, step)
    if kind == "update" and dead:
        raise Wrong(
            f"weights of {name} that have no gradient stand still, and rightly: look only at elements whose gradient is not 0"
        )
    if kind == "gradient":
        raise Wrong(f"nothing dies in this step: of the gradients of {name}, {lost_share(step, name):.0%} are lost")
    if kind == "update":
        raise Wrong(
            f"nothing dies in this step: {idle_share(step, name):.0%} of the weights of {name} stand still. An update that is "
            "small dies if it is below half an ulp of **its weight**, and small weights have small ulps: compute the new weight "
            "in fp16 and compare"
        )
    raise Wrong(f"nothing dies in this step, and you found {_in_words(got)}")


def _about_missed(truth: Place, step: HalfStep) -> None:
    if truth is None:
        return
    kind, name = truth
    if kind == "activation":
        output = step.outputs[name]
        what = "NaN" if bool(output.isnan().any()) else "inf, which is no NaN"
        raise Wrong(f"you found nothing, and the output of module {name!r} holds {what}: `torch.isfinite` finds both")
    if kind == "loss":
        raise Wrong(
            f"you found nothing, and the loss is {step.loss.item()}: every output is finite, and squaring them is not"
        )
    if kind == "gradient":
        raise Wrong(
            f"you found nothing, and {lost_share(step, name):.0%} of the gradients of {name} that are not 0 in fp32 are 0 in fp16"
        )
    raise Wrong(
        f"you found nothing, and {idle_share(step, name):.0%} of the weights of {name} that have a gradient stay as they are: "
        "the update is below half an ulp of its weight. Compute the new weight in **fp16**; in float32 every update shows"
    )


def _about_order(name: str, truth: tuple[str, str], step: HalfStep) -> None:
    kind, first = truth
    if kind == "activation":
        only_inf = (
            not bool(step.outputs[first].isnan().any())
            and name in step.outputs
            and bool(step.outputs[name].isnan().any())
        )
        if only_inf:
            raise Wrong(
                f"module {name!r} is not the first: its NaN comes from the output of {first!r}, which was inf already. "
                "`torch.isfinite` finds both"
            )
        raise Wrong(f"module {name!r} is not the first: the output of {first!r} is not finite, and it ran earlier")
    if kind == "loss":
        raise Wrong(f"the loss is named 'loss', and you wrote {name!r}")
    if name not in step.gradients:
        raise Wrong(f"there is no parameter {name!r}: names are those in `step.gradients`, such as {first!r}")
    share = lost_share if kind == "gradient" else idle_share
    if share(step, name) > 0.5:
        raise Wrong(
            f"{name} dies too, but {first} was there before it: backward runs from the last layer to the first, and "
            "`step.gradients` is in that order"
        )
    if kind == "gradient":
        _about_right_zeros(name, step)
    what = "lost of its gradients" if kind == "gradient" else "idle of its weights"
    raise Wrong(
        f"{name} is alive, {share(step, name):.0%} {what}; the first that dies is {first}, {share(step, first):.0%}"
    )


def _about_right_zeros(name: str, step: HalfStep) -> None:
    gradient = step.gradients.get(name)
    if gradient is not None and int((gradient == 0).sum()) > 0.5 * gradient.numel() and lost_share(step, name) < 0.5:
        raise Wrong(
            f"you count zeros that are right: most gradients of {name} are 0 in fp32 too, where a ReLU is shut. Look only at "
            "those elements whose `exact_gradients` are not 0"
        )


def _in_words(place: Place) -> str:
    if place is None:
        return "nothing"
    kind, name = place
    return "the loss overflowing" if kind == "loss" else f"the {kind} of {name}"
