"""The modules that a training calls: their modes, and which weights no optimizer holds."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from amp_course.watching.records import Training, Update

_NAMED = 2  # weights
_MOST_SEARCHES = 8  # through all living objects; each takes a tenth of a second


class CalledModules:
    """Call `called` for each forward pass with gradients enabled, `end_update` after each update.

    updates:   so far
    trained:   those of them in training mode; `evaluated`: the last ones in a row that were not
    mode_counts:   dropout or batch norm was called
    other_weights: what runs in evaluation mode is not what ran in training mode before
    left_out:  updates with weights in no optimizer
    lost:      the last ones in a row in which, moreover, an optimizer holds old weights
    outside:   some of the weights in no optimizer: their layer, and their name there
    example:   how many weights are in no optimizer, are used at all, are old
    """

    def __init__(self) -> None:
        # Called in this update → in training mode at least once
        self._called: dict[nn.Module, bool] = {}
        self.reset()

    def reset(self) -> None:
        """Begin again: the training has a new optimizer."""
        self.updates = self.trained = self.evaluated = self.left_out = self.lost = 0
        self.mode_counts = self.other_weights = False
        self._trained: set[int] = set()  # ids of the weights that ran in training mode last
        self._orphans: dict[frozenset[int], bool] = {}
        self.outside: list[tuple[nn.Module, str]] = []
        self.example = 0, 0, 0

    def called(self, module: nn.Module) -> None:
        self._called[module] = self._called.get(module, False) or module.training

    def end_update(self, update: Update, training: Training) -> None:
        called, self._called = self._called, {}
        self.updates += 1
        self.mode_counts |= any(map(has_modes, called))
        # A loss, say, has neither weights nor modes.
        trained = any(mode and (one._parameters or has_modes(one)) for one, mode in called.items())
        self.trained += trained
        self.evaluated = 0 if trained else self.evaluated + 1
        used = _weights_in(called)
        if trained:
            self._trained = set(used)
        self.other_weights = not trained and self._trained != set(used)
        held, with_gradient = _optimizers_weights(update, training)
        outside = [p for key, p in used.items() if key not in held]
        unused = {key: p for key, p in held.items() if key not in used}
        trainable = {key for key, p in unused.items() if p.requires_grad}
        old = frozenset(trainable - with_gradient)
        copied = bool(unused.keys() & with_gradient)  # master copies, say
        self.left_out += any(p.grad is not None for p in outside) and not copied
        self.lost = self.lost + 1 if outside and old and self._are_orphans(old) else 0
        if outside:
            self.example = len(outside), len(used), len(old)
            named = ((one, name, id(p)) for one in called for name, p in one._parameters.items())
            self.outside = [
                (one, name) for one, name, key in named if key in used and key not in held
            ][:_NAMED]

    def replaced(self, training: Training) -> bool:
        """Return True if, in this update, the optimizers hold none of the weights in use."""
        used = _weights_in(self._called)
        held = set(map(id, training.parameters))
        return any(p.grad is not None for p in used.values()) and not used.keys() & held

    def _are_orphans(self, weights: frozenset[int]) -> bool:
        """Return True if no module holds these weights any more."""
        if weights not in self._orphans and len(self._orphans) < _MOST_SEARCHES:
            modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
            living = {id(p) for one in modules for p in vars(one).get("_parameters", {}).values()}
            self._orphans[weights] = not weights & living
        return self._orphans.get(weights, False)


def _weights_in(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    weights = (p for one in modules for p in one._parameters.values())
    return {id(p): p for p in weights if p is not None and p.requires_grad}


def has_modes(module: nn.Module) -> bool:
    """Return True if a module works differently in training and in evaluation mode."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _optimizers_weights(update: Update, training: Training) -> tuple[dict[int, Tensor], set[int]]:
    """Return the optimizers' weights by id, and the ids of those that got a gradient."""
    held: dict[int, Tensor] = {}
    with_gradient: set[int] = set()
    for number in training.numbers:
        parameters = training.slots[number].parameters
        held |= {id(p): p for p in parameters}
        stepped = (step.gradient for step in update.steps(number))
        for one in [*update.arrivals(number), *stepped]:
            present = zip(parameters, one.present, strict=True)
            with_gradient |= {id(p) for p, there in present if there}
    return held, with_gradient
