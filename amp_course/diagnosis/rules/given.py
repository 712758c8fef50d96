"""Judge the objects that were passed to the audit: before anything runs, and by their use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.diagnosis.report import count
from amp_course.watching.calling import size_of
from amp_course.watching.modules import has_modes
from amp_course.watching.records import Step, Training, Update


def check_given(training: Training, groups: Sequence[Any], accumulate: int) -> Iterable[Finding]:
    """Check the objects before the step runs."""
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
    # Other mixtures may be meant: masters, or an embedding, may stay on the CPU.
    if len(kinds) > 1 and "meta" in kinds:
        yield finding("two-devices", devices=" and ".join(kinds))
        return
    floats = (p.detach() for p in everything if p.is_floating_point())
    if bad := sum(int((~p.isfinite()).sum()) for p in floats):
        yield finding("weights-not-finite", numbers_that_are_inf_or_NaN=bad)


def check_unusual(updates: Sequence[Update], training: Training) -> Iterator[str]:
    """Yield what is unusual about parameters and modes, and may be meant."""
    names = {id(p): name for model in training.models for name, p in model.named_parameters()}
    rest, slots = training.rest, training.slots[:-1]

    def reached(number: int) -> list[Tensor]:
        arrived = [one for update in updates for one in update.arrivals(number)]
        used = [one.gradient for update in updates for one in update.steps(number)]
        present = (one.present for one in [*arrived, *used])
        flags = zip(training.slots[number].parameters, *present, strict=True)
        return [p for p, *there in flags if any(there)]

    in_none = reached(rest)
    masters = any(id(p) not in names for slot in slots for p in slot.parameters)
    if in_none and not masters and not any(update.changed[rest] for update in updates):
        yield f"{_named(in_none, names)} of the model get gradients and are in no optimizer."
    for number, slot in enumerate(slots):
        found = reached(number)
        ids = {id(p) for p in found}
        without = [p for p in slot.parameters if p.requires_grad and id(p) not in ids]
        if found and without:
            of = f"of the optimizer's {len(slot.parameters)} parameters"
            yield f"{_named(without, names)} {of} got no gradient in these calls."
        stepped = sum(id(p) not in names for p in found)
        masters = max(training.originals(number) or [-1]) >= 0
        if stepped and not masters and any(id(p) in names for p in slot.parameters):
            unknown = f"{count(stepped, 'parameter')} of no model that was passed"
            yield f"The optimizer also steps {unknown}."
        rates = [one.rate for update in updates for one in update.steps(number)]
        if found and rates and not any(rates):
            kind = type(training.optimizers[number]).__name__
            yield f"The learning rate of {kind} was 0 in every step that was run."
    owners = [key for slot in slots for key in {id(p) for p in slot.parameters}]
    if twice := len(owners) - len(set(owners)):
        yield f"{twice} parameters are in more than one optimizer: each of its steps moves them."
    first = updates[0]
    kinds = ", ".join(sorted({type(one).__name__ for one in first.modes if has_modes(one)}))
    if kinds and not any(first.modes.values()):
        yield (
            "The model trains in evaluation mode, `eval()`, and has layers that differ in it "
            f"({kinds})."
        )
    on = [one for one, mode in first.modes.items() if mode and has_modes(one)]
    later = updates[-1].modes
    if on and later and not any(later.get(one) for one in on):
        yield (
            "The step leaves the model in evaluation mode, `eval()`: the next update trains in it, "
            f"and the model has layers that differ in it ({kinds})."
        )
    for number, share in first.share_left.items():
        if share < 0.05 and first.steps(number):
            left_over = f"{max(share, 0.0):.1%} is left at the end of the call"
            yield f"After the step the weights are overwritten: of the update {left_over}."


def _named(parameters: Sequence[Tensor], names: Mapping[int, str]) -> str:
    known = [names.get(id(p), "one without a name") for p in parameters]
    shown = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
    return f"{count(len(known), 'parameter')} ({shown})"


def check_unknown_objects(
    update: Update,
    training: Training,
    scalers: Sequence[torch.amp.GradScaler],
    is_run: Callable[[], bool],
) -> Findings:
    """Check that the step uses the model, the optimizers and the scaler that were passed.

    scalers: those that were passed
    is_run:  returns True if the step calls the model; a frozen one may be used without a gradient
    """
    steps = update.steps()
    own = any(not one.other or _wraps(training, one.number, one.optimizer) for one in steps)
    unknown = {type(one.optimizer).__name__ for one in update.of(Step) if one.number < 0}
    others = sorted(unknown.union(one.other for one in steps if one.other))
    if others and not own:
        yield finding("foreign-optimizer", the_one_that_steps=", ".join(others))
        return
    yield from _check_masters(update, training)
    models = training.model_parameters
    if not any(id(p) in models for slot in training.slots[:-1] for p in slot.parameters):
        reaches_rest = bool(update.arrivals(training.rest))
        reaches_own = any(map(update.arrivals, training.numbers))
        by_hand = any(not one.gradient.empty for one in steps)
        if reaches_rest and not reaches_own and not update.changed[-1] and not by_hand:
            yield finding("foreign-parameters", optimizer=0)
        elif reaches_own and not reaches_rest and not is_run():
            counts = {"parameters_of_the_model": len(models), "calls_of_the_model": 0}
            yield finding("foreign-model", **counts)
    used = {call.scaler for call in update.called("scale")}
    if scalers and used and used.isdisjoint(range(len(scalers))):
        yield finding("foreign-scaler", scalers_in_use=len(used))


def _check_masters(update: Update, training: Training) -> Findings:
    """Look at parameters that are in an optimizer and not in the model, and vice versa."""
    rest, own = training.rest, training.model_parameters
    if not own or update.changed[rest] or all(one.empty for one in update.arrivals(rest)):
        return
    for number, slot in enumerate(training.slots[:-1]):
        unknown = [n for n, p in enumerate(slot.parameters) if id(p) not in own]
        used = [one.gradient for one in update.steps(number)]
        if not unknown or any(one.present[n] for one in update.arrivals(number) for n in unknown):
            continue
        stepped = any(one.present[n] for one in used for n in unknown)
        if stepped and update.changed[number]:
            cause = (
                "the optimizer moves parameters of its own, to which gradients are copied, and the "
                "model's weights do not change: nobody copies the new values back"
            )
            yield finding("weights-unchanged", cause, optimizer=number)
        elif not stepped and len(unknown) < len(slot.parameters):
            shown = {"parameters_without_a_gradient": len(unknown)}
            yield finding("foreign-parameters", **shown, optimizer=number)


def _wraps(training: Training, number: int, optimizer: Any) -> bool:
    """Return True if an optimizer and the passed one share groups, or one contains the other."""
    passed = training.optimizers[number]
    groups = {id(group) for group in passed.param_groups}
    if optimizer is passed or groups & set(map(id, optimizer.param_groups)):
        return True
    pairs = ((passed, optimizer), (optimizer, passed))
    return any(value is inner for outer, inner in pairs for value in vars(outer).values())
