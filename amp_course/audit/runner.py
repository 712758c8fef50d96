"""Run a step for one update under an observer, from anywhere, at any scale, again and again."""

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
from amp_course.checking.explain import is_readers, where
from amp_course.checking.limit import TimeUp, within
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.rules.exceptions import described
from amp_course.watching.calling import (
    BatchError,
    arguments_for,
    cloned,
    fitting_ways,
    lengths_of,
    size_of,
)
from amp_course.watching.observer import Observer, highest_rate
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
    given:   the scalers that the reader passed
    adopted: how many others were found in use
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
    given: list[torch.amp.GradScaler] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    adopted: int = 0
    _way: int = 0  # in which the step is called with a batch
    _strangers: list[torch.amp.GradScaler] = field(default_factory=list)

    @property
    def optimizers(self) -> range:
        return range(len(self.training.optimizers))

    def rates(self) -> list[float]:
        return list(map(highest_rate, self.training.optimizers))

    def scale_of(self, number: int) -> float:
        """The loss scale of an optimizer: that of the scaler that steps it; 1 without one."""
        return self.scales[self.owners.get(number, 0)] if self.scales else 1.0

    def batch(self, call: int) -> Any:
        group, place = divmod(call, len(self.groups[0]))
        return self.groups[group % len(self.groups)][place]

    @property
    def sizes_are_clear(self) -> bool:
        """Do all tensors of each batch agree on how many examples it holds?"""
        return all(len(lengths_of(batch)) <= 1 for group in self.groups for batch in group)

    def size(self, call: int) -> int:
        return size_of(self.batch(call))

    def restart(self, scales: Sequence[float] | None = None) -> None:
        """Go back to the beginning, with no gradients, and other loss scales if they are given."""
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
        """Run the first update again, and tell whether the step calls a layer of the models."""
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
            return trace if is_readers(frame.f_code.co_filename) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            update = self.repeat()
        finally:
            sys.settrace(before)
        return described(caught[-1]) + where(caught[-1]) if caught and update.error is None else ""

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

        look_closely: walk the graphs of the losses, and compute the fp32 loss next to each call
        """
        groups = groups or self.groups
        observer = Observer(self.training, intervention, graphs=look_closely)
        update = observer.update
        most = max(PATIENCE, self.window) if until else self.window
        # The scheduler's warning, of its order, is judged, not shown.
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
        self._strangers = observer.unknown_scalers
        return update

    def _reference(self, observer: Observer, batch: Any) -> None:
        update = observer.update
        if self.training.loss is None or update.reference_error:
            return
        # What the loss moves is not the step's doing.
        kept = Snapshot(self.training.models, {"the loss": self.training.loss})
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
            said = " ".join(f"{type(error).__name__}: {error}".split())
            why = f", called as `loss(model, *batch)`, raised {said}"
        finally:
            observer.paused = False
            kept.restore()
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
        self.given = list(self.training.scalers)
        self.scales = own = self.training.scales()
        left = len(self.groups) - 1
        while True:
            self.restart()
            modes = self.training.current_modes()
            update = self.update(look_closely=True, until=self.optimizers)
            self.window = max(update.calls // self.accumulate, 1)
            if self._calls_otherwise(update) or self._sets_modes(modes, update.modes):
                continue
            if self._adopts():
                own = self.scales
            elif update.finite or update.error is not None:
                break
            elif self.scales and min(self.scales) > _LOWEST:
                self.scales = [scale / 2**4 for scale in self.scales]
            elif left:  # one bad batch makes no bad step
                left -= 1
                self.groups, self.scales = [*self.groups[1:], self.groups[0]], own
            else:
                break
        calls = update.called("scaler.step")
        self.owners = {call.number: call.scaler for call in calls if call.scaler >= 0}
        self.dtypes = {dtype for one in update.backwards for dtype in one.graph.low}
        return update

    def _calls_otherwise(self, update: Update) -> bool:
        """Pass the batch as one argument from now on, if the step takes that and just raised."""
        begun = any(not isinstance(event, Region) for event in update.events)
        if update.error is None or begun or self._way:
            return False
        if fitting_ways(self.training.train_step, self.groups[0][0], **self._hint(True)) < 2:
            return False
        self._way = 1
        return True

    def _sets_modes(self, before: dict[nn.Module, bool], then: dict[nn.Module, bool]) -> bool:
        """Note that the step calls `model.train()`, say: so has the loss to be computed."""
        changed = {one: mode for one, mode in then.items() if before.get(one, mode) != mode}
        if not changed or self.training.modes:
            return False
        self.training.modes = changed
        return True

    def _adopts(self) -> bool:
        """Take in scalers that the step uses and the reader did not pass."""
        strange = [one for one in self._strangers if self.snapshot.covers(one)]
        if not strange:
            return False
        self.snapshot.restore()
        self.training = replace(self.training, scalers=[*self.training.scalers, *strange])
        self.scales = self.training.scales()
        self.adopted += len(strange)
        return True
