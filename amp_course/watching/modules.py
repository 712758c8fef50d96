"""The modules that a training calls: their modes, and which weights no optimizer holds."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from amp_course.watching.records import Training, Update

_NAMED = 2  # weights
_LOOKS = 8  # through all objects there are, each of which takes a tenth of a second


class ModulesSeen:
    """Say `called` for each call with gradients enabled, and `end_update` after each update."""

    def __init__(self) -> None:
        # Called in this update → in training mode at least once
        self._now: dict[nn.Module, bool] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: the training has a new optimizer."""
        self.updates = self.trained = self.evaluated = 0  # `evaluated`: in a row, at the end
        self.mode_counts = False  # some dropout or batch norm was called
        # Those that run in evaluation mode are not those that ran in training mode before
        self.other_weights = False
        self._trained: set[int] = set()  # ids of the weights that ran in training mode last
        self._orphans: dict[frozenset[int], bool] = {}
        self.left_out = 0  # updates with weights in no optimizer
        self.lost = 0  # updates in a row with an optimizer of old weights
        # Some weights in no optimizer: their layer, and their name there
        self.outside: list[tuple[nn.Module, str]] = []
        self.example = 0, 0, 0  # weights without optimizer, all that are used, old weights

    def called(self, module: nn.Module) -> None:
        self._now[module] = self._now.get(module, False) or module.training

    def end_update(self, update: Update, training: Training) -> None:
        called, self._now = self._now, {}
        self.updates += 1
        self.mode_counts |= any(_is_of_two_modes(one) for one in called)
        kinds = ((one._parameters or _is_of_two_modes(one), mode) for one, mode in called.items())
        trained = any(mode for counts, mode in kinds if counts)  # a loss has neither, say
        self.trained += trained
        self.evaluated = 0 if trained else self.evaluated + 1
        used = _used(called)
        if trained:
            self._trained = set(used)
        self.other_weights = not trained and self._trained != set(used)
        held, given = _held(update, training)
        outside = [p for key, p in used.items() if key not in held]
        unused = {key: p for key, p in held.items() if key not in used}
        old = frozenset(key for key, p in unused.items() if p.requires_grad and key not in given)
        copied = bool(unused.keys() & given)  # master copies, say
        self.left_out += any(p.grad is not None for p in outside) and not copied
        self.lost = self.lost + 1 if outside and old and self._are_orphans(old) else 0
        if outside:
            self.example = len(outside), len(used), len(old)
            named = ((one, name, id(p)) for one in called for name, p in one._parameters.items())
            lost = [(one, name) for one, name, key in named if key in used and key not in held]
            self.outside = lost[:_NAMED]

    def replaced(self, training: Training) -> bool:
        """Return True if, in this update, the optimizers hold none of the weights in use."""
        used = _used(self._now)
        held = set(map(id, training.parameters))
        return any(p.grad is not None for p in used.values()) and not used.keys() & held

    def _are_orphans(self, weights: frozenset[int]) -> bool:
        """Return True if no module holds these weights any more."""
        if weights not in self._orphans and len(self._orphans) < _LOOKS:
            modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
            living = {id(p) for one in modules for p in vars(one).get("_parameters", {}).values()}
            self._orphans[weights] = not weights & living
        return self._orphans.get(weights, False)


def _used(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    weights = (p for one in modules for p in one._parameters.values())
    return {id(p): p for p in weights if p is not None and p.requires_grad}


def _is_of_two_modes(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _held(update: Update, training: Training) -> tuple[dict[int, Tensor], set[int]]:
    """Return the optimizers' weights by id, and the ids of those that got a gradient."""
    held: dict[int, Tensor] = {}
    given: set[int] = set()
    for number in range(len(training.optimizers)):
        parameters = training.slots[number].parameters
        held |= {id(p): p for p in parameters}
        gradients = [one.arrived[number] for one in update.backwards if number in one.arrived]
        for one in [*gradients, *(step.gradient for step in update.steps(number))]:
            given |= {id(p) for p, there in zip(parameters, one.present, strict=True) if there}
    return held, given
