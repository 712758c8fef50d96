"""Run updates of a step under an observer, from the beginning or on from there, at any scale."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from amp_course.audit.reference import BadLoss, reference
from amp_course.audit.snapshot import Snapshot
from amp_course.checking.explain import is_learners, where
from amp_course.checking.limit import TimeUp, within
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.rules.exceptions import describe_error
from amp_course.watching.calling import (
    BatchError,
    arguments_for,
    cloned,
    fitting_ways,
    lengths_of,
)
from amp_course.watching.observer import Observer
from amp_course.watching.records import Intervention, Region, Training, Update

PATIENCE = 8  # groups of batches in which every optimizer has to step at least once
_LOWEST = 2.0**-20  # the loss scale at which a step that still overflows is given up


@dataclass
class Runner:
    """Runs updates of a training that it can put back.

    groups:  micro-batches, `accumulate` in each
    seconds: the time that one call of the step may take
    scales:  the loss scales that `first` settled on, one for each scaler
    window:  groups until every optimizer has stepped, which is an update here
    owners:  number of an optimizer → that of its scaler
    passed:  the scalers that were passed to `audit`
    registered: how many others were found in use
    dtypes:  the 16-bit ones that gradients come through
    """

    training: Training
    snapshot: Snapshot
    groups: list[list[Any]]
    accumulate: int
    seconds: float
    scales: list[float] = field(default_factory=list)
    window: int = 1
    owners: dict[int, int] = field(default_factory=dict)
    passed: list[torch.amp.GradScaler] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    registered: int = 0
    _way: int = 0  # of the ways to call the step with a batch
    _unknown: list[torch.amp.GradScaler] = field(default_factory=list)

    @property
    def optimizers(self) -> range:
        return range(len(self.training.optimizers))

    def scale_of(self, number: int) -> float:
        """Return the loss scale of the scaler that steps an optimizer; 1 without one."""
        return self.scales[self.owners.get(number, 0)] if self.scales else 1.0

    def batch(self, call: int) -> Any:
        group, place = divmod(call, len(self.groups[0]))
        return self.groups[group % len(self.groups)][place]

    @property
    def sizes_are_clear(self) -> bool:
        """Return True if the tensors of each batch agree on how many examples it holds."""
        return all(len(lengths_of(batch)) <= 1 for group in self.groups for batch in group)

    def restart(self, scales: Sequence[float] | None = None) -> None:
        """Go back to the beginning, with gradients of 0, at `scales` or at those of `first`."""
        self.snapshot.restore()
        with torch.no_grad():
            for p in self.training.parameters:
                if p.grad is not None:
                    p.grad.zero_()
        self.training.set_scales(self.scales if scales is None else scales)

    def repeat(
        self, intervention: Intervention | None = None, scales: Sequence[float] | None = None
    ) -> Update:
        self.restart(scales)
        return self.update(intervention=intervention)

    def calls_the_model(self) -> bool:
        """Run the first update again; return True if the step calls a layer of the models."""
        layers = self.training.current_modes()
        called: list[nn.Module] = []
        hook = register_module_forward_pre_hook(lambda module, _: called.append(module))
        try:
            self.repeat()
        finally:
            hook.remove()
        return any(one in layers for one in called)

    def swallowed(self) -> str:
        """Run the first update again; return the last exception that the step caught, or ""."""
        caught: list[BaseException] = []

        def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
            raised = event == "exception" and isinstance(arg[1], Exception)
            if raised and not isinstance(arg[1], StopIteration):
                caught.append(arg[1])
            return trace if is_learners(frame.f_code.co_filename) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            update = self.repeat()
        finally:
            sys.settrace(before)
        if not caught or update.error is not None:
            return ""
        return describe_error(caught[-1]) + where(caught[-1])

    def following(self, until: Sequence[int] = ()) -> Update:
        begin = self.window % len(self.groups)
        return self.update([*self.groups[begin:], *self.groups[:begin]], until=until)

    def update(
        self,
        groups: Sequence[Sequence[Any]] | None = None,
        intervention: Intervention | None = None,
        *,
        look_closely: bool = False,
        until: Sequence[int] = (),
    ) -> Update:
        """Run one update from the current state, or groups `until` these optimizers have stepped.

        look_closely: walk the graphs of the losses, and compute the fp32 loss before each call
        """
        groups = groups or self.groups
        observer = Observer(self.training, intervention, graphs=look_closely)
        update = observer.update
        most = max(PATIENCE, self.window) if until else self.window
        # Torch warns of a scheduler that moves first: the audit judges that itself.
        with warnings.catch_warnings(action="ignore"), sandbox(), observer:
            for n in range(most):
                group = groups[n % len(groups)]
                for place, batch in enumerate(group):
                    if look_closely:
                        self._reference(observer, batch)
                    self._call(observer, batch, place == len(group) - 1)
                    stopped = update.error is not None or update.left_open
                    if stopped:
                        break
                done = not update.finite or all(update.steps(i) for i in until)
                if stopped or (until and done):
                    break
        self._unknown = observer.unknown_scalers
        return update

    def _reference(self, observer: Observer, batch: Any) -> None:
        update = observer.update
        if self.training.loss is None or update.reference_error:
            return
        # What the loss changes is not the step's doing.
        before = Snapshot(self.training.models, {"the loss": self.training.loss})
        observer.paused = True
        why = ""
        try:
            update.references.append(within(self.seconds, lambda: reference(self.training, batch)))
        except TimeUp:
            why = f" did not finish within {self.seconds:g} seconds"
        except BadLoss as error:
            why = f" {error}"
        except BatchError as error:
            why = f" does not take what the step takes, after the model: {error}"
        except Exception as error:
            raised = " ".join(f"{type(error).__name__}: {error}".split())
            why = f", called as `loss(model, *batch)`, raised {raised}"
        finally:
            observer.paused = False
            before.restore()
        update.reference_error = why and f"the fp32 `loss`{why}"

    def _call(self, observer: Observer, batch: Any, last: bool) -> None:
        update, training = observer.update, self.training
        observer.next_call(update.calls)
        before, step = torch.is_autocast_enabled(training.device_type), training.train_step
        try:
            args, kwargs = arguments_for(step, cloned(batch), way=self._way, **self._hint(last))
            update.returned = type(within(self.seconds, lambda: step(*args, **kwargs))).__name__
        except (Exception, SystemExit) as error:
            update.error = error
        finally:
            update.left_open |= torch.is_autocast_enabled(training.device_type) and not before

    def _hint(self, last: bool) -> dict[str, bool]:
        return {"last": last} if self.training.hint_last else {}

    # ---- the first update ----

    def first(self) -> Update:
        """Run the first update, at the step's scale or the highest below that does not overflow."""
        self.passed = list(self.training.scalers)
        self.scales = own = self.training.scales()
        left = len(self.groups) - 1
        while True:
            self.restart()
            modes = self.training.current_modes()
            update = self.update(look_closely=True, until=self.optimizers)
            self.window = max(update.calls // self.accumulate, 1)
            if self._passes_batch_whole(update) or self._sets_modes(modes, update.modes):
                continue
            if self._registers_scalers():
                own = self.scales
            elif update.finite or update.error is not None:
                break
            elif self.scales and min(self.scales) > _LOWEST:
                self.scales = [scale / 2**4 for scale in self.scales]
            elif left:  # the batch may be bad, and the step right
                left -= 1
                self.groups, self.scales = [*self.groups[1:], self.groups[0]], own
            else:
                break
        calls = update.called("scaler.step")
        self.owners = {call.number: call.scaler for call in calls if call.scaler >= 0}
        self.dtypes = {dtype for one in update.backwards for dtype in one.graph.low}
        return update

    def _passes_batch_whole(self, update: Update) -> bool:
        """Pass the batch as one argument from now on, if the step takes that and just raised."""
        begun = any(not isinstance(event, Region) for event in update.events)
        if update.error is None or begun or self._way:
            return False
        if fitting_ways(self.training.train_step, self.groups[0][0], **self._hint(True)) < 2:
            return False
        self._way = 1
        return True

    def _sets_modes(self, before: dict[nn.Module, bool], after: dict[nn.Module, bool]) -> bool:
        """Note the modes that the step sets, by `model.train()`: the loss needs the same."""
        changed = {one: mode for one, mode in after.items() if before.get(one, mode) != mode}
        if not changed or self.training.modes:
            return False
        self.training.modes = changed
        return True

    def _registers_scalers(self) -> bool:
        """Add scalers that the step uses and that were not passed."""
        new = [one for one in self._unknown if self.snapshot.covers(one)]
        if not new:
            return False
        self.snapshot.restore()
        self.training = replace(self.training, scalers=[*self.training.scalers, *new])
        self.scales = self.training.scales()
        self.registered += len(new)
        return True
