"""Judge what the audit was given: before anything runs, and by what the step then used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.watching.calling import size_of
from amp_course.watching.records import Training, Update


def check_given(training: Training, groups: Sequence[Any], accumulate: int) -> Iterable[Finding]:
    """Look at the objects before the step runs."""
    if accumulate < 1:
        yield finding("accumulate-below-one", accumulate=accumulate)
    if not groups:
        yield finding("no-batches")
    for number, batch in enumerate(one for group in groups for one in group):
        if batch is None or size_of(batch) == 0:
            what = "is None" if batch is None else "holds no examples"
            yield finding("batch-does-not-fit", f"batch {number} (counted from 0) {what}")
            return
    everything = [p for slot in training.slots for p in slot.parameters]
    kinds = sorted({p.device.type for p in everything})
    if len(kinds) > 1 and "meta" in kinds:  # others may be meant: masters or an embedding that stay on the CPU
        yield finding("two-devices", devices=" and ".join(kinds))
        return
    spoilt = sum(int((~p.detach().isfinite()).sum()) for p in everything if p.is_floating_point())
    if spoilt:
        yield finding("weights-not-finite", numbers_that_are_inf_or_NaN=spoilt)


def check_unusual(updates: Sequence[Update], training: Training) -> Iterator[str]:
    """Say what is unusual of parameters and modes, and may be meant."""
    names = {id(p): name for model in training.models for name, p in model.named_parameters()}
    rest = len(training.optimizers)
    slots = training.slots[:-1]
    everything = [event for update in updates for event in update.backwards]

    def reached(number: int) -> set[int]:
        came = [one.arrived[number].present for one in everything if number in one.arrived]
        used = [one.gradient.present for update in updates for one in update.steps(number)]
        return {n for flags in [*came, *used] for n, flag in enumerate(flags) if flag}

    masters = any(id(p) not in names for slot in slots for p in slot.parameters)
    left = [training.slots[rest].parameters[n] for n in sorted(reached(rest))]
    if left and not masters and not any(update.changed[rest] for update in updates):
        yield f"{_listed(left, names)} of the model get gradients and are in no optimizer."
    for number, slot in enumerate(slots):
        found = reached(number)
        wanted = [n for n, p in enumerate(slot.parameters) if p.requires_grad]
        without = [slot.parameters[n] for n in wanted if n not in found]
        if found and without:
            count = f"{len(slot.parameters)} parameters"
            yield f"{_listed(without, names)} of the optimizer's {count} got no gradient in these calls."
        stepped = [slot.parameters[n] for n in sorted(found) if id(slot.parameters[n]) not in names]
        masters = max(training.twins(number) or [-1]) >= 0
        if stepped and not masters and any(id(p) in names for p in slot.parameters):
            yield (
                f"The optimizer also steps {len(stepped)} parameters of no model that was passed, and "
                "they get gradients."
            )
    owners = [id(p) for slot in slots for p in {id(p): p for p in slot.parameters}.values()]
    if len(owners) > len(set(owners)):
        twice = len(owners) - len(set(owners))
        yield f"{twice} parameters are in more than one optimizer: each of its steps moves them."
    modes = updates[0].modes
    drops = [m for m in modes if isinstance(m, _OF_A_MODE) and getattr(m, "p", True)]
    if drops and not any(modes[m] for m in drops) and not any(modes.values()):
        kinds = ", ".join(sorted({type(m).__name__ for m in drops}))
        yield f"The model trains in evaluation mode, `eval()`, and has layers that differ in it ({kinds})."
    for number, share in updates[0].left.items():
        if share < 0.05 and updates[0].steps(number):
            yield (
                f"After the step the weights are overwritten: of the update {max(share, 0.0):.1%} is left at the "
                "end of the call."
            )


_OF_A_MODE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def _listed(parameters: Sequence[Tensor], names: Mapping[int, str]) -> str:
    known = [names.get(id(p), "one without a name") for p in parameters]
    shown = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
    return f"{len(known)} parameter{'s'[: len(known) != 1]} ({shown})"


def check_strangers(
    update: Update, training: Training, given: Sequence[torch.amp.GradScaler], is_run: Callable[[], bool]
) -> Iterator[Finding]:
    """Look whether the step used the model, the optimizers and the scaler that were passed.

    is_run: tells whether the step calls the model; one that is frozen gets no gradient, and may be used anyway
    """
    optimizers, rest = range(len(training.optimizers)), len(training.optimizers)
    others = {one.other for one in update.steps() if one.other and not _wraps(training, one.number, one.optimizer)}
    strange = {
        type(one.optimizer).__name__
        for one in update.events
        if getattr(one, "number", 0) == -1 and hasattr(one, "optimizer")
    }
    own = [n for n in optimizers if any(not one.other or _wraps(training, n, one.optimizer) for one in update.steps(n))]
    if not own and (others or strange) and len(update.steps()) == len([one for one in update.steps() if one.other]):
        yield finding("foreign-optimizer", the_one_that_steps=", ".join(sorted(others | strange)))
        return
    yield from _check_masters(update, training)
    models = training.model_parameters
    shared = any(id(p) in models for n in optimizers for p in training.slots[n].parameters)
    if not shared:
        reaches_rest = any(rest in one.arrived for one in update.backwards)
        reaches_own = any(n in one.arrived for n in optimizers for one in update.backwards)
        by_hand = any(not one.gradient.empty for one in update.steps())
        if reaches_rest and not reaches_own and not update.changed[rest] and not by_hand:
            yield finding("foreign-parameters", optimizer=0)
        elif reaches_own and not reaches_rest and not is_run():
            yield finding("foreign-model", parameters_of_the_model=len(models), calls_of_the_model=0)
    used = {call.scaler for call in update.called("scale")}
    passed = range(len(given))
    if given and used and not used & set(passed):
        yield finding("foreign-scaler", scalers_in_use=len(used))


def _check_masters(update: Update, training: Training) -> Iterator[Finding]:
    """Look at parameters that are in an optimizer and not in the model, next to those of the model that no optimizer holds."""
    rest = len(training.optimizers)
    own = training.model_parameters
    waiting = (
        any(rest in one.arrived and not one.arrived[rest].empty for one in update.backwards)
        and not update.changed[rest]
    )
    for number, slot in enumerate(training.slots[:-1] if waiting and own else ()):
        strange = [n for n, p in enumerate(slot.parameters) if id(p) not in own]
        reached = {
            n for one in update.backwards if number in one.arrived for n in strange if one.arrived[number].present[n]
        }
        stepped = {n for one in update.steps(number) for n in strange if one.gradient.present[n]}
        if strange and stepped and not reached and update.changed[number]:
            cause = (
                "the optimizer moves parameters of its own, to which gradients are copied, and the model's weights do not "
                "change: nobody copies the new values back"
            )
            yield finding("weights-unchanged", cause, optimizer=number)
        elif strange and not stepped and not reached and len(strange) < len(slot.parameters):
            evidence = {"parameters_without_a_gradient": len(strange), "optimizer": number}
            yield finding("foreign-parameters", **evidence)


def _wraps(training: Training, number: int, optimizer: Any) -> bool:
    """Tell whether an optimizer and the one that was passed belong together: one holds the other, or they share their groups."""
    passed = training.optimizers[number]
    if optimizer is passed or optimizer.param_groups is passed.param_groups:
        return True
    if any(a is b for a in optimizer.param_groups for b in passed.param_groups):
        return True
    return any(value is optimizer for value in vars(passed).values()) or any(
        value is passed for value in vars(optimizer).values()
    )
