"""Judge an SGD with master weights: by where the weights are after many small updates, and one large one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.bits.formats import find_format
from amp_course.checking import Wrong
from amp_course.checking.values import fresh

_STEPS = 300


def judge_master_sgd(answer: Callable[..., Any]) -> None:
    """`MasterSGD(params, lr)` with `.step()`: 16-bit parameters that end where fp32 arithmetic takes them."""
    scene = SmallUpdates(torch.float16)
    scene.play(answer, iter(scene.parameters))
    scene.compare(answer)
    scene = SmallUpdates(torch.bfloat16)
    scene.play(answer, iter(scene.parameters))
    scene.compare(answer)


@dataclass
class SmallUpdates:
    """A training without a model: parameters, and the gradients that each step hands them.

    Of three parameters the first has weights near 1 and updates too small for them; the second has updates that are 0 if
    computed in fp16; the third never has a gradient.
    """

    dtype: torch.dtype

    def __post_init__(self) -> None:
        generator = fresh()

        def draw(low: float, high: float, *shape: int) -> Tensor:
            return (low + (high - low) * torch.rand(*shape, generator=generator)).to(self.dtype)

        self.lr = float(torch.randint(8, 13, (), generator=generator)) * 1e-5
        first = [draw(1.1, 1.9, 4), draw(0.0011, 0.0018, 3), draw(0.5, 1.5, 2)]
        self.first = [value.clone() for value in first]
        self.parameters = [nn.Parameter(value) for value in first]
        self.gradients: list[list[Tensor | None]] = [
            [draw(0.5, 1.5, 4), draw(1e-4, 2e-4, 3), None] for _ in range(_STEPS)
        ]
        large = (0.25 / self.lr, 0.0005 / self.lr)  # a last step that even 16 bits can see
        self.gradients.append(
            [torch.full((4,), large[0]).to(self.dtype), torch.full((3,), large[1]).to(self.dtype), None]
        )
        self.seen: list[list[Tensor]] = []

    def play(self, answer: Callable[..., Any], params: Iterable[nn.Parameter]) -> None:
        """Step through all gradients; keep the weights before the large step and at the end."""
        optimizer = answer(params, self.lr)
        if optimizer is None or not callable(getattr(optimizer, "step", None)):
            raise Wrong("the answer makes an optimizer, `MasterSGD(params, lr)`, with a method `step()`")
        for number, gradients in enumerate(self.gradients):
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            if number == _STEPS:
                self._look()
            self._step(optimizer)
            for parameter in self.parameters:
                if parameter.dtype != self.dtype:
                    raise Wrong(
                        f"after a step a parameter is {_name(parameter.dtype)}: the model computes in {_name(self.dtype)}, and "
                        "its parameters stay so. Copy the master into it, `parameter.copy_(master)`, which rounds"
                    )
        self._look()

    def _look(self) -> None:
        self.seen.append([parameter.detach().clone() for parameter in self.parameters])

    def _step(self, optimizer: Any) -> None:
        try:
            optimizer.step()
        except (AttributeError, TypeError) as error:
            if "NoneType" in str(error):
                raise Wrong(
                    "one of the parameters has no gradient (`parameter.grad` is None), as those of a layer that was not used: "
                    "leave it out of the step"
                ) from error
            raise
        except RuntimeError as error:
            if "leaf Variable" in str(error):
                raise Wrong(
                    "a parameter was changed in place while autograd was watching: write `@torch.no_grad()` above `step`"
                ) from error
            raise

    def compare(self, answer: Callable[..., Any]) -> None:
        """Raise `Wrong` unless the weights are where float32 masters take them."""
        if not torch.equal(self.seen[-1][2], self.first[2]):
            raise Wrong("a parameter that never had a gradient has moved")
        if all(torch.equal(now, first) for now, first in zip(self.seen[-1], self.first, strict=True)):
            again = SmallUpdates(self.dtype)
            again.play(answer, again.parameters)
            if not torch.equal(again.seen[-1][0], again.first[0]):
                raise Wrong(
                    "nothing moved: `params` may be an iterator, as `model.parameters()` is, and it is used up after one pass. "
                    "Keep `list(params)`"
                )
            raise Wrong(
                "the parameters never change, not even in a large step: after the master is updated, copy it into the "
                "parameter, `parameter.copy_(master)`"
            )
        for moment, steps in ((0, _STEPS), (1, _STEPS + 1)):
            for place, what in ((0, "near 1"), (1, "near 0.001")):
                self._compare(self.seen[moment][place], place, steps, what)

    def _compare(self, got: Tensor, place: int, steps: int, what: str) -> None:
        start = self.first[place].double()
        gradients = torch.stack([g for row in self.gradients[:steps] if (g := row[place]) is not None]).double()
        exact = start - self.lr * gradients.sum(dim=0)
        spacing = 1.01 * find_format(self.dtype).eps  # relative: the last rounding, and float32's own errors
        if torch.allclose(got.double(), exact, rtol=spacing, atol=1e-7):
            return
        where = f"after {steps} steps a weight {what} is {got[0]:.6g} and should be {exact[0]:.6g}: "
        if torch.allclose(got.double(), start + self.lr * gradients.sum(dim=0), rtol=spacing, atol=1e-7):
            raise Wrong(where + "it went up the gradient. Subtract `lr * gradient`")
        if torch.allclose(got.double(), self._low_product(place, steps).double(), rtol=spacing, atol=1e-7):
            raise Wrong(
                where
                + f"the product `lr * gradient` was computed in {_name(self.dtype)}, where it is rounded, to 0 if it is "
                "small enough. Write `gradient.float()` before multiplying"
            )
        if torch.equal(got, self._without_master(place, steps)):
            raise Wrong(
                where
                + f"that is what comes out if no float32 copy is kept between steps. Made again from the {_name(self.dtype)} "
                "weight in each step, a master forgets what the rounding took. Make it once, in `__init__`"
            )
        if torch.allclose(got.double(), start - gradients.sum(dim=0), rtol=2 * spacing):
            raise Wrong(where + "the learning rate was left out")
        raise Wrong(
            where + "the master is `master - lr * gradient.float()`, step after step, and the parameter its copy"
        )

    def _without_master(self, place: int, steps: int) -> Tensor:
        weight = self.first[place]
        for row in self.gradients[:steps]:
            gradient = row[place]
            assert gradient is not None
            weight = (weight.float() - self.lr * gradient.float()).to(self.dtype)
        return weight

    def _low_product(self, place: int, steps: int) -> Tensor:
        master = self.first[place].float()
        for row in self.gradients[:steps]:
            gradient = row[place]
            assert gradient is not None
            master = master - (self.lr * gradient).float()
        return master


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
