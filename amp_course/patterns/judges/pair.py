"""A small training with two losses and two optimizers under one scaler, watched. Judges nothing but odd exceptions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.witness import Notes, WatchedLoss, WatchedScaler
from amp_course.patterns.judges.gradients import Witness, flat, true_gradients

INF, NAN = float("inf"), float("nan")


class Pair:
    """A body with two heads. The first optimizer has the body and the first head, the second optimizer the second head.

    plant: for each optimizer, what one gradient of its head is multiplied by on the way; 1.0 is harmless
    """

    def __init__(self, generator: torch.Generator) -> None:
        """Draw weights and a scale; the scaler grows after two clean updates."""
        self.generator, self.notes = generator, Notes()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        self.heads = [nn.Linear(8, 4), nn.Linear(8, 3)]
        for parameter in (p for model in (self.body, *self.heads) for p in model.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
        owned = [[*self.body.parameters(), *self.heads[0].parameters()], [*self.heads[1].parameters()]]
        self.parameters = owned
        self.witnesses = [Witness(parameters, 0.05) for parameters in owned]
        self.optimizers = [witness.optimizer for witness in self.witnesses]
        self.scale = 2.0 ** int(torch.randint(8, 12, (), generator=generator))
        self.scaler = WatchedScaler(self.notes, init_scale=self.scale, growth_interval=2)
        self.loss_fn = WatchedLoss(self.notes)
        self.plant = [1.0, 1.0]
        self.body[0].register_forward_hook(self._saw_body)
        for place, head in enumerate(self.heads):
            head.weight.register_hook(lambda gradient, place=place: self._planted(gradient, place))

    def _saw_body(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        self.notes.events.append("forward")
        self.notes.layer_dtypes.append(output.dtype)

    def _planted(self, gradient: Tensor, place: int) -> Tensor:
        planted = gradient.clone()
        planted[0, 0] *= self.plant[place]
        return planted

    def draw(self) -> tuple[Tensor, list[Tensor]]:
        """Return inputs (rows, 12) and a class of each row for either head."""
        rows = 6 + int(torch.randint(5, (), generator=self.generator))
        inputs = torch.randn(rows, 12, generator=self.generator)
        return inputs, [torch.randint(n, (rows,), generator=self.generator) for n in (4, 3)]

    def true(self, inputs: Tensor, targets: list[Tensor], shares: tuple[float, float] = (1.0, 1.0)) -> list[Tensor]:
        """Return the fp32 gradient of each optimizer's parameters, of the losses in these shares."""

        def loss(body: nn.Module, *heads: nn.Module) -> Tensor:
            features = body(inputs)
            losses = [nn.functional.cross_entropy(h(features), t) for h, t in zip(heads, targets, strict=True)]
            return losses[0] * shares[0] + losses[1] * shares[1]

        body, first, second = true_gradients([self.body, *self.heads], loss)
        return [torch.cat([body, first]), second]

    def weights(self, place: int) -> Tensor:
        """Return the weights of one optimizer, flat, as they are now."""
        return flat(self.parameters[place])

    def steps(self) -> list[int]:
        """Count the steps that each optimizer has taken."""
        return [witness.notes.count()["step"] for witness in self.witnesses]

    def stray(self) -> bool:
        """Tell whether an optimizer stepped otherwise than through the scaler."""
        return any(witness.notes.stray_steps for witness in self.witnesses)


def about_exception(error: Exception, pair: Pair) -> None:
    """Say what is behind the messages that torch has for two losses and two optimizers; return for any other."""
    text, updates = str(error), pair.notes.count()["update"]
    if "backward through the graph a second time" in text:
        raise Wrong(
            "the two losses share the body's graph, and the first `backward()` freed it. Keep it for the second one, "
            "`scaler.scale(loss_a).backward(retain_graph=True)`, or call `backward()` once, on the sum"
        ) from error
    if "already been called" in text and updates == 0 < sum(pair.steps()):
        raise Wrong(
            "`scaler.update()` is missing: the scaler still thinks itself in the first iteration. Call it once, after "
            "both steps"
        ) from error
    if "already been called" in text:
        raise Wrong(
            f"torch raised: {text.split('.')[0]}. Each optimizer is unscaled once and stepped once before the one "
            "`update()`"
        ) from error
