"""Wrong calls of `audit`, as readers make them, and what it should say. A few only look wrong.

    bad.call(audit)    calls it wrongly
    bad.says           regular expressions; the message, or the report, has to match each
    bad.hangs          it goes on for `PATIENCE` seconds if nobody stops it

Most are written in bad_input.toml. An error from deep inside, such as AttributeError: 'NoneType'
object has no attribute 'parameters', is no good message, even where its words happen to match.
"""

from __future__ import annotations

import copy
import functools
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from amp_course.audit.arguments import as_list
from tests.audit.written import SOUND, make, read

Audit = Callable[..., Any]
PATIENCE = 90.0  # seconds


class NobodyStopped(BaseException):
    """What should have been stopped went on to its end. No Exception, which a step may raise."""


def wait_for_ever() -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(0.02)
    raise NobodyStopped


@dataclass(frozen=True)
class BadInput:
    name: str
    call: Callable[[Audit], Any]
    says: tuple[str, ...] = ()
    hangs: bool = False


NAMES = {"wait_for_ever": wait_for_ever, "NobodyStopped": NobodyStopped, "PATIENCE": PATIENCE}
BASE = SOUND | {"names": NAMES, "optimizer": "SGD, lr=0.1, momentum=0.9"}


def called(name: str, case: dict[str, Any], audit: Audit) -> Any:
    step, arguments, names = make(name, case, BASE)
    changed = eval(f"dict({case.get('change', '')})", names | {"step": step})
    return audit(**{"train_step": step} | arguments | changed)


BAD_INPUTS = [
    BadInput(
        name,
        functools.partial(called, name, case),
        tuple(as_list(case.get("says"))),
        case.get("hangs", False),
    )
    for name, case in read("bad_input.toml").items()
]


def bad(name: str, *says: str) -> Callable[[Callable[[Audit], Any]], Callable[[Audit], Any]]:
    def put(call: Callable[[Audit], Any]) -> Callable[[Audit], Any]:
        BAD_INPUTS.append(BadInput(name, call, says))
        return call

    return put


def given(argument: str, it: Any, audit: Audit) -> Any:
    return called(argument, {"change": "loss=plain"}, functools.partial(audit, **{argument: it}))


# accumulate has to be a whole number from 1 on, max_norm a positive one, tolerance one from 0 on
NUMBERS = {
    "accumulate": (-1, 0, 1.5, float("nan"), "2", None, [2], 2.0, True, torch.tensor(1)),
    "max_norm": (-1.0, 0.0, float("nan"), "1.0", [1.0], 1j),
    "tolerance": (-0.1, float("nan"), "0.1", (0.1,), 1j),
}
for argument, wrong in NUMBERS.items():
    for it in wrong:
        bad(f"{argument}={it!r}", argument)(functools.partial(given, argument, it))


@bad("a step that changes its own default arguments")
def step_defaults(audit: Audit) -> Any:
    """Nothing is wrong: a counter in `__defaults__`. It has to be put back."""
    inner, arguments, _ = make("a step", {}, BASE)

    def step(x: Any, y: Any, calls: int = 0) -> None:
        step.__defaults__ = (calls + 1,)
        inner(x, y)

    told = audit(step, **arguments)
    assert step.__defaults__ == (0,), "the default arguments were not put back"
    return told


@bad("a step that calls audit")
def step_calls_audit(audit: Audit) -> Any:
    """One audit at a time; to let it is fine, if it comes to an end."""
    inner, arguments, _ = make("a step", {}, BASE)
    depth = (n for n in count(1))  # nobody can put it back

    def step(x: Any, y: Any) -> None:
        if next(depth) < 4:
            audit(step, **arguments)
        inner(x, y)

    return audit(step, **arguments)


def interrupted(audit: Audit, twice: bool) -> Any:
    """KeyboardInterrupt passes through; a second one waits until everything is back."""
    inner, arguments, _ = make("a step", {}, BASE)
    calls, armed = (n for n in count(1)), False

    class Slow(type):  # whose attributes a snapshot puts back
        def __setattr__(cls, name: str, value: object) -> None:
            if armed:
                signal.raise_signal(signal.SIGINT)
            type.__setattr__(cls, name, value)

    class Kept(metaclass=Slow):
        number = 1

    def step(x: Any, y: Any) -> None:
        nonlocal armed
        Kept.number += 1
        if next(calls) == 3:
            armed = twice
            raise KeyboardInterrupt
        inner(x, y)

    before = copy.deepcopy(arguments["model"].state_dict())
    try:
        return audit(step, **arguments)
    finally:
        armed = False
        assert Kept.number == 1, "the attribute was not put back"
        assert all(
            torch.equal(before[name], now) for name, now in arguments["model"].state_dict().items()
        )


bad("Ctrl-C during the audit")(functools.partial(interrupted, twice=False))
bad("Ctrl-C twice, in the step and while it is put back")(
    functools.partial(interrupted, twice=True)
)
