"""Hold the small trainings that the judges hand to an answer, and what their results are compared with. Judges nothing.

`Witness` and `Pair` are watched as they step; `World` and `Accumulating` are stopped, saved and resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking.witness import Notes, WatchedLoss, WatchedScaler, WatchedSGD
from amp_course.kit.nested import copied, first_difference

Batch = tuple[Tensor, Tensor]
INF, NAN = float("inf"), float("nan")
CLOSE = 0.02  # relative distance; fp16 passes of the small models here stay within a tenth of it
TINY = 2.0**-18  # what `TinyLoss` multiplies the loss by: without a scale, fp16 loses most of its gradients
EVERY = 4  # micro-batches of an update of `Accumulating`
_INTERVAL = 4  # `World`'s scaler grows after so many clean steps: a streak that is lost shows itself soon


class Witness:
    """Watches one optimizer: the gradients and the weights of its parameters at each step it takes."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        """Make a watched SGD over the parameters; `optimizer` is what the answer is handed."""
        self.notes = Notes()
        self.optimizer = WatchedSGD(parameters, lr, self.notes)
        self.optimizer.has_scaler = True

    def gradients(self, step: int) -> Tensor | None:
        """Return the flat gradient at a step, or None if a parameter had none."""
        seen = self.notes.step_gradients[step]
        return None if any(g is None for g in seen) else flat(g for g in seen if g is not None)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Lay tensors out in one long fp32 vector, detached."""
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def near(got: Tensor, want: Tensor, tolerance: float = CLOSE) -> bool:
    """Tell whether two vectors differ by less than a share of the second's norm; NaN and inf are near nothing."""
    return float((got - want).norm()) <= tolerance * float(want.norm())


def clipped(gradient: Tensor, max_norm: float) -> Tensor:
    """Shorten a vector to `max_norm` if it is longer: ([3, 4], 1.0) → [0.6, 0.8]."""
    return gradient * min(1.0, max_norm / float(gradient.norm()))


def true_gradients(models: Sequence[nn.Module], loss: Callable[..., Tensor]) -> list[Tensor]:
    """Return the flat fp32 gradient of `loss(*models)` for each model, computed on copies."""
    copies: list[Any] = [copy.deepcopy(model).float() for model in models]
    for one in copies:
        one.requires_grad_(True).zero_grad()
    with torch.enable_grad():
        loss(*copies).backward()
    return [flat(torch.zeros_like(p) if p.grad is None else p.grad for p in one.parameters()) for one in copies]


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


class TinyLoss(WatchedLoss):
    """Cross-entropy times a small number, with the notes of a watched loss."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets) * TINY
        self.notes.events.append("loss")
        self.notes.loss_in_autocast.append(torch.is_autocast_enabled(outputs.device.type))
        if loss.requires_grad:
            loss.register_hook(self._backward)
        return loss


class World:
    """Model, optimizer, scheduler and scaler as they are after a start: weights drawn anew, all else at its beginning.

    amp: fp16 autocast and a scaler; without it, fp32 and `scaler` None
    """

    def __init__(self, amp: bool = True, init_scale: float = 2.0**7) -> None:
        """Build it; weights come from torch's global generator."""
        self.model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.7)
        self.amp = amp
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=_INTERVAL) if amp else None

    def train(self, batches: list[Batch]) -> None:
        """Make one step for each batch."""
        for inputs, targets in batches:
            with torch.autocast("cpu", dtype=torch.float16, enabled=self.amp):
                loss = nn.functional.cross_entropy(self.model(inputs), targets)
            if self.scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def parts(self) -> dict[str, Any]:
        """Return copies of the states: model, optimizer, scheduler, scaler (None without one), rng."""
        return {
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self.optimizer.state_dict()),
            "scheduler": copied(self.scheduler.state_dict()),
            "scaler": None if self.scaler is None else dict(self.scaler.state_dict()),
            "rng": torch.get_rng_state(),
        }


class Accumulating:
    """A training that accumulates, with weight decay and a layer that gets no gradients in the first updates."""

    def __init__(self, seed: int, init_scale: float) -> None:
        """Draw the weights from the seed."""
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 4), nn.Linear(2, 2))
        for parameter in self.model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=2)
        self.scaler.scale(torch.ones(()))  # so that the scale is there before it is first used

    def run(self, batches: list[Batch], first: int, last: int) -> None:
        """Run the micro-batches first … last - 1; after every fourth the weights are updated."""
        for number in range(first, last):
            inputs, targets = batches[number]
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(self.model[:3](inputs), targets) / EVERY
            self.scaler.scale(loss).backward()
            if (number + 1) % EVERY == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    def gradients(self) -> list[Tensor | None]:
        """Return copies of the gradients as they stand, None where there is none."""
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]

    def state(self) -> list[Any]:
        """Return what has to be equal: weights, gradients, momentum, scale and streak."""
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        momentum = [state.get("momentum_buffer") for state in self.optimizer.state.values()]
        return [weights, self.gradients(), momentum, dict(self.scaler.state_dict())]


def drawn_batches(generator: torch.Generator, count: int) -> list[Batch]:
    """Draw batches of 6 rows."""
    return [
        (torch.randn(6, 10, generator=generator), torch.randint(4, (6,), generator=generator)) for _ in range(count)
    ]


def equal(some: Any, other: Any) -> bool:
    """Tell whether two states are equal to the last bit, NaN being like NaN."""
    return first_difference(some, other) is None


def differences(got: dict[str, Any], want: dict[str, Any]) -> Iterator[str]:
    """Name the parts of a training that are not equal: "model", "optimizer", …"""
    return (part for part, value in want.items() if not equal(got[part], value))
