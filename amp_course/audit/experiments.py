"""The experiments in their order: an update and the next, what the gradients show, an overflow, a growing scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from amp_course.audit.gradient_experiments import GradientExperiments
from amp_course.audit.overflow import check_overflow, check_scale_growth
from amp_course.audit.protocol import STEPS_WRONG, UPDATES_WRONG, Over, Protocol
from amp_course.audit.runner import PATIENCE, Runner
from amp_course.checking.limit import TimeUp
from amp_course.diagnosis.findings import Finding, finding
from amp_course.diagnosis.rules.calls import (
    _moved_first,
    check_clearing,
    check_passes,
    check_precision,
    check_schedule,
    check_steps,
    check_updates,
    check_weights,
    check_zeros,
    frozen_optimizer,
    mixes_weights,
    never_stepped,
    without_gradients,
)
from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.diagnosis.rules.given import check_strangers, check_unusual
from amp_course.watching.records import Region, Update


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return max((float(group.get("lr", 1.0)) for group in optimizer.param_groups), default=1.0)


@dataclass
class Experiments:
    """One audit, from the first update to the last."""

    run: Runner
    protocol: Protocol
    gradients: GradientExperiments

    def everything(self) -> None:
        """Do all experiments that make sense after what the earlier ones found."""
        try:
            self._everything()
        except TimeUp:
            slow = "if it is just slow, pass a larger `seconds=`"
            self.protocol.leave_out(
                "everything else", f"a call of the step did not finish within {self.run.seconds:g} seconds: {slow}"
            )
        except Over as over:
            self.protocol.leave_out("everything else", str(over))

    def _everything(self) -> None:
        run, protocol = self.run, self.protocol
        first = run.first()
        self._can_be_repeated()
        self._begin(first)
        training = run.training
        rates = [_rate(one) for one in training.optimizers]
        second = run.following()
        self._can_be_repeated()
        updates = [first, second]
        self._calls(updates)
        protocol.judge("", check_zeros(updates, training))
        protocol.judge("", check_unusual(updates, training))
        self._overwritten(updates, rates)
        if not protocol.names & (STEPS_WRONG | UPDATES_WRONG) and first.steps():
            self.gradients.everything(first)
        if (
            first.called("scale")
            and not first.called("update")
            and not first.called("scaler.step")
            and not protocol.found
        ):
            cause = "the loss is scaled, and `scaler.update()` never ran: the scale stays as it is, whatever overflows"
            steps = len(first.steps()) + len(second.steps())
            protocol.judge("updates", [finding("update-missing", cause, updates=0, steps=steps)])
        if second.error is None:
            check_overflow(
                run, protocol, first, by_hand=self.gradients.scaled_by_hand, unscaled=self.gradients.unscaled
            )
            check_scale_growth(run, protocol, first, steady=self.gradients.steady)

    def _can_be_repeated(self) -> None:
        """Raise Over for a step that is not the same step when it is run again."""
        if self.run.training.has_other_parameters():
            raise Over("the step gives its optimizer or its model other parameters than those that they had")

    def _begin(self, first: Update) -> None:
        """Judge the first update; raise Over if nothing after it can be judged."""
        run, protocol, training = self.run, self.protocol, self.run.training
        protocol.judge("backward" if first.backwards else "", check_passes(first, training))
        if first.error is not None:
            protocol.judge("", check_precision(first, None, training))
            if first.scalers_made and isinstance(first.error, AssertionError):
                protocol.judge("", [finding("scaler-inside-step", scalers_made_in_one_update=first.scalers_made)])
            else:
                protocol.judge("", [check_error([first], training, run.accumulate)])
        elif not first.finite:
            protocol.judge("", [self._not_finite(first)])
        if (
            first.error is not None
            or first.left_open
            or not first.finite
            or protocol.names & {"no-backward", "frozen-optimizer"}
        ):
            raise Over("fix the faults above first")
        if run.adopted and not run.given:
            protocol.observations.append("The step uses a `GradScaler` that you did not pass; the audit used it.")
        protocol.judge("", check_strangers(first, training, run.given, run.calls_the_model))
        protocol.judge("", check_weights(first, training))
        if protocol.names & {
            "foreign-model",
            "foreign-optimizer",
            "foreign-parameters",
            "fp16-parameters",
            "not-finite",
        }:
            raise Over("fix the faults above first")
        if not first.backwards and not first.steps():
            nothing = f"in {first.calls} calls the step ran no `backward()` and no optimizer stepped"
            if first.returned in ("function", "generator", "coroutine", "method"):
                cause = f"{nothing}: it returned a {first.returned}, and nothing in that was run"
                protocol.judge("", [finding("no-backward", cause)])
                raise Over("fix the faults above first")
            raise Over(f"{nothing}: does it wait for more batches, or swallow an exception?")
        protocol.judge("steps", never_stepped(first, training, run.window))

    def _not_finite(self, first: Update) -> Finding:
        values = [one.value for one in first.backwards]
        loss = next((v for v in values if not math.isfinite(v)), values[-1] if values else math.nan)
        evidence: dict[str, float | str] = {"loss_at_backward": f"{loss:g}"}
        if first.scales:
            evidence["lowest_loss_scale"] = first.scales[0]
        return finding("not-finite", **evidence)

    def _calls(self, updates: list[Update]) -> None:
        """Judge two updates, one after the other, by their calls."""
        run, protocol, training = self.run, self.protocol, self.run.training
        first, second = updates
        protocol.judge("", check_precision(first, second, training))
        if next(first.of(Region), None) is not None or first.called("scale"):
            protocol.judge("autocast")
        else:
            protocol.leave_out("autocast", "the step enters no autocast region")
        protocol.judge("steps", check_steps(updates, training, run.accumulate))
        clearing = list(check_clearing(updates, training))
        if training.scalers and first.called("scaler.step"):
            cleared = not any(one.name == "never-cleared" for one in clearing)
            protocol.judge("updates", check_updates(updates, training, run.accumulate, cleared=cleared))
        if second.error is not None:
            if not protocol.names & (STEPS_WRONG | UPDATES_WRONG):
                protocol.judge("", [check_error(updates, training, run.accumulate)])
            return
        if training.schedulers and first.steps():
            protocol.judge("scheduler", check_schedule(updates, training, run.accumulate))
        if not protocol.names & STEPS_WRONG:
            protocol.judge("clearing", clearing)
            self._without_gradients(updates)
            if mixes_weights(updates, training) and "never-cleared" not in protocol.names:
                why = "a step adds up gradients from before and after a change of the weights: is that meant?"
                protocol.leave_out("clearing", why)

    def _overwritten(self, updates: list[Update], rates: list[float]) -> None:
        """Look whether the second update steps with the rate that the scheduler left after the first."""
        training = self.run.training
        for number, scheduler in enumerate(training.schedulers):
            owner = getattr(scheduler, "optimizer", None)
            of = next((n for n, one in enumerate(training.optimizers) if one is owner), None)
            if of is None or not updates[0].called("scheduler", number) or not updates[1].steps(of):
                continue
            used = updates[1].steps(of)[0].rate
            moved_first = _moved_first(updates[1], number, of)
            if not math.isclose(used, rates[of], rel_tol=1e-6) and not moved_first:
                told = f"the rate of the step is {used:g}, and the scheduler's is {rates[of]:g}"
                self.protocol.judge("", [f"Something else sets the learning rate: {told}."])
                self.protocol.leave_out("scheduler", told)

    def _without_gradients(self, updates: list[Update]) -> None:
        """Give optimizers that stepped without a gradient some more updates to get one."""
        empty = without_gradients(updates, self.run.training)
        if not empty:
            return
        more = [self.run.update() for _ in range(max(PATIENCE // self.run.window - 2, 0))]
        for number in sorted(set(empty) & set(without_gradients([*updates, *more], self.run.training))):
            evidence = {"updates": (2 + len(more)) * self.run.window, "gradients_that_arrived": 0}
            self.protocol.judge("", [frozen_optimizer(self.run.training, number, **evidence)])
