"""Judge what the audit was given: before anything runs, and by what the step then used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.watching.calling import size_of
from amp_course.watching.records import Step, Training, Update

_OF_A_MODE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


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
    # others may be meant: masters or an embedding that stay on the CPU
    if len(kinds) > 1 and "meta" in kinds:
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

    def reached(number: int) -> list[Tensor]:
        came = [one.arrived.get(number) for update in updates for one in update.backwards]
        used = [one.gradient for update in updates for one in update.steps(number)]
        flags = [one.present for one in [*came, *used] if one is not None]
        each = zip(training.slots[number].parameters, *flags, strict=True)
        return [p for p, *there in each if any(there)]

    left = reached(rest)
    masters = any(id(p) not in names for slot in slots for p in slot.parameters)
    if left and not masters and not any(update.changed[rest] for update in updates):
        yield f"{_listed(left, names)} of the model get gradients and are in no optimizer."
    for number, slot in enumerate(slots):
        found = reached(number)
        ids = {id(p) for p in found}
        without = [p for p in slot.parameters if p.requires_grad and id(p) not in ids]
        if found and without:
            of = f"of the optimizer's {len(slot.parameters)} parameters"
            yield f"{_listed(without, names)} {of} got no gradient in these calls."
        stepped = sum(id(p) not in names for p in found)
        masters = max(training.twins(number) or [-1]) >= 0
        if stepped and not masters and any(id(p) in names for p in slot.parameters):
            strange = f"{stepped} parameters of no model that was passed"
            yield f"The optimizer also steps {strange}, and they get gradients."
    owners = [key for slot in slots for key in {id(p) for p in slot.parameters}]
    if twice := len(owners) - len(set(owners)):
        yield f"{twice} parameters are in more than one optimizer: each of its steps moves them."
    first = updates[0]
    layers = (one for one in first.modes if isinstance(one, _OF_A_MODE) and getattr(one, "p", True))
    kinds = ", ".join(sorted({type(one).__name__ for one in layers}))
    if kinds and not any(first.modes.values()):
        yield (
            "The model trains in evaluation mode, `eval()`, and has layers that differ in it "
            f"({kinds})."
        )
    for number, share in first.left.items():
        if share < 0.05 and first.steps(number):
            left_over = f"{max(share, 0.0):.1%} is left at the end of the call"
            yield f"After the step the weights are overwritten: of the update {left_over}."


def _listed(parameters: Sequence[Tensor], names: Mapping[int, str]) -> str:
    known = [names.get(id(p), "one without a name") for p in parameters]
    shown = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
    return f"{len(known)} parameter{'s'[: len(known) != 1]} ({shown})"


def check_strangers(
    update: Update,
    training: Training,
    given: Sequence[torch.amp.GradScaler],
    is_run: Callable[[], bool],
) -> Findings:
    """Look whether the step used the model, the optimizers and the scaler that were passed.

    is_run: tells whether the step calls the model; one that is frozen gets no gradient, and may be
            used anyway
    """
    optimizers, rest = range(len(training.optimizers)), len(training.optimizers)
    steps = update.steps()
    own = any(not one.other or _wraps(training, one.number, one.optimizer) for one in steps)
    others = {one.other for one in steps if one.other}
    foreign = (one for one in update.of(Step) if one.number < 0)
    strange = {type(one.optimizer).__name__ for one in foreign}
    if not own and (others or strange):
        yield finding("foreign-optimizer", the_one_that_steps=", ".join(sorted(others | strange)))
        return
    yield from _check_masters(update, training)
    models = training.model_parameters
    if not any(id(p) in models for n in optimizers for p in training.slots[n].parameters):
        reaches_rest = any(rest in one.arrived for one in update.backwards)
        reaches_own = any(n in one.arrived for n in optimizers for one in update.backwards)
        by_hand = any(not one.gradient.empty for one in steps)
        if reaches_rest and not reaches_own and not update.changed[rest] and not by_hand:
            yield finding("foreign-parameters", optimizer=0)
        elif reaches_own and not reaches_rest and not is_run():
            counts = {"parameters_of_the_model": len(models), "calls_of_the_model": 0}
            yield finding("foreign-model", **counts)
    used = {call.scaler for call in update.called("scale")}
    if given and used and used.isdisjoint(range(len(given))):
        yield finding("foreign-scaler", scalers_in_use=len(used))


def _check_masters(update: Update, training: Training) -> Findings:
    """Look at parameters that are in an optimizer and not in the model, and the other way round."""
    rest, own = len(training.optimizers), training.model_parameters
    came = [one.arrived[rest] for one in update.backwards if rest in one.arrived]
    if not own or update.changed[rest] or all(one.empty for one in came):
        return
    for number, slot in enumerate(training.slots[:-1]):
        strange = [n for n, p in enumerate(slot.parameters) if id(p) not in own]
        arrived = [one.arrived[number] for one in update.backwards if number in one.arrived]
        used = [one.gradient for one in update.steps(number)]
        if not strange or any(one.present[n] for one in arrived for n in strange):
            continue
        stepped = any(one.present[n] for one in used for n in strange)
        if stepped and update.changed[number]:
            cause = (
                "the optimizer moves parameters of its own, to which gradients are copied, and the "
                "model's weights do not change: nobody copies the new values back"
            )
            yield finding("weights-unchanged", cause, optimizer=number)
        elif not stepped and len(strange) < len(slot.parameters):
            count = {"parameters_without_a_gradient": len(strange)}
            yield finding("foreign-parameters", **count, optimizer=number)


def _wraps(training: Training, number: int, optimizer: Any) -> bool:
    """Return True if an optimizer and the passed one share groups, or one holds the other."""
    passed = training.optimizers[number]
    groups = {id(group) for group in passed.param_groups}
    if optimizer is passed or groups & set(map(id, optimizer.param_groups)):
        return True
    pairs = ((passed, optimizer), (optimizer, passed))
    return any(value is inner for outer, inner in pairs for value in vars(outer).values())
