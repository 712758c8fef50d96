"""What the rules make of what the watchers see: in a script's process, or around a step."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules import training as rules
from amp_course.diagnosis.rules.scales import check_summaries
from amp_course.diagnosis.rules.updates import PairRules
from amp_course.diagnosis.rules.values import check_values
from amp_course.doctor.machine import machine_facts
from amp_course.doctor.watchers import MOST_OPTIMIZERS, Watchers
from amp_course.watching.records import Intervention, Update, weights_of
from amp_course.watching.script import Summary

Values = tuple[list[Any], dict[Any, None], dict[str, None]]  # origins, arrived, given
# at fault is the line that made it
_OF_AN_OPTIMIZER = ("optimizer-of-old-weights", "frozen-optimizer")
_OFTEN = 0.5  # of the time
_LONG = 10  # updates without one of an average that is in use


class Examiner:
    """Judges a training's updates as they come, and all of it at the end. seen: what watches it."""

    def __init__(self) -> None:
        self.seen = Watchers(self._complete)
        self.begin()

    def begin(self) -> None:
        """Begin with no update."""
        self.began = time.monotonic()
        self.rules = PairRules()
        self.stress: list[Update] = []  # the plain one, the poisoned one
        self.found: list[Finding] = []
        self.ended = 0.0  # the last update
        # Updates, and values seen, before an update was given an inf
        self.before: tuple[int, Values] | None = None

    def _complete(self, update: Update) -> Intervention | None:
        """After each update: judge it, and say what is done to the next one."""
        seen = self.seen
        number, training = len(seen.script.summaries), seen.training
        seen.watch.step = number + 1
        seen.hidden.look_for()
        self.ended = time.monotonic()
        seen.ranks.end_update([p for slot in training.slots for p in slot.parameters])
        if not self.stress:
            self.rules.look_at(seen.script.recent, training, seen.script.summaries[-1])
            seen.modules.end_update(update, training)
        return self._next(update, number)

    def _next(self, update: Update, number: int) -> Intervention | None:
        """Say what is done to the next update."""
        return None

    def close(self, error: BaseException | None) -> None:
        """Judge the update that was going on."""
        observer, script = self.seen.observer, self.seen.script
        if observer is not None and observer.update.events and error is None:
            with contextlib.suppress(Exception):
                if observer._is_complete():
                    observer._completed = lambda update: None
                    observer.end_update()
                    self.rules.look_at(script.recent, observer.training, script.summaries[-1])
                else:
                    self.rules.look_at_rest(observer.update, observer.training)

    def result(self, error: BaseException | None) -> dict[str, Any]:
        """Judge the whole; return findings, advice, observations, and facts for `reasons`."""
        seen, script = self.seen, self.seen.script
        with contextlib.suppress(Exception):
            if not self.stress:
                seen.watch.look_at_weights()
        if error is not None:
            seen.watch.look_at_error(error)
        now = seen.watch.origins, seen.watch.arrived, seen.watch.given
        updates, (origins, arrived, given) = self.before or (len(script.summaries), now)
        summaries = script.summaries[:updates]
        skipped = sum(one.skipped for one in summaries)
        found = [*self.found, *self._errors(error, summaries, origins), *self.rules.findings()]
        found += check_summaries(summaries, self._shared())
        if seen.watch.late is not None:
            found = _placed(found, ("loss-outside-autocast",), seen.watch.late)
        compiled = seen.watch.compiled()
        values = Nonfinite(tuple(origins), tuple(arrived), tuple(given), updates, error, compiled)
        taken = any(one.name == "overflow-not-skipped" for one in found)
        losses = [loss for one in summaries for loss in one.losses]
        faults, observed = check_values(values, losses, updates, skipped, taken=taken)
        found += faults
        names = {one.name for one in found}
        diverged = bool(names & {"diverges", "not-finite"})
        found += rules.check_modules(seen.modules, diverged=diverged)
        if "beyond-fp16" not in names:
            found += rules.check_hidden_overflow(seen.hidden)
        found += rules.check_lost(seen.shadow.lost())
        made = next(filter(None, seen.made.lines.values()), None)
        if len(seen.made.optimizers) == 1 and made is not None:  # of several, nobody knows which
            found = _placed(found, _OF_AN_OPTIMIZER, made)
        optimizers = seen.made.optimizers
        device = next((str(p.device) for one in optimizers for p in weights_of(one)), "cpu")
        first = seen.ranks.rank in ("", "0")  # the other ranks wait, so that it can time something
        with seen.watch.aside():
            machine = machine_facts(device, seen.watch.matmuls) if first else []
        drift = seen.drift()
        return {
            "updates": updates,
            "passes": seen.calls.passes,
            "by_hand": seen.calls.by_hand,
            "skipped": skipped,
            "sharded": seen.sharded,
            "device": device,
            "machine": machine,
            "optimizers": [type(one).__name__ for one in optimizers],
            "scalers": sum(one.is_enabled() for one in seen.made.scalers),
            "regions": sorted(seen.calls.regions),
            "matmuls": dict(seen.watch.matmuls),
            "scales": [list(one.scales_after) for one in summaries],
            "digests": seen.ranks.sums[:updates],
            "rank": seen.ranks.rank,
            "joined": seen.ranks.joined,
            "wrapped": bool(seen.ranks.wrapped),
            "drift": drift,
            "weights": seen.ranks.weights[:updates],
            "groups": [one.passes for one in summaries if one.passes and len(optimizers) == 1],
            "losses": _first_and_last_loss(summaries),
            "lines": script.most_common_lines(),
            "stressed": len(self.stress) == 2,
            "seconds": time.monotonic() - self.began,
            "findings": found,
            "advice": list(self._advice(updates, drift)),
            "observed": [*observed, *self._observed(summaries)],
        }

    def _shared(self) -> set[int]:
        """Return the numbers of the optimizers that have a parameter in common with another."""
        if (observer := self.seen.observer) is None:
            return set()
        slots = observer.training.slots[:-1]
        held = Counter(number for slot in slots for number in {id(p) for p in slot.parameters})
        return {n for n, slot in enumerate(slots) if any(held[id(p)] > 1 for p in slot.parameters)}

    def _errors(
        self, error: BaseException | None, summaries: Sequence[Summary], origins: Any
    ) -> Findings:
        seen = self.seen
        raised = [*seen.raised.errors, *seen.watch.raised]
        if error is not None:
            updates, training = [], None
            if seen.observer is not None:
                seen.observer.update.error = error
                updates = [*seen.script.recent[-1:], seen.observer.update]
                training = seen.observer.training
            for one in errors.name_error(error, updates, training, seen.made.scalers, origins):
                if one.name == "frozen-optimizer" and training and seen.modules.replaced(training):
                    said = one.evidence.get("torch says", "")
                    one = finding("optimizer-of-old-weights", torch_says=said)
                yield one
        elif raised and not any(one.stepped for one in summaries):
            yield errors.swallowed(raised)
        else:
            yield from errors.often_swallowed(seen.raised.escaped, len(summaries))

    def _advice(self, updates: int, drift: dict[str, str]) -> Findings:
        seen = self.seen
        yield from rules.advise_speed(seen.watch, seen.ranges, updates)
        yield from rules.advise_saving(seen.saved.states, seen.made)
        yield from rules.advise_16_bits(seen.shadow.lost())
        yield from rules.advise_ratio(self.rules.ratios, seen.precisions.values())
        if updates and drift.get("variant") == "wrapper" and not seen.ranks.called:
            yield finding("wrapper-not-called", place=drift["place"])
        skipped = {number for number, one in enumerate(seen.script.summaries) if one.skipped}
        if skipped and skipped <= seen.averaged:
            yield finding("average-ran-on", moves_in_a_skipped_update=1)
        partly = bool(seen.ranks.wrapped) or len(seen.made.optimizers) > MOST_OPTIMIZERS
        yield from rules.advise_modules(seen.modules, seen.watch._paths, wrapped=partly)
        with seen.watch.aside():
            waiting = any(int(one.n_averaged) == 0 for one in seen.averages)
        if updates >= _LONG and waiting:
            yield finding("average-never-updated", updates_of_the_model=updates)
        took, waited = self.ended - seen.began, seen.calls.waited
        if updates > 2 and took > 1.0 and waited > _OFTEN * took:
            yield finding("waiting-for-data", share_of_the_time=f"{waited / took:.0%}")

    def _observed(self, summaries: Sequence[Summary]) -> Iterator[str]:
        seen, observer = self.seen, self.seen.observer
        if observer is not None:
            followed = observer.training.optimizers
            if len(seen.made.optimizers) > MOST_OPTIMIZERS:
                yield f"Of {len(seen.made.optimizers)} optimizers, {len(followed)} were followed."
            stepped = frozenset().union(*(one.stepped for one in summaries))
            numbers = sorted(seen.script.idle - stepped)
            if idle := ", ".join(type(followed[number]).__name__ for number in numbers):
                of = f"{len(numbers)} of {len(followed)} optimizers"
                yield f"{of} took no step while it was watched: {idle}."
            if shared := len(self._shared()):
                yield f"{shared} optimizers have parameters in common: a step of each moves them."
            if (trouble := observer.trouble) is not None:
                said = f"{type(trouble).__name__}: {trouble}"
                yield f"Its calls could not be followed to the end: {said}."
        kinds = [type(one).__name__ for one in seen.made.optimizers]
        yield from rules.observe_reads(seen.watch, len(summaries), kinds)
        if any(not one.is_enabled() for one in seen.made.scalers):
            yield (
                "A `GradScaler` is switched off, by `enabled=False` or because its device is "
                "missing: it scales nothing."
            )
        if seen.watch.compiled():
            yield "Compiled parts ran uncompiled while they were watched."
        if torch.is_anomaly_enabled():
            yield "Anomaly mode is on: it makes backward passes several times as slow."


def _placed(found: Sequence[Finding], names: Sequence[str], line: object) -> list[Finding]:
    return [replace(one, place=str(line)) if one.name in names else one for one in found]


def _first_and_last_loss(summaries: Sequence[Summary]) -> list[float]:
    """Return the first loss of the first and the last update: of a GAN's, always the same one."""
    firsts = [one.losses[0] for one in summaries if one.losses]
    divisors = Counter(one.passes for one in summaries if one.divided)
    if 2 * divisors.total() > len(summaries):  # of accumulation: show the loss itself
        firsts = [loss * divisors.most_common(1)[0][0] for loss in firsts]
    return firsts[:1] + firsts[-1:]
