"""Apply the rules to what the watchers record: in a script's process, or around a step."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.report import listed
from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules import training as rules
from amp_course.diagnosis.rules.scales import changed_while_scaled, check_summaries
from amp_course.diagnosis.rules.updates import PairRules
from amp_course.diagnosis.rules.values import check_values
from amp_course.doctor.machine import machine_facts
from amp_course.doctor.watchers import MOST_OPTIMIZERS, Watchers
from amp_course.watching.records import Intervention, Update
from amp_course.watching.script import Summary
from amp_course.watching.weights import weights_of

Values = tuple[list[Any], dict[Any, None], dict[str, None]]  # origins, arrived, given
# Faults of the line that made the optimizer
_OF_AN_OPTIMIZER = ("optimizer-of-old-weights", "frozen-optimizer")
_WAITS = 0.5  # the share of the time spent waiting for data that is worth advice
_NAMED = 3  # parameters
_LONG = 10  # updates of a model during which the average of its weights should move once


class Examiner:
    """Judges a training's updates one by one, and all of them at the end."""

    def __init__(self) -> None:
        self.watchers = Watchers(self._complete)
        self.begin()

    def begin(self) -> None:
        """Start from nothing."""
        self.began = time.monotonic()
        self.rules = PairRules()
        self.stress: list[Update] = []  # the last plain update, and the one with an inf
        self.found: list[Finding] = []
        self.with_gradient: set[int] = set()  # ids of parameters that an optimizer could move
        self.ended = 0.0  # when the last update did
        # How many updates there were, and what was not finite, before an inf was injected
        self.before: tuple[int, Values] | None = None

    def _complete(self, update: Update) -> Intervention | None:
        """Judge an update that has just ended; return what to do to the next one."""
        watchers = self.watchers
        number, training = len(watchers.script.summaries), watchers.training
        watchers.watch.step = number + 1
        watchers.hidden.check_new_origins()
        self.ended = time.monotonic()
        watchers.ranks.end_update([p for slot in training.slots for p in slot.parameters])
        for step in update.steps():
            parameters = zip(step.gradient.layout.parameters, step.gradient.present, strict=True)
            self.with_gradient |= {id(p) for p, present in parameters if present}
        if not self.stress:
            self.rules.judge(watchers.script.recent, training, watchers.script.summaries[-1])
            watchers.modules.end_update(update, training)
        return self._next(update, number)

    def _next(self, update: Update, number: int) -> Intervention | None:
        """Return what to do to the next update."""
        return None

    def close(self, error: BaseException | None) -> None:
        """Judge the update that the end of the run interrupted."""
        observer, script = self.watchers.observer, self.watchers.script
        if observer is not None and observer.update.events and error is None:
            with contextlib.suppress(Exception):
                if observer.is_complete():
                    observer.complete = lambda update: None
                    observer.end_update()
                    self.rules.judge(script.recent, observer.training, script.summaries[-1])
                else:
                    self.rules.judge_rest(observer.update, observer.training)

    def result(self, error: BaseException | None) -> dict[str, Any]:
        """Judge the whole; return findings, advice, observations, and facts for `reasons`."""
        watchers, script = self.watchers, self.watchers.script
        watch, made, ranks, calls = watchers.watch, watchers.made, watchers.ranks, watchers.calls
        with contextlib.suppress(Exception):
            if not self.stress:
                watch.look_at_weights()
        if error is not None:
            watch.look_at_error(error)
        now = watch.origins, watch.arrived, watch.preexisting
        updates, (origins, arrived, given) = self.before or (len(script.summaries), now)
        summaries = script.summaries[:updates]
        skipped = sum(one.skipped for one in summaries)
        found = [*self.found, *self._errors(error, summaries, origins), *self.rules.findings()]
        found += check_summaries(summaries, self._shared())
        if watch.late is not None:
            found = _placed(found, ("loss-outside-autocast",), watch.late)
        compiled = watch.compiled()
        values = Nonfinite(tuple(origins), tuple(arrived), tuple(given), updates, error, compiled)
        taken = any(one.name == "overflow-not-skipped" for one in found)
        losses = [loss for one in summaries for loss in one.losses]
        faults, observed = check_values(values, losses, updates, skipped, taken=taken)
        found += faults
        names = {one.name for one in found}
        diverged = bool(names & {"diverges", "not-finite"})
        found += rules.check_modules(watchers.modules, diverged=diverged)
        if "beyond-fp16" not in names:
            found += rules.check_hidden_overflow(watchers.hidden)
        found += rules.check_lost(watchers.shadow.lost())
        optimizers = made.optimizers
        line = next(filter(None, made.lines.values()), None)
        if len(optimizers) == 1 and line is not None:  # with several, any of them may be at fault
            found = _placed(found, _OF_AN_OPTIMIZER, line)
        device = next((str(p.device) for one in optimizers for p in weights_of(one)), "cpu")
        with watch.aside():  # the first rank times matmuls, and the others wait
            machine = machine_facts(device, watch.matmuls) if ranks.rank in ("", "0") else []
        drift = watchers.drift()
        return {
            "updates": updates,
            "passes": calls.passes,
            "by_hand": calls.by_hand,
            "skipped": skipped,
            "sharded": watchers.sharded,
            "device": device,
            "machine": machine,
            "optimizers": [type(one).__name__ for one in optimizers],
            "scalers": sum(one.is_enabled() for one in made.scalers),
            "regions": sorted(calls.regions),
            "missing_devices": sorted(calls.missing_devices),
            "matmuls": dict(watch.matmuls),
            "scales": [[*scales] for one in summaries for scales in (one.scales, one.scales_after)],
            "changed_while_scaled": "clipped-while-scaled" not in names
            and changed_while_scaled(summaries),
            "digests": ranks.sums[:updates],
            "rank": ranks.rank,
            "joined": ranks.joined,
            "wrapped": bool(ranks.wrapped),
            "drift": drift,
            "weights": ranks.weights[:updates],
            "groups": [one.passes for one in summaries if one.passes and len(optimizers) == 1],
            "losses": _first_and_last_loss(summaries),
            "lines": script.most_common_lines(),
            "reached": self.rules.reached,
            "stressed": len(self.stress) == 2,
            "seconds": time.monotonic() - self.began,
            "findings": found,
            "advice": list(self._advice(updates, drift)),
            "observed": [*observed, *self._observed(summaries)],
        }

    def _shared(self) -> set[int]:
        """Return the numbers of the optimizers that have a parameter in common with another."""
        if (observer := self.watchers.observer) is None:
            return set()
        slots = observer.training.slots[:-1]
        uses = Counter(number for slot in slots for number in set(map(id, slot.parameters)))
        return {n for n, slot in enumerate(slots) if any(uses[id(p)] > 1 for p in slot.parameters)}

    def _errors(
        self, error: BaseException | None, summaries: Sequence[Summary], origins: Any
    ) -> Findings:
        watchers, observer = self.watchers, self.watchers.observer
        raised = [*watchers.raised.errors, *watchers.watch.raised]
        if error is not None:
            updates, training, modules = [], None, watchers.modules
            if observer is not None:
                observer.update.error, training = error, observer.training
                updates = [*watchers.script.recent[-1:], observer.update]
            for one in errors.name_error(error, updates, training, watchers.made.scalers, origins):
                if one.name == "frozen-optimizer" and training and modules.replaced(training):
                    message = one.evidence.get("torch says", "")
                    one = finding("optimizer-of-old-weights", torch_says=message)
                yield one
        elif raised and not any(one.stepped for one in summaries):
            yield errors.swallowed(raised)
        else:
            yield from errors.often_swallowed(watchers.raised.escaped, len(summaries))

    def _advice(self, updates: int, drift: dict[str, str]) -> Findings:
        watchers, watch, made = self.watchers, self.watchers.watch, self.watchers.made
        yield from rules.advise_speed(watch, watchers.ranges, updates)
        yield from rules.advise_saving(watchers.saved.states, made)
        yield from rules.advise_16_bits(watchers.shadow.lost())
        yield from rules.advise_ratio(self.rules.ratios, watchers.precisions.values())
        if updates and drift.get("variant") == "wrapper" and not watchers.ranks.called:
            yield finding("wrapper-not-called", place=drift["place"])
        skipped = {number for number, one in enumerate(watchers.script.summaries) if one.skipped}
        if skipped and skipped <= watchers.averaged:
            yield finding("average-ran-on", moves_in_a_skipped_update=1)
        partly = bool(watchers.ranks.wrapped) or len(made.optimizers) > MOST_OPTIMIZERS
        yield from rules.advise_modules(watchers.modules, watch.modules.paths, wrapped=partly)
        with watch.aside():
            waiting = any(int(one.n_averaged) == 0 for one in watchers.averages)
        if updates >= _LONG and waiting:
            yield finding("average-never-updated", updates_of_the_model=updates)
        took, waited = self.ended - watchers.began, watchers.calls.waited
        if updates > 2 and took > 1.0 and waited > _WAITS * took:
            yield finding("waiting-for-data", share_of_the_time=f"{waited / took:.0%}")

    def _without_gradient(self, stepped: Collection[int]) -> Iterator[str]:
        """Name parameters that get no gradient, of optimizers that move others."""
        names, training = self.watchers.watch.modules.names, self.watchers.training
        for number in sorted(stepped):
            trainable = [p for p in training.slots[number].parameters if p.requires_grad]
            without = [p for p in trainable if id(p) not in self.with_gradient]
            if without and len(without) < len(trainable):
                named = [f"`{names[p][1]}`" for p in without if p in names][:_NAMED]
                shown = listed([*named, *["more"] * (len(without) > len(named))])
                yield (
                    f"{len(without)} of the {len(trainable)} parameters of "
                    f"{type(training.optimizers[number]).__name__} got no gradient in any update, "
                    f"so they never moved{f': {shown}' if named else ''}."
                )

    def _observed(self, summaries: Sequence[Summary]) -> Iterator[str]:
        made, watch, observer = self.watchers.made, self.watchers.watch, self.watchers.observer
        if observer is not None:
            followed = observer.training.optimizers
            if len(made.optimizers) > MOST_OPTIMIZERS:
                yield f"Of {len(made.optimizers)} optimizers, {len(followed)} were followed."
            stepped = frozenset().union(*(one.stepped for one in summaries))
            numbers = sorted(self.watchers.script.idle - stepped)
            if idle := ", ".join(type(followed[number]).__name__ for number in numbers):
                of = f"{len(numbers)} of {len(followed)} optimizers"
                yield f"{of} took no step while it was watched: {idle}."
            yield from self._without_gradient(stepped)
            if shared := len(self._shared()):
                yield f"{shared} optimizers have parameters in common: a step of each moves them."
            if (error := observer.trouble) is not None:
                yield (
                    f"Its calls could not be followed to the end: {type(error).__name__}: {error}."
                )
        kinds = [type(one).__name__ for one in made.optimizers]
        yield from rules.observe_reads(watch, len(summaries), kinds)
        if any(not one.is_enabled() for one in made.scalers):
            yield (
                "A `GradScaler` is switched off, by `enabled=False` or because its device is "
                "missing: it scales nothing."
            )
        if watch.compiled():
            yield "Compiled parts ran uncompiled while they were watched."
        if torch.is_anomaly_enabled():
            yield "Anomaly mode is on: it makes backward passes several times as slow."


def _placed(found: Sequence[Finding], names: Sequence[str], line: object) -> list[Finding]:
    return [replace(one, place=str(line)) if one.name in names else one for one in found]


def _first_and_last_loss(summaries: Sequence[Summary]) -> list[float]:
    """Return the first loss of the first and of the last update: in a GAN, that of one network."""
    firsts = [one.losses[0] for one in summaries if one.losses]
    divisors = Counter(one.passes for one in summaries if one.divided)
    if 2 * divisors.total() > len(summaries):  # losses are divided for accumulation: undo that
        firsts = [loss * divisors.most_common(1)[0][0] for loss in firsts]
    return firsts[:1] + firsts[-1:]
