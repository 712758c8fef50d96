"""What the modules of a training tell: in which mode they run, and which of their weights no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from amp_course.audit.findings import Finding
from amp_course.audit.record import Training, Update
from amp_course.debugging.doctor.faults import finding

_SURE = 3  # updates in a row with weights in no optimizer
_LONG = 5  # updates in a row in evaluation mode
_MOST = 0.5  # of the updates


class ModulesSeen:
    """Say `called` for each call of a module with gradients enabled, and `end_update` after each update."""

    def __init__(self) -> None:
        self._now: dict[nn.Module, bool] = {}  # called in this update → in training mode at least once
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: the training has a new optimizer."""
        self.updates = self.trained = self.evaluated = 0  # `evaluated`: in a row, at the end
        self.mode_counts = False  # some dropout or batch norm was called
        self.left_out = self.lost = (
            0  # updates with weights in no optimizer; with an optimizer of old weights, in a row
        )
        self.example: tuple[int, int, int] = (0, 0, 0)  # weights without optimizer, all that are used, old weights

    def called(self, module: nn.Module) -> None:
        """Note that a module is called."""
        self._now[module] = self._now.get(module, False) or module.training

    def end_update(self, update: Update, training: Training) -> None:
        """Look at what was called in an update."""
        called, self._now = self._now, {}
        self.updates += 1
        self.mode_counts |= any(_is_of_two_modes(one) for one in called)
        trained = any(mode for one, mode in called.items() if one._parameters or _is_of_two_modes(one))  # no loss, say
        self.trained += trained
        self.evaluated = 0 if trained else self.evaluated + 1
        used = {id(p): p for one in called for p in one._parameters.values() if p is not None and p.requires_grad}
        held, given = _held(update, training)
        outside = [p for key, p in used.items() if key not in held and p.grad is not None]
        old = [key for key, p in held.items() if p.requires_grad and key not in used and key not in given]
        copied = any(key in given and key not in used for key in held)  # master copies, say
        self.left_out += bool(outside) and not copied
        self.lost = self.lost + 1 if outside and old else 0
        if outside:
            self.example = len(outside), len(used), len(old)

    def findings(self) -> Iterator[Finding]:
        """Yield the faults."""
        if self.mode_counts and self.trained and self.evaluated >= _LONG:
            yield finding("left-in-evaluation-mode", updates_in_training_mode=self.trained, and_then=self.evaluated)
        if self.lost >= _SURE:
            outside, used, old = self.example
            yield finding(
                "optimizer-of-old-weights", weights_that_no_optimizer_holds=f"{outside} of {used}", old_weights_in_it=old,
                updates=self.lost,
            )  # fmt: skip

    def advice(self, *, wrapped: bool) -> Iterator[Finding]:
        """Yield what may be meant. wrapped: in DDP, where an optimizer may hold a part of the weights."""
        if self.mode_counts and not self.trained and self.updates >= _LONG:
            yield finding("trains-in-evaluation-mode", updates=self.updates)
        if self.left_out > _MOST * self.updates and self.lost < _SURE and not wrapped:
            outside, used, _ = self.example
            yield finding("weights-in-no-optimizer", weights=f"{outside} of {used}")


def _is_of_two_modes(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _held(update: Update, training: Training) -> tuple[dict[int, Tensor], set[int]]:
    """Return the weights that the optimizers hold, by id, and the ids of those that got a gradient in an update."""
    held: dict[int, Tensor] = {}
    given: set[int] = set()
    for number in range(len(training.optimizers)):
        parameters = training.slots[number].parameters
        held |= {id(p): p for p in parameters}
        gradients = [one.arrived[number] for one in update.backwards if number in one.arrived]
        for one in [*gradients, *(step.gradient for step in update.steps(number))]:
            given |= {id(p) for p, there in zip(parameters, one.present, strict=True) if there}
    return held, given
