"""What runs in the process that trains: installed before the script, it writes what it found.

After some updates it injects an inf into one, and then ends the process. Until then it changes
nothing that the script computes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules.stress import check_stress, pass_for_inf
from amp_course.doctor.examiner import Examiner
from amp_course.doctor.running import STOP, WRITING
from amp_course.doctor.watchers import Watchers
from amp_course.watching import taps
from amp_course.watching.records import Intervention, Update

_PACKAGE = str(Path(__file__).parents[1])
_FEWEST, _PATIENCE = 20, 30.0  # updates to examine even if they take more than these seconds


class Examination(Examiner):
    """One process's training, from `install` to `finish`.

    steps:   updates to examine, at most, before an inf is injected into one
    seconds: after which it ends, wherever it is
    folder:  where the result goes, as `result-PID.json`
    """

    def __init__(self, steps: int, seconds: float, folder: Path) -> None:
        self.steps, self.seconds, self.folder = steps, seconds, folder
        self.child = self.done = False  # child: this process was made by fork
        self.passes: list[int] = []  # numbers of the passes that get an inf
        self.programs: list[str] = []  # other programs in Python that were started
        self._shown = 0.0  # when the number of updates was last written down

    def install(self) -> None:
        """Begin to watch. Call it before the script's first line."""
        self._leave = os._exit
        self._warnings = warnings.catch_warnings()  # the watch adds a filter
        self._warnings.__enter__()
        self.watchers = Watchers(self._complete)
        self.begin()
        # An attribute, so that it is not garbage collected, which would end it
        self._listening = taps.listening({"exit": self._exits})
        self._listening.__enter__()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self.watchers.watch.__enter__()

    def begin(self) -> None:
        """Start from nothing, with all of the time."""
        super().begin()
        self.process = os.getpid()
        threading.Thread(target=self._wait, daemon=True).start()

    def _forked(self) -> None:
        """Start again in a child made by fork: its training has not begun."""
        self.child, self.done = True, False
        self.watchers.end()
        self.watchers.begin()
        self.begin()

    # ---- the run ----

    def _next(self, update: Update, number: int) -> Intervention | None:
        if time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            (self.folder / "progress").write_text(str(number))
        training = self.watchers.training
        if len(self.stress) == 2:
            plain, with_inf = self.stress
            self.found += check_stress(plain, with_inf, update, training)
            self.leave("steps")
        if self.stress:
            if min(self.passes) < len(update.backwards):
                self.stress.append(update)
                return None
            self.stress.clear()  # it had fewer passes than the one before: try the next
        took = self.ended - self.watchers.began  # without imports and data
        if number >= self.steps or (number >= _FEWEST and took > _PATIENCE):
            return self._inject_inf(update, number)
        return None

    def _inject_inf(self, update: Update, number: int) -> Intervention | None:
        """Inject an inf into the next update, or end if nothing can be learned from that."""
        watch, training = self.watchers.watch, self.watchers.training
        watch.look_at_weights()
        self.before = number, (list(watch.origins), dict(watch.arrived), dict(watch.preexisting))
        passes = [pass_for_inf(update, n, training) for n in range(len(training.optimizers))]
        places = frozenset(one for one in passes if one is not None)
        scaled = bool(update.called("scale"))
        if scaled and not update.finite and number < 2 * self.steps:
            return None  # go on: the scaler is still lowering its scale
        if not places or not scaled or not update.finite or not update.steps():
            self.leave("steps")
        self.stress.append(update)
        self.passes = [number for number, _ in places]
        return Intervention(inject_inf=places)

    # ---- the end ----

    def _wait(self) -> None:
        """End the process when its time is up, or the doctor is interrupted."""
        stop = self.folder / STOP
        while (left := self.began + self.seconds - time.monotonic()) > 0 and not stop.exists():
            time.sleep(min(left, 0.3))
        if not self.done and os.getpid() == self.process:
            self.leave("interrupt" if left > 0 else "time")

    def _exits(self, original: Callable[..., Any], code: int) -> None:
        if os.getpid() == self.process:
            self.finish("exit", code)
        original(code)

    def leave(self, why: str) -> NoReturn:
        """Write what was found, and end the process at once, without the script's own cleanup."""
        self.finish(why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._leave(0)

    def finish(self, why: str, code: Any = 0, error: BaseException | None = None) -> None:
        """Write what was found, once. why: a key of `reasons._ENDS`."""
        # A child that does not train may be a worker of a DataLoader.
        if self.done or (self.child and self.watchers.observer is None):
            return
        self.done = True
        path = self.folder / f"result-{os.getpid()}.json"
        path.with_suffix(WRITING).touch()
        result: dict[str, Any]
        try:
            if why != "steps":
                self.close(error)
            if error is not None and _is_ours(error):
                raise error
            result = self.result(error)
            for key in ("findings", "advice"):
                result[key] = [asdict(one) for one in result[key]]
            result |= {
                "ended": why,
                "code": code if isinstance(code, int) else 1,
                "asked": self.steps,
                "error": errors.describe_with_line(error) if error else "",
                "programs": self.programs[:3],
            }
        except Exception:
            result = {"ended": "broken", "text": traceback.format_exc()}
        path.with_suffix(WRITING).write_text(json.dumps(result), encoding="utf-8")
        path.with_suffix(WRITING).rename(path)


def _is_ours(error: BaseException) -> bool:
    """Return True if the doctor itself raised it, and not what it calls or the script."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return any(one.filename.startswith(_PACKAGE) and one.name != "_pass_on" for one in frames)
